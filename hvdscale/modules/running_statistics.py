"""Buffers that training updates: batch-norm's running statistics, and any others of a model.

They move once a step, by the mean over the step's ghost groups of the move that each group alone would make, so neither
the worker count nor the order of the groups matters. The sums are reduced with the gradients.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from .layers import BatchNorm


class Buffers:
    """A model's buffers, but of modules ``without``, found by name, as a forward pass may replace the tensors."""

    def __init__(self, model: nn.Module, without: tuple[nn.Module, ...] = ()):
        self._places = [(f"{path}.{name}".lstrip("."), module._buffers, name)
                        for path, module in model.named_modules() if module not in without
                        for name, buffer in module._buffers.items() if buffer is not None]

    def values(self) -> list[Tensor]:
        return [buffers[name] for _, buffers, name in self._places]

    @contextlib.contextmanager
    def kept(self) -> Iterator[Callable[[], list[str]]]:
        """A context that restores the buffers; yields a function that names those that have changed."""
        tensors = self.values()
        before = [tensor.clone() for tensor in tensors]
        yield lambda: [path for (path, *_), now, then in zip(self._places, self.values(), before)
                       if not torch.equal(now, then)]
        with torch.no_grad():
            for (_, buffers, name), tensor, then in zip(self._places, tensors, before):
                tensor.copy_(then)
                buffers[name] = tensor


class Statistics:
    """Collects how the groups of a step move the buffers of hvdscale's BatchNorm; if group_by_group, also others."""

    def __init__(self, model: nn.Module, group_by_group: bool):
        self._norms = tuple(m for m in model.modules() if isinstance(m, BatchNorm) and m.track_running_stats)
        self._others = Buffers(model, self._norms) if group_by_group else Buffers(nn.Module())
        self._sizes = [2 * norm.num_features for norm in self._norms] + [b.numel() for b in self._others.values()]
        self._moves: Sequence[Tensor] = ()
        self.size = sum(self._sizes)

    def collect_in(self, sums: Tensor) -> None:
        """Add up in this vector of ``size`` values, which its owner zeroes before a step and reduces after it."""
        views = sums.split(self._sizes) if self._sizes else ()
        for norm, view in zip(self._norms, views):
            norm.sums = view.view(2, -1)
        self._moves = views[len(self._norms):]

    @contextlib.contextmanager
    def group(self) -> Iterator[None]:
        """A context for a group's pass: collects the moves of the buffers, then restores them."""
        before = [buffer.clone() for buffer in self._others.values()]
        with self._others.kept() if before else contextlib.nullcontext():
            yield
            for move, now, then in zip(self._moves, self._others.values(), before):
                move += (now.detach() - then).flatten().to(move.dtype)

    @torch.no_grad()
    def merge(self, groups: int) -> None:
        """Move the buffers by the sums over all groups of a step."""
        for norm in self._norms:
            norm.merge(norm.sums, groups)
        for buffer, move in zip(self._others.values(), self._moves):
            moved = buffer + (move / groups).view_as(buffer)
            buffer.copy_(moved if buffer.is_floating_point() else moved.round())
