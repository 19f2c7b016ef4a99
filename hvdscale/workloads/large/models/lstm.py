"""LSTM language models with a recurrent projection (Jozefowicz et al. 2016, arXiv:1602.02410)."""

import warnings

import torch
from torch import Tensor, nn

from ....modules.layers import Dropout
from .transformer import require_whole

# torch warns about every such LSTM on a CPU; its fallback is correct
warnings.filterwarnings("ignore", "LSTM with projections is not supported with oneDNN", UserWarning)


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
