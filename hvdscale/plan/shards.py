"""Which training examples make up each step, and which of them each worker takes.

The example stream is a pure function of (seed, epoch): the permutations of the epochs, joined end to end, cut into
steps. A step's examples have positions 0 .. B-1; ghost groups partition these positions, and each pass of a worker
takes a run of them. So the worker count decides who computes, never what is computed.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from .batch_schedule import BatchSchedule


def stream_key(seed: int, purpose: str, *where: int) -> int:
    """The key of a random stream, 63 bits: the same for the same seed, purpose and place on every machine and rank."""
    text = "/".join([str(seed), purpose, *map(str, where)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


@lru_cache(maxsize=2)
def epoch_order(examples: int, seed: int, epoch: int) -> np.ndarray:
    """The order of the examples in an epoch: uint32 (int64 for 2^32 and more), shape (examples,). They are sorted by 64
    random bits each, the raw stream of a bit generator, which is the same in every numpy release."""
    bits = np.random.Philox(key=stream_key(seed, "order", epoch)).random_raw(examples)
    order = np.argsort(bits, kind="stable").astype(np.uint32 if examples < 2**32 else np.int64, copy=False)
    order.flags.writeable = False
    return order


class Visits(NamedTuple):
    """Examples, in which epoch each is visited, and the seed: the key of every random draw about an example."""

    indices: np.ndarray
    epochs: np.ndarray
    seed: int = 0


class Pass(NamedTuple):
    """Positions start .. stop-1 of a step in one pass of a worker; shared: another's has members of their groups."""

    start: int
    stop: int
    shared: bool = False


@dataclass(frozen=True)
class Stream:
    """The examples of every step.

    batches     the global batch of each step; constant unless last_batch is carry
    last_batch  carry: every step has its global batch, a step may span two epochs; short: an epoch's last step has
                what is left; drop: what is left is not visited in that epoch
    """

    examples: int
    batches: BatchSchedule
    seed: int
    last_batch: str = "carry"

    @property
    def _whole_steps(self) -> int:
        whole, left = divmod(self.examples, self.batches.first)
        return whole + (left > 0 and self.last_batch == "short")

    def steps_in(self, epochs: float) -> int:
        if self.last_batch == "carry":
            return self.batches.steps_holding(math.ceil(epochs * self.examples - 1e-6))
        return math.ceil(epochs * self._whole_steps - 1e-9)

    def size(self, step: int) -> int:
        if self.last_batch != "short" or (step + 1) % self._whole_steps:
            return self.batches.at(step)
        return self.examples - (self._whole_steps - 1) * self.batches.first

    @property
    def sizes(self) -> set[int]:
        left = self.examples % self.batches.first if self.last_batch == "short" else 0
        return {*self.batches.sizes, left} - {0}

    def examples_before(self, step: int) -> int:
        """Examples in the steps 0 .. step-1."""
        if self.last_batch != "short":
            return self.batches.examples_before(step)
        epochs, rest = divmod(step, self._whole_steps)
        return epochs * self.examples + rest * self.batches.first

    def steps_holding(self, examples: int) -> int:
        step = self.batches.steps_holding(examples)
        while self.examples_before(step) < examples:        # where an epoch's last step is short
            step += 1
        return step

    def visits(self, step: int, start: int, stop: int) -> Visits:
        """Examples at the step's positions start .. stop-1."""
        if self.last_batch == "carry":
            epoch, offset = divmod(self.batches.examples_before(step) + start, self.examples)
        else:
            epoch, rest = divmod(step, self._whole_steps)
            offset = rest * self.batches.first + start
        parts, wanted = [], stop - start
        while True:
            indices = epoch_order(self.examples, self.seed, epoch)[offset:offset + wanted].astype(np.int64)
            parts.append((indices, np.full(len(indices), epoch)))
            wanted, epoch, offset = wanted - len(indices), epoch + 1, 0
            if wanted <= 0:
                indices, epochs = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts))
                return Visits(indices, epochs, self.seed)


def even_bounds(total: int, parts: int) -> list[int]:
    """Bounds of ``parts`` runs of 0 .. total-1 whose lengths differ by one at most: parts + 1 numbers."""
    return [total * part // parts for part in range(parts + 1)]


def group_bounds(batch: int, ghost_batch: int) -> list[int]:
    """Bounds of the ghost groups of a step: evenly sized, at most ghost_batch examples each (one more where the last
    would be a single example), never a group of one unless the step has one example."""
    return even_bounds(batch, max(1, min(math.ceil(batch / ghost_batch), batch // 2)))


def step_passes(batch: int, ghost_batch: int, workers: int, accumulate: int) -> list[list[Pass]]:
    """The passes of each rank over a step, accumulate of them.

    Where there are enough ghost groups, ranks take runs of whole groups, counts differing by one at most, and cut them
    into passes. Where there are fewer, the ranks go through the groups together, pass by pass, and share those of a
    pass example by example. Where there are fewer groups than passes, single examples are dealt out.
    """
    groups = group_bounds(batch, ghost_batch)
    if len(groups) > workers * accumulate:
        return [[Pass(*run) for run in _runs(share, accumulate)] for share in _shares(groups, workers)]
    if len(groups) > accumulate:
        by_pass = [_shared_pass(units, workers) for units in _shares(groups, accumulate)]
        return [list(passes) for passes in zip(*by_pass)]
    return [[Pass(*run, shared=True) for run in _runs(share, accumulate)]
            for share in _shares(range(batch + 1), workers)]


def group_passes(batch: int, ghost_batch: int, workers: int) -> list[list[Pass]]:
    """For each rank its passes over a step, one per ghost group; none for some ranks where there are few groups."""
    return [[Pass(*group) for group in zip(share, share[1:])]
            for share in _shares(group_bounds(batch, ghost_batch), workers)]


def largest_pass(batch: int, ghost_batch: int, workers: int, accumulate: int) -> int:
    ranks = step_passes(batch, ghost_batch, workers, accumulate)
    return max(part.stop - part.start for passes in ranks for part in passes)


def fewest_passes(batch: int, ghost_batch: int, workers: int, most: int, at_most: int) -> int:
    """The least accumulation under which no pass has more than ``most`` examples, up to ``at_most`` passes."""
    least = max(1, batch // (workers * most))
    return next((k for k in range(least, at_most) if largest_pass(batch, ghost_batch, workers, k) <= most), at_most)


def _shared_pass(groups: Sequence[int], workers: int) -> list[Pass]:
    """Each rank's part of one pass over these groups (bounds): whole groups, or examples where there are too few."""
    start, stop = groups[0], groups[-1]
    shared = len(groups) - 1 < workers <= stop - start
    return [Pass(share[0], share[-1], shared)
            for share in _shares(range(start, stop + 1) if shared else groups, workers)]


def _shares(bounds: Sequence[int], parts: int) -> list[Sequence[int]]:
    """The runs between the bounds dealt out evenly: for each part its bounds, one more than it has runs."""
    cuts = even_bounds(len(bounds) - 1, parts)
    return [bounds[a:b + 1] for a, b in zip(cuts, cuts[1:])]


def _runs(bounds: Sequence[int], parts: int) -> list[tuple[int, int]]:
    return [(share[0], share[-1]) for share in _shares(bounds, parts)]
