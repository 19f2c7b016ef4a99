"""Transformers (Vaswani et al. 2017, arXiv:1706.03762), a decoder-only language model, and encoder and decoder for
translation, with beam search; and LSTM language models with a recurrent projection (Jozefowicz et al. 2016,
arXiv:1602.02410).

    model = TransformerLM(vocabulary=32000, **SIZES["shallow"])
    logits = model(tokens)                       (n, T) int64 -> (n, T, vocabulary)
    model = TranslationTransformer(vocabulary=8000, pad=0, begin=1, end=2)
    logits = model(source, target)              target: begin and the sentence; logits: of the sentence and end
    tokens = model.decode(source, longest=50)

As in Tensor2Tensor (source of ``transformer_base``): layer norm before each sublayer and at the end, sinusoidal
positions, embeddings scaled by the root of the width. There is no dropout inside attention.
"""

import math
import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...modules.layers import Dropout

# torch warns about every such LSTM on a CPU; its fallback is correct
warnings.filterwarnings("ignore", "LSTM with projections is not supported with oneDNN", UserWarning)
# Tensor2Tensor's transformer_base, _l2, _small and _big, under the names of Shallue et al. 2019, whose sizes are not
# verified
SIZES = {"base": dict(layers=6, width=512, hidden=2048, heads=8),
         "shallow": dict(layers=2, width=512, hidden=2048, heads=8),
         "narrow_and_shallow": dict(layers=2, width=256, hidden=1024, heads=4),
         "wide": dict(layers=6, width=1024, hidden=4096, heads=16)}

KeysValues = tuple[Tensor, Tensor]          # of one attention, each (n, heads, positions, width / heads)


class TransformerLM(nn.Module):
    """Logits of the next token at each position: (n, T) int64 -> (n, T, vocabulary), of any length T.

    vocabulary  tokens are 0 .. vocabulary - 1
    width       of the residual stream, a multiple of heads;  hidden  units of a feed-forward layer
    dropout     of the embeddings and of each sublayer's output;  tied  whether embedding and readout share a matrix

    Attention is causal, so padding at the end of a row needs no mask; the loss ignores it. Shallue et al. trained
    without dropout and with separate matrices (from memory, not verified). Raises ValueError for invalid sizes.
    """

    def __init__(self, vocabulary: int, layers: int = 6, width: int = 512, hidden: int = 2048, heads: int = 8,
                 dropout: float = 0.0, tied: bool = False):
        super().__init__()
        require_whole(vocabulary=vocabulary, layers=layers)
        self.embedding, self.dropout = Embedding(vocabulary, width), Dropout(dropout)
        self.layers = nn.ModuleList(Layer(width, hidden, heads, dropout) for _ in range(layers))
        self.norm, self.readout = nn.LayerNorm(width), None if tied else Embedding(vocabulary, width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.dropout(self.embedding(tokens))
        for layer in self.layers:
            x = layer(x, causal=True)
        return (self.readout or self.embedding).logits(self.norm(x))


class Embedding(nn.Module):
    """One vector per token; as a module, the tokens' vectors plus positions: (n, T) int64 -> (n, T, width). Vectors are
    drawn from N(0, 1 / width) and scaled by the root of the width, to a variance of one."""

    def __init__(self, vocabulary: int, width: int):
        super().__init__()
        require_whole(width=width)
        self.weight = nn.Parameter(torch.empty(vocabulary, width).normal_(std=width**-0.5))

    def forward(self, tokens: Tensor, start: int = 0) -> Tensor:
        vectors = functional.embedding(tokens, self.weight)
        width = vectors.shape[2]
        return vectors * math.sqrt(width) + sinusoids(start, tokens.shape[1], width, vectors)

    def logits(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight)


def sinusoids(start: int, positions: int, width: int, like: Tensor) -> Tensor:
    """Sines, then cosines, of position / 10000^(2i / width), (positions, width) (Vaswani et al., section 3.5)."""
    waves = (width + 1) // 2
    frequency = torch.exp(torch.arange(waves, dtype=like.dtype, device=like.device) * (-2 * math.log(1e4) / width))
    angles = torch.outer(torch.arange(start, start + positions, dtype=like.dtype, device=like.device), frequency)
    return torch.cat((angles.sin(), angles.cos()), dim=1)[:, :width]


class Past:
    """Keys and values of the positions seen so far by a layer's self-attention, one row per example."""

    def __init__(self):
        self.seen: KeysValues | None = None

    def add(self, seen: KeysValues) -> KeysValues:
        self.seen = seen if self.seen is None else tuple(torch.cat(pair, dim=2) for pair in zip(self.seen, seen))
        return self.seen

    def select(self, rows: Tensor) -> None:
        self.seen = tuple(part[rows] for part in self.seen)


class Layer(nn.Module):
    """Self-attention, attention to a memory where wanted, and a feed-forward of two layers, each added to its input."""

    def __init__(self, width: int, hidden: int, heads: int, dropout: float, with_memory: bool = False):
        super().__init__()
        require_whole(hidden=hidden)
        self.attention_norm, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.attention_dropout = Dropout(dropout)
        if with_memory:
            self.memory_norm, self.memory_attention = nn.LayerNorm(width), Attention(width, heads)
            self.memory_dropout = Dropout(dropout)
        self.feed_norm = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(xavier(nn.Linear(width, hidden)), nn.ReLU(), xavier(nn.Linear(hidden, width)),
                                          Dropout(dropout))

    def forward(self, x: Tensor, causal: bool = False, mask: Tensor | None = None, memory: KeysValues | None = None,
                memory_mask: Tensor | None = None, past: Past | None = None) -> Tensor:
        """causal             positions do not attend to later ones
        mask, memory_mask  bool, True for visible positions, (n, 1, 1, positions); None: all
        memory, past       keys and values: from ``memory_attention.keys_values``; of earlier positions, which grow
        """
        normal = self.attention_norm(x)
        seen = self.attention.keys_values(normal)
        if past is not None:
            seen = past.add(seen)
        x = x + self.attention_dropout(self.attention(normal, seen, mask, causal))
        if memory is not None:
            x = x + self.memory_dropout(self.memory_attention(self.memory_norm(x), memory, memory_mask))
        return x + self.feed_forward(self.feed_norm(x))


class Attention(nn.Module):
    """Scaled dot-product attention of several heads, (n, T, width) -> (n, T, width); no biases."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        require_whole(width=width, heads=heads)
        if width % heads:
            fitting = ", ".join(str(count) for count in range(1, width + 1) if width % count == 0)
            raise ValueError(f"heads = {heads} do not divide width = {width}; they may be {fitting}")
        self.heads = heads
        self.query, self.key, self.value, self.mix = (xavier(nn.Linear(width, width, bias=False)) for _ in range(4))

    def keys_values(self, x: Tensor) -> KeysValues:
        return self._by_head(self.key(x)), self._by_head(self.value(x))

    def forward(self, x: Tensor, seen: KeysValues, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        y = functional.scaled_dot_product_attention(self._by_head(self.query(x)), *seen, attn_mask=mask,
                                                    is_causal=causal)
        return self.mix(y.transpose(1, 2).flatten(2))

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


def xavier(linear: nn.Linear) -> nn.Linear:
    """The layer with weights from U(-a, a), a^2 = 6 / (inputs + outputs) (Glorot & Bengio 2010), biases zero."""
    nn.init.xavier_uniform_(linear.weight)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
    return linear


class LSTMLM(nn.Module):
    """Logits of the next token at each position: (n, T) int64 -> (n, T, vocabulary), of any length T.

    vocabulary  tokens are 0 .. vocabulary - 1
    hidden      cells of a layer;  projection: width of its output, less than hidden, 0: none
    embedding   width of a token's vector
    dropout     of embeddings and each layer's output, not of the recurrence (Zaremba et al. 2014, arXiv:1409.2329)

    Each row starts from a zero state; padding at its end affects nothing before it, and the loss ignores it. The
    defaults are the published LSTM-2048-512 in one layer; the sizes of Shallue et al., also one layer, are not
    verified. Forget gates start with a bias of 1 (Jozefowicz et al. 2015, "An empirical exploration of recurrent
    network architectures"). Raises ValueError for invalid sizes.
    """

    def __init__(self, vocabulary: int, hidden: int = 2048, projection: int = 512, embedding: int = 512,
                 layers: int = 1, dropout: float = 0.0):
        super().__init__()
        require_whole(vocabulary=vocabulary, hidden=hidden, embedding=embedding, layers=layers)
        if type(projection) is not int or not 0 <= projection < hidden:
            raise ValueError(f"projection = {projection!r}; it may be 0 (none) to {hidden - 1}, less than hidden")
        width = projection or hidden
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.dropouts = nn.ModuleList(Dropout(dropout) for _ in range(layers + 1))
        self.layers = nn.ModuleList(
            nn.LSTM(width if number else embedding, hidden, batch_first=True, proj_size=projection)
            for number in range(layers))
        with torch.no_grad():
            for layer in self.layers:
                layer.bias_ih_l0.zero_()[hidden:2 * hidden] = 1         # of the gates i, f, g, o
                layer.bias_hh_l0.zero_()
        self.readout = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        first, *others = self.dropouts
        x = first(self.embedding(tokens))
        with torch.autocast("cpu", enabled=False):          # few CPUs have an LSTM in bf16
            for layer, dropout in zip(self.layers, others):
                x = dropout(layer(x)[0])
        return self.readout(x)


def require_whole(**sizes: int) -> None:
    for name, size in sizes.items():
        if type(size) is not int or size < 1:
            raise ValueError(f"{name} = {size!r}; give a whole number, 1 or more")


class TranslationTransformer(nn.Module):
    """(n, S) and (n, T) int64 -> (n, T, vocabulary): logits of the next target token at each position of the target.

    vocabulary       of both languages together: tokens are 0 .. vocabulary - 1
    pad, begin, end  tokens that fill a row, and open and close a target
    layers           of the encoder, and of the decoder
    tied             one matrix for both embeddings and the readout, as published

    A source has at least one token that is not pad. Padding of a target affects nothing before it; the loss ignores it.
    The defaults are the published base model, with dropout on embeddings and sublayer outputs. Raises ValueError for
    invalid sizes, and for special tokens that are equal or not in the vocabulary.
    """

    def __init__(self, vocabulary: int, layers: int = 6, width: int = 512, hidden: int = 2048, heads: int = 8,
                 dropout: float = 0.1, tied: bool = True, pad: int = 0, begin: int = 1, end: int = 2):
        super().__init__()
        require_whole(vocabulary=vocabulary, layers=layers)
        special = {"pad": pad, "begin": begin, "end": end}
        if wrong := [f"{name} = {token}" for name, token in special.items() if token not in range(vocabulary)]:
            raise ValueError(f"{', '.join(wrong)}: tokens are 0 .. {vocabulary - 1}")
        if len(set(special.values())) < len(special):
            named = " and ".join(f"{name} = {token}" for name, token in special.items())
            raise ValueError(f"{named}: give three different tokens")
        self.pad, self.begin, self.end = pad, begin, end
        self.source = Embedding(vocabulary, width)
        self.target, self.readout = (None if tied else Embedding(vocabulary, width) for _ in range(2))
        self.source_dropout, self.target_dropout = Dropout(dropout), Dropout(dropout)
        self.encoder = nn.ModuleList(Layer(width, hidden, heads, dropout) for _ in range(layers))
        self.decoder = nn.ModuleList(Layer(width, hidden, heads, dropout, with_memory=True) for _ in range(layers))
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, mask = self.encode(source)
        return self.logits(target, memory, mask)

    def encode(self, source: Tensor) -> tuple[list[KeysValues], Tensor]:
        """Keys and values of the sources for each decoder layer, and the mask of visible positions (n, 1, 1, S)."""
        mask = (source != self.pad)[:, None, None, :]
        x = self.source_dropout(self.source(source))
        for layer in self.encoder:
            x = layer(x, mask=mask)
        x = self.encoder_norm(x)
        return [layer.memory_attention.keys_values(x) for layer in self.decoder], mask

    def logits(self, target: Tensor, memory: list[KeysValues], mask: Tensor, start: int = 0,
               past: list[Past] | None = None) -> Tensor:
        """Logits from the result of ``encode``, (n, T) -> (n, T, vocabulary).

        start, past  to decode with T = 1: the token's position, and each layer's keys and values of earlier ones
        """
        x = self.target_dropout((self.target or self.source)(target, start))
        for layer, shown, before in zip(self.decoder, memory, past or [None] * len(self.decoder)):
            x = layer(x, causal=past is None, memory=shown, memory_mask=mask, past=before)
        return (self.readout or self.source).logits(self.decoder_norm(x))

    @torch.no_grad()
    def decode(self, source: Tensor, longest: int, beam: int = 1, length_penalty: float = 0.6) -> Tensor:
        """Translations of the sources, (n, S) -> (n, longest) int64: without begin and end, padded.

        Beam search keeps the ``beam`` best hypotheses of each sentence by log P / ((5 + length) / 6) ** length_penalty
        (Wu et al. 2016, arXiv:1609.08144, section 7, without coverage; the length includes the end). A beam of 1 is
        greedy. The model must be in eval mode.
        """
        search = _Beams(self, source, longest, beam, length_penalty)
        for place in range(longest):
            if len(search.open) == 0:
                break
            search.step(place)
        return search.best


class _Beams:
    """The search of ``decode``: k hypotheses for each of m open sentences, as m k rows for the model."""

    def __init__(self, model: TranslationTransformer, source: Tensor, longest: int, beam: int, length_penalty: float):
        n = len(source)
        self.model, self.longest, self.length_penalty = model, longest, length_penalty
        self.open = torch.arange(n, device=source.device)           # (m,) indices of the open sentences
        self.best = source.new_full((n, longest), model.pad)        # hypotheses of the closed ones
        memory, mask = model.encode(source)
        self._keep_memory(memory, mask, self.open.repeat_interleave(beam))
        self.past = [Past() for _ in memory]
        self.tokens = source.new_full((n, beam, longest), model.pad)
        self.last = source.new_full((n, beam), model.begin)
        self.lengths, self.ended = torch.zeros_like(self.last), torch.zeros_like(self.last, dtype=torch.bool)
        self.log_p = torch.full((n, beam), -torch.inf, device=source.device)
        self.log_p[:, 0] = 0                    # start with one hypothesis

    def step(self, place: int) -> None:
        (m, k), model = self.last.shape, self.model
        logits = model.logits(self.last.view(-1, 1), self.memory, self.mask, place, self.past)[:, 0]
        logits[:, [model.pad, model.begin]] = -torch.inf
        log_p = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(1).view(m, k, -1)
        log_p[self.ended] = -torch.inf
        log_p[self.ended, model.pad] = 0                # an ended one is extended only by pad
        log_p, lengths = log_p + self.log_p[:, :, None], self.lengths + ~self.ended
        chosen = (log_p / ((5 + lengths) / 6)[:, :, None] ** self.length_penalty).flatten(1).topk(k).indices
        parent, token = chosen // log_p.shape[2], chosen % log_p.shape[2]
        self.log_p, self.lengths = log_p.flatten(1).gather(1, chosen), lengths.gather(1, parent)
        self.ended = self.ended.gather(1, parent) | (token == model.end)
        self.tokens = self.tokens.gather(1, parent[:, :, None].expand(m, k, self.longest))
        self.tokens[:, :, place] = token.where(token != model.end, model.pad)
        self.last = token
        self._close(parent, self.ended.all(1) if place + 1 < self.longest else torch.ones_like(self.ended[:, 0]))

    def _close(self, parent: Tensor, done: Tensor) -> None:
        m, k = parent.shape
        self.best[self.open[done]] = self.tokens[done, 0]
        rows = (torch.arange(m, device=parent.device)[:, None] * k + parent)[~done].flatten()
        if k == 1 and len(rows) == m:
            return
        for past in self.past:
            past.select(rows)
        if len(rows) < m * k:
            self._keep_memory(self.memory, self.mask, rows)
            for name in ("open", "tokens", "last", "lengths", "ended", "log_p"):
                setattr(self, name, getattr(self, name)[~done])

    def _keep_memory(self, memory: list[KeysValues], mask: Tensor, rows: Tensor) -> None:
        self.memory, self.mask = [(keys[rows], values[rows]) for keys, values in memory], mask[rows]
