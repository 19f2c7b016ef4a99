"""The global batch as a function of the step: constant, or changing at given steps.

    batches = BatchSchedule((64, 128), (0, 2000))
    batches.examples_before(2001)           -> 2000 * 64 + 128
"""
from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

from ..errors import PlanError

Number = TypeVar("Number", int, float)
# what becomes of the learning rate where the batch changes, see ``settle.settle_rate_factors``
FOLLOWS_RULE, STAYS, SEESAW = "rule", "stay", "seesaw"
RATES = (FOLLOWS_RULE, STAYS, SEESAW)


@dataclass(frozen=True, order=True)
class BatchSchedule:
    """Pieces of constant batch; a constant batch is the schedule of one piece."""

    sizes: tuple[int, ...]              # the global batch of each piece, in examples
    starts: tuple[int, ...] = (0,)      # the first step of each: the first is 0, and they grow

    @classmethod
    def of_pairs(cls, pairs: Iterable[Sequence[int]]) -> BatchSchedule:
        """From (first step, batch) pairs; neighboring pieces of one batch are joined."""
        starts, sizes = zip(*(next(piece) for _, piece in groupby(pairs, itemgetter(1))))
        return cls(sizes, starts)

    @classmethod
    def by_examples(cls, pairs: Sequence[Sequence[float]]) -> BatchSchedule:
        """From (examples, batch) pairs: a batch begins at the first step by which that many were seen."""
        found = cls((int(pairs[0][1]),))
        for examples, size in pairs[1:]:
            start = found.steps_holding(examples)
            if start <= found.starts[-1]:
                raise PlanError(f"the batch would change to {found.sizes[-1]} and to {int(size)} at step {start}; "
                                "leave one of the two out, or set them further apart")
            found = cls((*found.sizes, int(size)), (*found.starts, start))
        return cls.of_pairs(found.pairs)

    @classmethod
    def of_problem(cls, problem: Mapping[str, Any], global_batch: int) -> BatchSchedule:
        pairs = problem.get("batch_schedule")
        return cls.of_pairs(pairs) if pairs else cls((global_batch,))

    def divided(self, parts: int) -> BatchSchedule:
        return BatchSchedule(tuple(size // parts for size in self.sizes), self.starts)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """(first step, batch) of each piece."""
        return tuple(zip(self.starts, self.sizes))

    def keys(self) -> dict[str, Any]:
        if self.is_constant:
            return {"global_batch": self.first}
        return {"batch_schedule": [list(pair) for pair in self.pairs]}

    @property
    def is_constant(self) -> bool:
        return len(self.sizes) == 1

    @property
    def first(self) -> int:
        return self.sizes[0]

    @property
    def smallest(self) -> int:
        return min(self.sizes)

    @property
    def largest(self) -> int:
        return max(self.sizes)

    def pieces(self) -> Iterator[tuple[int, float, int]]:
        """(first step, the next piece's or inf, batch) of each piece."""
        return zip(self.starts, (*self.starts[1:], math.inf), self.sizes)

    def piece(self, step: float) -> int:
        return bisect_right(self.starts, step) - 1

    def at(self, step: int) -> int:
        """The batch of the update that follows ``step`` done steps."""
        return self.sizes[self.piece(step)]

    def examples_before(self, step: Number) -> Number:
        """Examples in the first ``step`` steps: a whole number of a whole number; inf of inf."""
        at = bisect_right(self.starts, step) - 1
        ended = zip(self.sizes[:at], self.starts, self.starts[1:])
        return sum(size * (end - start) for size, start, end in ended) + (step - self.starts[at]) * self.sizes[at]

    def mean_before(self, step: float) -> float:
        """The mean batch of the first ``step`` steps; that of the last piece for inf and NaN."""
        if len(self.sizes) == 1 or not math.isfinite(step):
            return self.sizes[-1]
        return self.examples_before(step) / step if step > self.starts[1] else self.sizes[0]

    def steps_holding(self, examples: float) -> int:
        """The fewest steps with at least that many examples; exact of a whole number."""
        before = [*map(self.examples_before, self.starts)]
        at = max(0, bisect_left(before, examples) - 1)
        left, size = examples - before[at], self.sizes[at]
        return self.starts[at] + (-(-left // size) if isinstance(left, int) else math.ceil(left / size))

    def in_brief(self) -> str:
        return f"{self.sizes[0]:,}" + (f" to {self.sizes[-1]:,}" if len(self.sizes) > 1 else "")

    def __str__(self) -> str:
        return ", ".join(f"{size} from step {start}" if start > 0 else str(size) for start, size in self.pairs)
