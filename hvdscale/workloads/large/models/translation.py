"""The Transformer for translation (Vaswani et al. 2017, arXiv:1706.03762), encoder and decoder, with beam search.

    model = TranslationTransformer(vocabulary=8000, pad=0, begin=1, end=2)
    logits = model(source, target)              target: begin and the sentence; logits: of the sentence and end
    tokens = model.decode(source, longest=50)
"""

import torch
from torch import Tensor, nn

from ....modules.layers import Dropout
from .sequences import Embedding, KeysValues, Layer, Past, require_whole


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
        require_whole(longest=longest, beam=beam)
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
        self.lengths = torch.zeros_like(self.last)
        self.ended = torch.zeros_like(self.last, dtype=torch.bool)
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
        ranks = log_p / ((5 + lengths) / 6)[:, :, None] ** self.length_penalty
        chosen = ranks.flatten(1).topk(k).indices
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
