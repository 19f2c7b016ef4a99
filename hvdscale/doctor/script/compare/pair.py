"""The records of a run on one worker and of one on several, and what may be compared between them; and how the gradient
that an optimizer took is made of the ranks' local ones: weights by least squares."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from math import isclose
from pathlib import Path
from statistics import median

import numpy as np

from ...finding import Kinds
from ..record import BackwardPass, Clip, Iteration, LoadedBatch, LossCall, OptimizerUpdates, Record, Update

KINDS = Kinds(Path(__file__).with_name("findings.toml"))
Contents = dict[int | str, str]         # of an example, by its index
LIMIT, ROUGH_LIMIT = 1e-3, 5e-2         # of a relative difference, in 32 bits or more and in fewer
CLOSE = 0.02            # of a factor, relative
PARALLEL = 0.9995       # cosine of gradients that differ by a factor alone, where rounding has its part
DEPARTED = 0.05         # of a later gradient, relative, where rounding has grown, at most
GROWTH = 100            # times the distance of the parameters, by what they have moved
DRIFTED = 0.02          # of that distance, from which on parameters are others
ACTIVE = 0.999          # factor of clipping under which it has changed anything
ROUNDED = 1e-6          # likewise, of parameters to which something was added and taken off again


@dataclass(eq=False)
class Pair:
    """The two runs."""
    one: Record                 # of the only rank
    many: list[Record]          # one a rank
    batch: int | None           # the global batch of both; None: each run had its own
    optimizer: int = 0          # whose updates are compared, in the order in which they first stepped
    base: int = 1               # how many ranks ``one`` is, of a script that cannot run on one

    def __post_init__(self) -> None:
        self.finding = partial(KINDS.finding, about=self)       # its words know what this has, such as its workers
        self.records, self.library = [self.one, *self.many], self.many[0].library
        self.workers, self.loops = len(self.many), [one for record in self.many for one in trained(record)]
        self.times = self.workers / self.base       # how many times as many the second run has
        steps = [self.steps(record) for record in self.records]
        self.updates = min(len(one.updates) for one in steps)           # that all ranks of both runs have made
        self.compared = len(self.whole)
        self.flat = any(one.flat for one in steps)      # the optimizer has other tensors than the model, such as parts
        self.limit = ROUGH_LIMIT if any(one.rough for each in steps for one in passes_of(each.updates)) else LIMIT
        self._batches = {id(record): batches_of(record, one.updates) for record, one in zip(self.records, steps)}

    @cached_property
    def whole(self) -> list[int]:
        """The updates that were made before a watcher ended their epoch: a wrapper's last one may then lack passes."""
        late: set[int] = set()
        for record in self.records:
            cut = {number: one.cut for number, one in enumerate(record.iterations) if one.cut is not None}
            late |= {at for at in range(min(cut.values(), default=self.updates), self.updates) if any(
                one.fetched.keys() & cut.keys() for one in self.steps(record).updates[at].passes)}
        return [at for at in range(self.updates) if at not in late] or [*range(self.updates)]

    def steps(self, record: Record) -> OptimizerUpdates:
        """The updates of the optimizer in a record; of none, where the rank did not come to it."""
        return (record.optimizers + [OptimizerUpdates("", [])] * (self.optimizer + 1))[self.optimizer]

    def batches(self, record: Record, number: int) -> list[LoadedBatch]:
        """The batches of an update on one rank."""
        return self._batches[id(record)][number]

    def at(self, number: int) -> list[Update]:
        """The update of this number, on each rank of the many."""
        return [self.steps(record).updates[number] for record in self.many]

    def on_one(self, number: int) -> Update:
        """The update of this number on one worker."""
        return self.steps(self.one).updates[number]

    @cached_property
    def both(self) -> dict[int, BothRuns]:
        """The whole updates in both runs, by number."""
        return {at: BothRuns(self, at) for at in self.whole}

    @property
    def same_start(self) -> bool:
        """Whether all ranks of both runs started from the same parameters, of all optimizers, but for rounding."""
        first, *others = ([each.updates[0].parameters for at, each in enumerate(record.optimizers)
                           if not (at and each.flat)] for record in self.records)
        return all(len(each) == len(first) and max(map(apart, each, first), default=0.0) <= ROUNDED for each in others)

    def obstacles(self, at: int = 0) -> list[str]:
        """The names of what keeps an update of both runs from being compared."""
        first = [update.gradient for update in (self.on_one(0), *self.at(0))]
        met = {"other_batch": self.batch is None, "sharded": any(np.isnan(each).any() for each in first),
               "other_start": not self.same_start,
               "unknown_examples": not self.keys(self.many, 0) or not self.keys([self.one], 0),
               "other_examples": not all(map(self.same_examples, range(at + 1))), "random": self.drew_by(at),
               "batch_norm": any(record.batch_norms for record in self.many)}
        return [name for name, is_so in met.items() if is_so]

    @property
    def why_incomparable(self) -> str:
        """Why the first updates of both runs cannot be compared; empty where they can."""
        return next((KINDS.sentence("incomparable", name, self) for name in self.obstacles()), "")

    @property
    def matches_one(self) -> bool:
        """Whether the first update has the gradient of one worker."""
        one, many = self.both[0].reduction_alone, self.both[0].reduction
        return bool(self.same_start and one and many and one.gradients[0].any()
                    and apart(one.gradients[0], many.gradients[0]) <= self.limit)

    def same_examples(self, number: int) -> bool:
        """Whether an update of both took the same examples; False where they are unknown, or a rank leaves some out."""
        one, many = self.keys([self.one], number), self.keys(self.many, number)
        return self.skipped is None and bool(one) and Counter(one[0]) == Counter(key for keys in many for key in keys)

    @cached_property
    def skipped(self) -> int | None:
        """The first update that follows more batches on one rank than on another, of as many backward passes."""
        return next((at for at in self.whole if len({len(self.batches(record, at)) for record in self.many}) > 1
                     and len({len(update.passes) for update in self.at(at)}) == 1), None)

    def keys(self, records: list[Record], number: int) -> list[list]:
        """What identifies the examples of an update on each rank, index or contents; empty where nothing does."""
        found = [self.keys_of(self.batches(record, number)) for record in records]
        return found if all(found) and [*map(len, found)] == self.examples(records, number) else []

    def keys_of(self, batches: list[LoadedBatch]) -> list:
        return [key for batch in batches for key in (batch.ids if self.known_by_index else batch.contents)]

    @property
    def taken(self) -> int:
        """Examples of all updates on all ranks, as far as they are known."""
        return sum(len(keys) for number in range(self.updates) for keys in self.keys(self.many, number))

    @cached_property
    def known_by_index(self) -> bool:
        """Whether an index means the same training example on all ranks: their data sets have one class and length."""
        return self.same_data is not False and not any(loop.iterable for loop in self.loops)

    @cached_property
    def same_data(self) -> bool | None:
        """Whether all ranks train on one data set; None if nothing shows it."""
        kinds = {one.data for record in self.many for one in trained(record)[:1]}
        return same_data(self.records, kinds.pop()) if len(kinds) == 1 else False

    def examples(self, records: list[Record], number: int) -> list[int]:
        """How many examples of an update each rank took; 0 where no loader gave any."""
        return [sum(batch.examples for batch in self.batches(record, number)) for record in records]

    def drew_by(self, number: int) -> bool:
        """Whether random numbers entered an update of either run up to this one, of any optimizer."""
        passes = [one for record in self.records for each in record.optimizers
                  for one in passes_of(each.updates[:number + 1])]
        batches = [one for record in self.records for at in range(number + 1) for one in self.batches(record, at)]
        return (any(record.drew_in_workers for record in self.records) or any(one.prepared.moved for one in passes)
                or any(one.draws and one.draws.moved for one in (*passes, *batches)))

    def parts(self, samples: list[np.ndarray]) -> list[tuple[str, list[np.ndarray]]]:
        """By the name of each parameter, its part of each of the samples."""
        sampled = self.steps(self.many[0]).sampled
        ends = np.cumsum([size for _, size in sampled])
        return [(name, [sample[end - size:end] for sample in samples]) for (name, size), end in zip(sampled, ends)]

    def scaled_parts(self, reference: np.ndarray, found: np.ndarray, updates: list[Update]) -> tuple[str, list[float]]:
        """The first parameter of which each rank's part is another multiple of the reference, and the factors."""
        own = [update.own for update in updates if update.own is not None and not update.own.all()]
        for name, (whole, many, *masks) in self.parts([reference, found, *own]) if own else ():
            parts = [(whole[mask], many[mask]) for mask in masks if whole[mask].any()]
            factors = [float(one @ part / (one @ one)) for one, part in parts]
            apart_by = max((apart(factor * one, part) for factor, (one, part) in zip(factors, parts)), default=0.0)
            if not all(mask.all() for mask in masks) and factors and apart_by <= LIMIT and (
                    max(factors) - min(factors) > LIMIT * max(map(abs, factors))):
                return name, factors
        return "", []


def trained(record: Record) -> list[Iteration]:
    return [iteration for iteration in record.iterations if iteration.trained]


@dataclass(eq=False)
class BothRuns:
    """The update of one number on each rank of the many, and on one worker."""
    pair: Pair
    at: int

    def __post_init__(self) -> None:
        self.ranks, self.alone = self.pair.at(self.at), self.pair.on_one(self.at)
        self.reduction, self.reduction_alone = (
            find_reduction(updates, self.pair.limit) for updates in (self.ranks, [self.alone]))
        self.sum = sum(one.gradient for one in passes_of(self.ranks)) if self.reduction else None
        self.passes, self.passes_of_one = len(self.ranks[0].passes), len(self.alone.passes) / self.pair.base
        self.weighing, alone = (one and one.weighing for one in (self.reduction, self.reduction_alone))
        # the gradient's scale on one worker, and that on many by it; None where a loss is unknown, or the first is zero
        self.scale_alone = alone.scale if alone else None
        self.ratio = self.weighing.scale / self.scale_alone if self.weighing and self.scale_alone else None

    @cached_property
    def comparable(self) -> bool:
        """Whether the gradients must be the same in both runs: all ranks have had the same parameters, examples and
        rates so far, drew nothing, and normalized nothing over a batch."""
        pair = self.pair
        return not pair.obstacles(self.at) and self._drift < DRIFTED and len(
            {update.parameters.tobytes() for update in self.ranks}) == 1 and all(
                pair.on_one(each).rates == pair.at(each)[0].rates for each in range(self.at))

    @property
    def floor(self) -> float:
        """How far gradients may be apart by rounding, which has grown as far as the parameters are apart."""
        return max(self.pair.limit, min(DEPARTED, GROWTH * self._drift))

    @property
    def _drift(self) -> float:
        """How far the parameters before the update are from those of one worker, by how far they have moved."""
        begin, one, many = self.pair.on_one(0).parameters, self.alone.parameters, self.ranks[0].parameters
        moved = float(np.linalg.norm(one - begin)) if len(one) == len(many) else 0.0
        return float(np.linalg.norm(one - many)) / moved if self.at and moved else 0.0

    @property
    def agrees(self) -> bool:
        """Whether the gradient that each rank takes is that of one worker, of the same parameters and examples."""
        return self.comparable and all(apart(self.alone.gradient, one.gradient) <= self.floor for one in self.ranks)

    @property
    def line(self) -> str:
        """The line of the loss, or of the backward pass."""
        last = self.ranks[0].passes[-1]
        return last.losses[0].line if last.losses and last.losses[0].line else last.line


def batches_of(record: Record, updates: list[Update]) -> list[list[LoadedBatch]]:
    """The batches of each of an optimizer's updates. Loops, and wrappers of loaders, read ahead: the first update of an
    epoch then seems to have more batches than its passes need, and the last one none. So batches are handed out in
    their order, at the rate of the updates between."""
    found: list[list[LoadedBatch]] = [[] for _ in updates]
    for number, iteration in enumerate(record.iterations):
        fetched = {at: counts for at, update in enumerate(updates) if iteration.trained and (
            counts := [one.fetched[number] for one in update.passes if number in one.fetched])}
        for at, (begin, end) in zip(fetched, pairwise(_ends(iteration, [*fetched.values()]))):
            found[at] += iteration.batches[begin:end]
    return found


def _ends(iteration: Iteration, seen: list[list[int]]) -> list[int]:
    """How many batches were used before the first update, 0, and by the end of each; ``seen``: fetched by each pass."""
    counts, ends = [0, *(each[-1] for each in seen)], [0]
    fetched = [now - before for before, now in pairwise(counts)]
    ahead = 0                   # fetched by the first update before they are needed
    if len(seen) > 1:
        ahead = max(0, fetched[0] - (fetched[1] if len(seen[0]) == len(seen[1]) else len(seen[0])))
    each = int(median(fetched[1:-1] or fetched[1:] or [sum(fetched) - ahead]))
    for new, count in zip(fetched, counts[1:]):
        ends.append(max(ends[-1], count - ahead if new else min(count, ends[-1] + each)))
    if iteration.ended or iteration.cut is not None:
        ends[-1] = counts[-1]
    return ends


def same_data(records: list[Record], data: tuple[str, int]) -> bool | None:
    """Whether all ranks of the runs have one data set of that class and length, or files of their own; None if nothing
    shows it. Where examples are augmented, a part that is not, such as the label, is enough: it has to differ between
    examples, and to agree at each index that two ranks have read."""
    read = [{at: content for one in trained(record) if one.data == data and not one.iterable for batch in one.batches
             for at, content in zip(batch.ids, batch.contents)} for record in records]
    read = [one for one in read if one]
    joined = set(range(len(read[:1])))
    for _ in read:
        for at, one in enumerate(read):
            for other in list(joined):
                agree = _agree(one, read[other])
                if agree is False:
                    return False
                if agree:
                    joined.add(at)
    return True if read and len(joined) == len(read) > 1 else None


def _agree(one: Contents, other: Contents) -> bool | None:
    """Whether two ranks read the same at the indices that both read; None where there are none."""
    common = [at for at in one if at in other]
    if not common:
        return None
    if all(one[at] == other[at] for at in common):
        return True
    pairs = [(one[at].split("."), other[at].split(".")) for at in common]
    parts = min(len(each) for both in pairs for each in both)
    return any(all(a[at] == b[at] for a, b in pairs) and len({a[at] for a, _ in pairs}) > 1 for at in range(parts))


@dataclass(frozen=True)
class Reduction:
    """One update's gradient as sum over ranks and passes of weight times local gradient."""
    weights: np.ndarray             # shape (ranks that took it, ranks that computed, passes)
    residual: float                 # what the sum leaves of it, relative
    spread: float                   # how far the ranks' gradients are apart, relative
    gradients: list[np.ndarray]     # of each rank, after the reduction and before clipping that came later
    weighing: Weighing | None       # of the targets; None where some pass's loss is unknown
    clipped: list[float] | None = None      # factors by which ranks clipped their local gradients, before the reduction


def find_reduction(updates: list[Update], limit: float) -> Reduction | None:
    """The reduction of an update, given on each rank; None where their passes differ, or some number is not finite."""
    numbers = {len(update.passes) for update in updates}
    sizes = {len(one) for update in updates for one in (update.gradient, *(each.gradient for each in update.passes))}
    if len(numbers) != 1 or 0 in numbers or len(sizes) > 1 or not are_finite(updates):
        return None
    local = np.stack([one.gradient for one in passes_of(updates)], axis=1)
    final = _solve(local, [update.gradient for update in updates], updates)
    if not all(update.clips for update in updates):
        return final
    before = _solve(local, [*map(_unclipped, updates)], updates)
    if len(updates) == 1 or before.spread <= limit and final.residual >= before.residual - limit:
        return before
    clipped = [factor_of(update.clips[-1]) for update in updates]
    return replace(final, clipped=clipped) if before.spread > limit and final.spread <= limit else before


def _unclipped(update: Update) -> np.ndarray:
    """The gradient without what clipped it after the last pass; if it was scaled after one clip, as it was then."""
    times, clip = factor(update.before_clips, update.gradient), factor_of(update.clips[-1])
    scaled = times and len(update.clips) == 1 and not close(times, clip)
    return update.gradient / clip if scaled else update.before_clips


def factor_of(clip: Clip) -> float:
    return min(1.0, clip.limit / max(clip.norm, 1e-12))


def are_finite(updates: list[Update]) -> bool:
    """Whether all gradients are, the local ones and those that the steps took."""
    return all(np.isfinite(one).all() for update in updates for one in (
        update.gradient, update.before_clips, *(each.gradient for each in update.passes)))


def _solve(local: np.ndarray, gradients: list[np.ndarray], updates: list[Update]) -> Reduction:
    shape = len(updates), len(updates[0].passes)
    own = [slice(None) if update.own is None or not update.own.any() else update.own for update in updates]
    weights = np.stack([np.linalg.lstsq(local[at], each[at], rcond=None)[0].reshape(shape)
                        for at, each in zip(own, gradients)])
    residual = max(apart(local[at] @ weight.reshape(-1), each[at]) for at, weight, each in zip(own, weights, gradients))
    spread = max(apart(gradients[0], each) for each in gradients)
    return Reduction(weights, residual, spread, gradients, weigh(updates, weights[0], gradients[0]))


def only_call(one: BackwardPass) -> LossCall | None:
    """The pass's loss call; None where there are several or none that counts targets."""
    return one.losses[0] if len(one.losses) == 1 and one.losses[0].count and one.losses[0].total else None


@dataclass(frozen=True)
class Weighing:
    """With which weight the targets of all ranks and passes enter the gradient."""
    scale: float            # 1: the gradient is the mean over all targets, up to how they are weighed among each other
    counts: np.ndarray      # of targets, shape (ranks, passes)
    weights: np.ndarray     # of each rank's and pass's mean in the gradient, in the same shape
    error: float            # difference to the mean over all targets times ``scale``, relative


def weigh(updates: list[Update], weights: np.ndarray, gradient: np.ndarray) -> Weighing | None:
    calls = [[only_call(one) for one in update.passes] for update in updates]
    if not all(call for row in calls for call in row):
        return None
    counts, totals = (np.array([[getattr(call, name) for call in row] for row in calls]) for name in ("count", "total"))
    scale = float(f"{(weights * totals).sum():.6g}")       # without what rounding adds
    exact = sum(scale * counts[rank, at] / counts.sum() / totals[rank, at] * one.gradient
                for rank, update in enumerate(updates) for at, one in enumerate(update.passes))
    return Weighing(scale, counts, weights * totals, apart(exact, gradient))


def close(value: float, to: float) -> bool:
    return isclose(value, to, rel_tol=CLOSE)


def alike(values: Sequence[float] | np.ndarray) -> bool:
    """Whether all are the same, but for CLOSE."""
    return np.allclose(values, values[:1], rtol=CLOSE)


def factor(one: np.ndarray, many: np.ndarray) -> float | None:
    """How many times one gradient the other is; None where it points elsewhere."""
    lengths = float(np.linalg.norm(one) * np.linalg.norm(many))
    return float(one @ many / (one @ one)) if lengths and one @ many / lengths >= PARALLEL else None


def apart(a: np.ndarray, b: np.ndarray) -> float:
    """The norm of the difference, relative to the larger of both; 1 where they have different lengths."""
    if len(a) != len(b):
        return 1.0
    larger = max(np.linalg.norm(a), np.linalg.norm(b))
    return float(np.linalg.norm(a - b) / larger) if larger else 0.0


def passes_of(updates: list[Update]) -> Iterator[BackwardPass]:
    """The passes of all updates given, such as those of one number on each rank."""
    for update in updates:
        yield from update.passes
