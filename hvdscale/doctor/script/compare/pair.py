"""The records of a run on one worker and of one on several, and what may be compared between them."""
from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ...finding import Finding, Kinds
from ..record import Iteration, LoadedBatch, OptimizerUpdates, Record, Update
from .reduction import Reduction, Weighing, apart, factors_of_parts, find_reduction, passes_of, weigh

KINDS = Kinds(Path(__file__).with_name("findings.toml"))
Contents = dict[int | str, str]         # of an example, by its index
LIMIT, ROUGH_LIMIT = 1e-3, 5e-2         # of a relative difference, in 32 bits or more and in fewer
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
        self.records, self.library = [self.one, *self.many], self.many[0].library
        self.workers = len(self.many)
        self.times = self.workers / self.base       # how many times as many the second run has
        steps = [self.steps(record) for record in self.records]
        self.updates = min(len(one.updates) for one in steps)           # that all ranks of both runs have made
        self.compared = len(self.whole)
        self.flat = any(one.flat for one in steps)      # the optimizer has other tensors than the model, such as parts
        self.limit = ROUGH_LIMIT if any(one.rough for each in steps for one in passes_of(each.updates)) else LIMIT
        self._batches = {id(record): batches_of(record, one.updates) for record, one in zip(self.records, steps)}

    def finding(self, check: str, kind: str, **given: Any) -> Finding:
        """See Kinds.finding; the words know what this has, such as its workers."""
        return KINDS.finding(check, kind, self, **given)

    @cached_property
    def whole(self) -> list[int]:
        """The updates that were made before a watcher ended their epoch: a wrapper's last one may then lack passes."""
        late: set[int] = set()
        for record in self.records:
            cut = {number: one.cut for number, one in enumerate(record.iterations) if one.cut is not None}
            for at in range(min(cut.values(), default=self.updates), self.updates):
                passes = self.steps(record).updates[at].passes
                if any(one.fetched.keys() & cut.keys() for one in passes):
                    late.add(at)
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
        starts = [[each.updates[0].parameters for at, each in enumerate(record.optimizers) if not (at and each.flat)]
                  for record in self.records]
        return all(len(each) == len(starts[0]) and all(
            one.shape == first.shape and apart(one, first) <= ROUNDED for one, first in zip(each, starts[0]))
            for each in starts)

    def same_examples(self, number: int) -> bool:
        """Whether an update of both took the same examples; False where they are unknown, or a rank leaves some out."""
        if self.skipped is not None:
            return False
        one, many = self.keys([self.one], number), self.keys(self.many, number)
        return bool(one) and Counter(one[0]) == Counter(key for keys in many for key in keys)

    @cached_property
    def skipped(self) -> int | None:
        """The first update that follows more batches on one rank than on another, of as many backward passes."""
        return next((at for at in self.whole if len({len(self.batches(record, at)) for record in self.many}) > 1
                     and len({len(update.passes) for update in self.at(at)}) == 1), None)

    def keys(self, records: list[Record], number: int) -> list[list]:
        """What identifies the examples of an update on each rank, index or contents; empty where nothing does."""
        found = []
        for record in records:
            batches = self.batches(record, number)
            keys = [key for batch in batches for key in (batch.ids if self.known_by_index else batch.contents)]
            if not keys or len(keys) != sum(batch.examples for batch in batches):
                return []
            found.append(keys)
        return found

    @property
    def taken(self) -> int:
        """Examples of all updates on all ranks, as far as they are known."""
        return sum(len(keys) for number in range(self.updates) for keys in self.keys(self.many, number))

    @cached_property
    def known_by_index(self) -> bool:
        """Whether an index means the same training example on all ranks: their data sets have one class and length."""
        first = [one.data for record in self.many for one in trained(record)[:1]]
        iterable = any(one.iterable for record in self.many for one in trained(record))
        return len({*first}) == 1 and not iterable and self.same_data is not False

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
        return (any(record.drew_in_workers for record in self.records)
                or any(one.prepared.moved or one.draws.moved for one in passes)
                or any(batch.draws and batch.draws.moved for record in self.records for at in range(number + 1)
                       for batch in self.batches(record, at)))

    def parts(self, samples: list[np.ndarray]) -> list[tuple[str, list[np.ndarray]]]:
        """By the name of each parameter, its part of each of the samples."""
        sampled = self.steps(self.many[0]).sampled
        ends = np.cumsum([size for _, size in sampled])
        return [(name, [sample[end - size:end] for sample in samples]) for (name, size), end in zip(sampled, ends)]

    def scaled_parts(self, reference: np.ndarray, found: np.ndarray, updates: list[Update]) -> tuple[str, list[float]]:
        """The first parameter of which each rank's part is another multiple of the reference, and the factors."""
        own = [update.own for update in updates if update.own is not None and not update.own.all()]
        for name, (one, many, *masks) in self.parts([reference, found, *own]) if own else ():
            factors = factors_of_parts(one, many, [mask.astype(bool) for mask in masks], LIMIT)
            if factors and not all(mask.all() for mask in masks):
                return name, factors
        return "", []


def trained(record: Record) -> list[Iteration]:
    return [one for one in record.iterations if one.trained]


@dataclass(eq=False)
class BothRuns:
    """The update of one number on each rank of the many, and on one worker."""

    pair: Pair
    at: int

    def __post_init__(self) -> None:
        self.ranks, self.alone = self.pair.at(self.at), self.pair.on_one(self.at)

    @cached_property
    def reduction(self) -> Reduction | None:
        return find_reduction(self.ranks, self.pair.limit)

    @cached_property
    def weighing(self) -> Weighing | None:
        return weigh(self.ranks, self.reduction) if self.reduction else None

    @cached_property
    def reduction_alone(self) -> Reduction | None:
        return find_reduction([self.alone], self.pair.limit)

    @cached_property
    def scale_alone(self) -> float | None:
        """The scale of the gradient on one worker; None where its loss is unknown."""
        by = self.reduction_alone and weigh([self.alone], self.reduction_alone)
        return by.scale if by else None

    @property
    def ratio(self) -> float | None:
        """The scale on many workers by that on one; None where one is unknown or zero."""
        return self.weighing.scale / self.scale_alone if self.weighing and self.scale_alone else None

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
        if not iteration.trained:
            continue
        fetched = {at: [one.fetched[number] for one in update.passes if number in one.fetched]
                   for at, update in enumerate(updates)}
        fetched = {at: counts for at, counts in fetched.items() if counts}
        begin = 0
        for at, end in zip(fetched, _ends(iteration, [*fetched.values()])):
            found[at] += iteration.batches[begin:end]
            begin = max(begin, end)
    return found


def _ends(iteration: Iteration, seen: list[list[int]]) -> list[int]:
    """How many batches each of the updates, and those before it, have used; ``seen``: fetched by each of its passes."""
    if not seen:
        return []
    counts = [each[-1] for each in seen]
    fetched = [now - before for before, now in zip([0, *counts], counts)]
    ahead = 0                   # fetched by the first update before they are needed
    if len(seen) > 1:
        needed = fetched[1] if len(seen[0]) == len(seen[1]) else len(seen[0])
        ahead = max(0, fetched[0] - needed)
    each = int(median(fetched[1:-1] or fetched[1:] or [fetched[0] - ahead]))
    ends: list[int] = []
    for new, count in zip(fetched, counts):
        before = ends[-1] if ends else 0
        used = count - ahead if new else min(count, before + each)
        ends.append(max(used, before))
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
    return any(all(a[part] == b[part] for a, b in pairs) and len({a[part] for a, _ in pairs}) > 1
               for part in range(parts))
