"""A replica's change as it is sent: rounded to bf16, or of each matrix a product of two thin ones.

With rank r, of the first and the other dimensions of a tensor as a matrix M, and Q as of the synchronization before,

    P = orthogonalize(M Q),    Q <- M^T P,    what is received: P Q^T

(PowerSGD: Vogels et al. 2019, arXiv:1905.13727, algorithm 1, of one replica's M), where that is fewer numbers; all else
is sent as it is. What is not sent is added to the replica's next change (error feedback, algorithm 2).
"""
from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Sender:
    """Compresses the changes of one replica: tensors like ``weights``, to the rank, or with 0 to bf16."""

    def __init__(self, weights: Sequence[Tensor], rank: int):
        self.kind = weights[0].dtype if rank else torch.bfloat16
        self.shapes = [_thin(weight.shape, rank) for weight in weights]
        self.size = sum(shape.numel() for shapes in self.shapes for shape in shapes)       # numbers that are sent
        drawn = torch.Generator(weights[0].device).manual_seed(0)
        self.unsent = [torch.zeros_like(weight) for weight in weights]
        self.bases = [weight.new_empty(shapes[1]).normal_(generator=drawn)
                      for weight, shapes in zip(weights, self.shapes) if shapes[1:]]

    def send(self, changes: Sequence[Tensor]) -> Tensor:
        """The numbers to send of these changes, and of what was not sent before."""
        whole, parts, bases = torch._foreach_add(changes, self.unsent), list[Tensor](), iter(self.bases)
        for change, shapes in zip(whole, self.shapes):
            if shapes[1:]:
                matrix, basis = change.flatten(1), next(bases)
                parts += [torch.linalg.qr(matrix @ basis).Q, basis]
                torch.matmul(matrix.T, parts[-2], out=basis)
            else:
                parts.append(change)
        sent = torch.cat([part.flatten() for part in parts]).to(self.kind)
        self.unsent = torch._foreach_sub(whole, self.receive(sent))
        return sent

    def receive(self, sent: Tensor) -> list[Tensor]:
        """The changes that some replica's numbers stand for."""
        parts, found = iter(sent.split([one.numel() for shapes in self.shapes for one in shapes])), []
        for shapes, like in zip(self.shapes, self.unsent):
            own = [next(parts).view(shape).to(like.dtype) for shape in shapes]
            found.append((own[0] @ own[1].T if own[1:] else own[0]).view_as(like))
        return found


def _thin(shape: torch.Size, rank: int) -> list[torch.Size]:
    """The shapes of the factors that are sent of a tensor, or its own alone."""
    rows, columns = (shape[0], shape[1:].numel()) if len(shape) > 1 else (0, 0)
    fewer = 0 < rank * (rows + columns) < rows * columns
    return [torch.Size((rows, rank)), torch.Size((columns, rank))] if fewer else [shape]
