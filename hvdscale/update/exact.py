"""The sums of a step without rounding: the same bits in any order, so at any number of workers and passes.

Each ghost group's gradients, statistics and loss are computed alone, and values are split into words, each a multiple
of its unit. Words of up to MOST_GROUPS groups add up in float64 without rounding, whatever the order, so an ordinary
allreduce sums them. Of CHUNK neighbours the first word is that of the smallest unit that reaches the largest of them,
the last MAIN, or LAST where the type has more digits of the largest. What is below is dropped: that is the only
rounding, and the same wherever the group is computed. Most values of an fp32 model have MAIN alone. It is sent in each
step, the others where some group has them.

    unit                 2^35    2^-5    2^-45   2^-85
    reaches values to    2^74    2^34    2^-6    2^-46
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ..errors import PlanError
from ..plan.plan import Plan
from ..workers.group import Workers
from .gradients import GradientBuffer

MOST_GROUPS = 2 ** 14
UNITS = tuple(2.0 ** power for power in (35, -5, -45, -85))
REACH = 2.0 ** 39
HUGE = REACH * UNITS[0]
MAIN, LAST = 2, len(UNITS) - 1
CHUNK = 2 ** 16         # values that are split at a time on a CPU, so that they stay in its cache
ROUNDING = 1.5 * 2.0 ** 52          # times a power of two: added and subtracted, it rounds to multiples of that


def check_exact(plan: Plan) -> None:
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
        self._arrays, device, numbers = len(self._flat) - tail, self._flat.device, len(UNITS)
        self._chunk = CHUNK if device.type == "cpu" else self._arrays
        self._group, self._spare = torch.zeros(2, max(self._chunk, scalars), dtype=torch.float64, device=device)
        sizes = self._arrays, numbers * scalars, numbers + 2 + tail
        self._sent = torch.zeros(sum(sizes), dtype=torch.float64, device=device)
        self._main, scalar_words, self._counts = self._sent.split(sizes)
        self._scalar_words = dict(enumerate(scalar_words.view(numbers, scalars)))
        self._words: dict[int, Tensor] = {}         # of the arrays, by number: those that some group of this rank has
        self._not_finite = [0, 0]                   # groups of this rank with such arrays, and with such scalars

    def begin(self, note: Callable[[Tensor], None] | None = None) -> None:
        super().begin(note)
        self._sent.zero_()
        self._words, self._not_finite = {MAIN: self._main}, [0, 0]

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
        finite = [self._add(self._flat[at:min(at + self._chunk, self._arrays)], self._words, at)
                  for at in range(0, self._arrays, self._chunk)]
        given = torch.tensor(scalars(), dtype=torch.float64)
        self._not_finite[0] += not all(finite)
        self._not_finite[1] += not self._add(given, self._scalar_words)
        self.statistics.zero_()

    def _add(self, values: Tensor, words: dict[int, Tensor], start: int = 0) -> bool:
        """Add a group's values, on which alone their split depends, to the words; False if one is not below HUGE."""
        stop = start + len(values)
        low, high = torch.aminmax(values)
        largest = max(-low.item(), high.item())
        if not largest < HUGE:                                  # or NaN
            return False
        if largest == 0:
            return True
        first = max(number for number, unit in enumerate(UNITS) if largest < REACH * unit)
        last = max(first, MAIN) if UNITS[MAIN] <= largest * torch.finfo(values.dtype).eps / 8 else LAST
        group, spare = self._group[:stop - start].copy_(values), self._spare[:stop - start]
        for number in range(first, last + 1):
            if number not in words:
                words[number] = torch.zeros_like(self._main)
            constant, word = ROUNDING * UNITS[number], words[number][start:stop]
            if number == last:
                word.add_(group.add_(constant).sub_(constant))
            else:
                word.add_(torch.add(group, constant, out=spare).sub_(constant))
                group.sub_(spare)
        return True

    def finish(self) -> None:
        """Nothing is left to do: each pass has ended."""

    def sum_(self, tail: Sequence[float]) -> list[float]:
        """Sum words and tail over the workers, rounding once a word; NaN where a value is not finite or beyond HUGE."""
        counts = [*(number in self._words for number in range(len(UNITS))), *self._not_finite]
        self._counts.copy_(torch.tensor([*counts, *tail], dtype=torch.float64))
        self._workers.sum_(self._sent, "gradients/0")
        found = self._counts.tolist()
        *used, bad_arrays, bad_scalars = found[:len(counts)]
        words = {MAIN: self._main}
        for number in range(len(UNITS)):
            if used[number] and number != MAIN:
                word = self._words[number] if number in self._words else torch.zeros_like(self._main)
                words[number] = self._workers.sum_(word, f"gradients/word{number}")
        total, *smaller = (words[number] for number in sorted(words))
        for word in smaller:
            total.add_(word)
        self._flat[:self._arrays].copy_(total.fill_(math.nan) if bad_arrays else total)
        for slot in self._slots:
            slot.parameter.grad = slot.view
        first, *last = [math.nan if bad_scalars else sum(values) for values in zip(
            *(word.tolist() for word in self._scalar_words.values()))]
        rest = found[len(counts):]
        return [first, *rest[1:len(rest) - len(last)], *last]
