"""The sums of a step without rounding: the same bits in any order, so at any number of workers and passes.

Each ghost group's gradients, statistics and loss are computed alone, and each value is split into two words, a multiple
of COARSE and one of FINE. What is left, at most half of FINE, is dropped: that is the only rounding, and the same
wherever the group is computed. Words of up to MOST_GROUPS groups add up in float64 without rounding, whatever the
order, so an ordinary allreduce sums them. Of values from LIMIT on, multiples of LARGE are summed apart.

    words                    multiples of     of values up to    bits of the sum of MOST_GROUPS
    in a step of large ones  LARGE = 2^10     HUGE = 2^48        52
    coarse                   2^-29            LIMIT = 2^10       53
    fine                     2^-69            2^-30              53
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ..errors import PlanError
from ..plan.plan import Plan
from ..workers.group import Workers
from .gradients import GradientBuffer

MOST_GROUPS = 2 ** 14
COARSE, FINE, LARGE = 2.0 ** -29, 2.0 ** -69, 2.0 ** 10
LIMIT, HUGE = 2.0 ** 10, 2.0 ** 48
CHUNK = 2 ** 15         # values that are split at a time on a CPU, so that they stay in its cache
ROUNDING = 1.5 * 2.0 ** 52          # times a power of two: added and subtracted, it rounds to multiples of that


def check_exact(plan: Plan) -> None:
    """Raise PlanError for an exact plan whose steps have more ghost groups than add up without rounding."""
    groups = max(map(plan.ghost_groups, plan.batches.sizes))
    if plan.exact and groups > MOST_GROUPS:
        raise PlanError(f"exact = true sums up to {MOST_GROUPS} ghost groups without rounding, and a step has "
                        f"{groups}; use a larger --ghost-batch")


class ExactBuffer(GradientBuffer):
    """A GradientBuffer whose passes are ghost groups, each ended by ``end_pass``.

    scalars  the number of values beside the gradients and statistics that ``end_pass`` is given: the first is the first
             of the tail, the others are its last
    """

    def __init__(self, model: nn.Module, tail: int, workers: Workers, statistics: int, scalars: int):
        super().__init__(model, tail, workers, statistics=statistics, flat=True)
        self._arrays = len(self._flat) - tail
        size, device = self._arrays + scalars, self._flat.device
        self._chunk = CHUNK if device.type == "cpu" else size
        self._group, self._rounded = torch.zeros(2, min(size, self._chunk), dtype=torch.float64, device=device)
        self._sent = torch.zeros(2 * size + len(Flags.NONE) + tail, dtype=torch.float64, device=device)
        self._words = self._sent[:2 * size].view(2, size)
        self._large: Tensor | None = None
        self._flags = list(Flags.NONE)

    def begin(self, note: Callable[[Tensor], None] | None = None) -> None:
        super().begin(note)
        self._words.zero_()
        self._large, self._flags = None, list(Flags.NONE)

    def backward(self, loss: Tensor, last_pass: bool) -> None:
        super().backward(loss, last_pass=False)

    def end_pass(self, scalars: Callable[[], Sequence[float]]) -> None:
        """Add what the ghost group's pass left in the gradients and in ``statistics``, and the scalars."""
        missing = {id(parameter) for parameter in super().without_gradient()}
        self._densify()
        self._take(self._slots)
        for slot in self._slots:
            slot.missing = id(slot.parameter) in missing
        if self._note:
            self._note(self.gradients)
        for at in range(0, self._arrays, self._chunk):
            self._add(self._flat[at:min(at + self._chunk, self._arrays)], at, Flags.ARRAYS)
        self._add(torch.tensor(scalars(), dtype=torch.float64), self._arrays, Flags.SCALARS)
        self.statistics.zero_()

    def _add(self, values: Tensor, start: int, flag: int) -> None:
        """Add a group's values to the words from this place on; how they are split depends on these values alone."""
        group, rounded = self._group[:len(values)].copy_(values), self._rounded[:len(values)]
        low, high = torch.aminmax(group)
        largest = max(-low.item(), high.item())
        if not largest < HUGE:                                  # or NaN
            self._flags[flag] += 1
            return
        words = [*zip((COARSE, FINE), self._words)]
        if largest >= LIMIT:
            self._flags[Flags.LARGE] += 1
            self._large = torch.zeros_like(self._words[0]) if self._large is None else self._large
            words.insert(0, (LARGE, self._large))
        for unit, word in words:
            torch.add(group, ROUNDING * unit, out=rounded).sub_(ROUNDING * unit)
            word[start:start + len(values)].add_(rounded)
            group.sub_(rounded)

    def finish(self) -> None:
        """Nothing is left to do: each pass has ended."""

    def sum_(self, tail: Sequence[float]) -> list[float]:
        """Sum words and tail over the workers, and round once; NaN where a value is not finite, or beyond HUGE."""
        sent = self._sent[self._words.numel():]
        sent.copy_(torch.tensor([*self._flags, *tail], dtype=torch.float64))
        self._workers.sum_(self._sent, "gradients/0")
        flags, rest = sent[:len(Flags.NONE)].tolist(), sent[len(Flags.NONE):].tolist()
        values = self._words[0]
        if flags[Flags.LARGE]:
            large = torch.zeros_like(values) if self._large is None else self._large
            values = self._workers.sum_(large, "gradients/large").add_(values)
        values.add_(self._words[1])
        for flag, part in ((Flags.ARRAYS, values[:self._arrays]), (Flags.SCALARS, values[self._arrays:])):
            if flags[flag]:
                part.fill_(math.nan)
        self._flat[:self._arrays].copy_(values[:self._arrays])
        for slot in self._slots:
            slot.parameter.grad = slot.view
        first, *last = values[self._arrays:].tolist()
        return [first, *rest[1:len(rest) - len(last)], *last]


class Flags:
    """Places in the counts of groups with large values, and with gradients, or scalars, that are not finite."""

    LARGE, ARRAYS, SCALARS = range(3)
    NONE = (0.0, 0.0, 0.0)
