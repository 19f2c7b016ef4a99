"""Transformers (Vaswani et al. 2017, arXiv:1706.03762): a decoder-only language model, and layers shared with the
encoder-decoder of ``translation``; and LSTM language models with a recurrent projection (Jozefowicz et al. 2016,
arXiv:1602.02410).

    model = TransformerLM(vocabulary=32000, **SIZES["shallow"])
    logits = model(tokens)                       (n, T) int64 -> (n, T, vocabulary)

As in Tensor2Tensor (source of ``transformer_base``): layer norm before each sublayer and at the end, sinusoidal
positions, embeddings scaled by the root of the width. There is no dropout inside attention.
"""
from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional

from ....modules.layers import Dropout

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
        self.embedding = Embedding(vocabulary, width)
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(Layer(width, hidden, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.readout = None if tied else Embedding(vocabulary, width)

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
    place = torch.arange(start, start + positions, dtype=like.dtype, device=like.device)
    frequency = torch.exp(torch.arange(waves, dtype=like.dtype, device=like.device) * (-2 * math.log(1e4) / width))
    angles = torch.outer(place, frequency)
    return torch.cat((angles.sin(), angles.cos()), dim=1)[:, :width]


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


class Past:
    """Keys and values of the positions seen so far by a layer's self-attention, one row per example."""

    def __init__(self):
        self.seen: KeysValues | None = None

    def add(self, seen: KeysValues) -> KeysValues:
        self.seen = seen if self.seen is None else tuple(torch.cat(pair, dim=2) for pair in zip(self.seen, seen))
        return self.seen

    def select(self, rows: Tensor) -> None:
        self.seen = tuple(part[rows] for part in self.seen)


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
