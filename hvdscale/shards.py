"""Which training examples make up each step, and which of them each worker takes.

The example stream is a pure function of (seed, epoch): the permutations of the epochs, joined end to end, cut into
steps. A step's examples stand at positions 0 .. B-1; ghost groups partition these positions, and each worker takes a
run of them. So the worker count decides who computes, never what is computed.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .streams import stream_key


@lru_cache(maxsize=4)
def epoch_order(examples: int, seed: int, epoch: int) -> np.ndarray:
    """The order of the examples 0 .. examples-1 in an epoch: int64, shape (examples,).

    Sorted by 64 random bits each, which are the same in every numpy release (a bit generator's stream is fixed, the
    methods built on it are not).
    """
    bits = np.random.Philox(key=stream_key(seed, "order", epoch)).random_raw(examples)
    order = np.argsort(bits, kind="stable")
    order.flags.writeable = False
    return order


@dataclass(frozen=True)
class Stream:
    """The examples of every step.

    last_batch  carry: every step has global_batch examples, a step may span two epochs; short: an epoch's last step has
                what is left; drop: what is left is not visited in that epoch
    """

    examples: int
    global_batch: int
    seed: int
    last_batch: str = "carry"

    @property
    def steps_per_epoch(self) -> float:
        """Steps in an epoch; a fraction where batches are carried over."""
        ratio = self.examples / self.global_batch
        return {"carry": ratio, "short": math.ceil(ratio), "drop": math.floor(ratio)}[self.last_batch]

    def size(self, step: int) -> int:
        """Examples in the step."""
        if self.last_batch != "short" or (step + 1) % self.steps_per_epoch:
            return self.global_batch
        return self.examples - (self.steps_per_epoch - 1) * self.global_batch

    def examples_before(self, step: int) -> int:
        """Examples in the steps 0 .. step-1."""
        if self.last_batch != "short":
            return step * self.global_batch
        epochs, rest = divmod(step, self.steps_per_epoch)
        return epochs * self.examples + rest * self.global_batch

    def indices(self, step: int, start: int, stop: int) -> np.ndarray:
        """Examples at the step's positions start .. stop-1: int64, shape (stop - start,)."""
        if self.last_batch == "carry":
            epoch, offset = divmod(step * self.global_batch + start, self.examples)
        else:
            epoch, rest = divmod(step, self.steps_per_epoch)
            offset = rest * self.global_batch + start
        parts, wanted = [np.empty(0, np.int64)], stop - start
        while wanted > 0:
            parts.append(epoch_order(self.examples, self.seed, epoch)[offset:offset + wanted])
            wanted, epoch, offset = wanted - len(parts[-1]), epoch + 1, 0
        return np.concatenate(parts)


def even_bounds(total: int, parts: int) -> list[int]:
    """Bounds of ``parts`` runs of 0 .. total-1 whose lengths differ by one at most: parts + 1 numbers."""
    return [total * part // parts for part in range(parts + 1)]


def group_bounds(batch: int, ghost_batch: int) -> list[int]:
    """Bounds of the ghost groups of a step: evenly sized, at most ghost_batch examples each (one more where the last
    would be a single example), never a group of one unless the step has one example."""
    return even_bounds(batch, max(1, min(math.ceil(batch / ghost_batch), batch // 2)))


def share_bounds(batch: int, ghost_batch: int, workers: int, accumulate: int) -> list[list[int]]:
    """For each rank the bounds of its passes, accumulate + 1 positions of the step.

    Ranks take whole ghost groups, counts differing by one group at most; where there are fewer groups than ranks (or
    passes of a rank), single examples instead.
    """
    groups = group_bounds(batch, ghost_batch)
    units = groups if len(groups) > workers else list(range(batch + 1))
    ranks = even_bounds(len(units) - 1, workers)
    return [_passes(units[ranks[r]:ranks[r + 1] + 1], accumulate) for r in range(workers)]


def _passes(units: list[int], accumulate: int) -> list[int]:
    if len(units) - 1 < accumulate:
        units = list(range(units[0], units[-1] + 1))
    return [units[i] for i in even_bounds(len(units) - 1, accumulate)]
