"""The records of a run on one worker and of one on several, and what may be compared between them."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..record import Iteration, Pass, Record, Update

LIMIT, ROUGH_LIMIT = 1e-3, 5e-2         # of a relative difference, in 32 bits or more and in fewer


@dataclass(frozen=True)
class Pair:
    """The two runs.

    one    the record of the only rank;  many  one a rank
    batch  the global batch of both; None: each run had its own
    """

    one: Record
    many: list[Record]
    batch: int | None

    @property
    def workers(self) -> int:
        return len(self.many)

    @property
    def updates(self) -> int:
        """Updates that all ranks of both runs have made."""
        return min(len(record.updates) for record in (self.one, *self.many))

    @property
    def limit(self) -> float:
        passes = (one for record in (self.one, *self.many) for one in passes_of(record.updates))
        return ROUGH_LIMIT if any(one.rough for one in passes) else LIMIT

    def at(self, number: int) -> list[Update]:
        """The update of this number, on each rank of the many."""
        return [record.updates[number] for record in self.many]

    @property
    def same_start(self) -> bool:
        """Whether all ranks of both runs started from the same parameters."""
        return {self.one.updates[0].digest} == {record.updates[0].digest for record in self.many}

    @property
    def same_examples(self) -> bool:
        """Whether the first update of both took the same examples; False where they are unknown."""
        one, many = keys_of([self.one], 0), keys_of(self.many, 0)
        return bool(one) and Counter(one[0]) == Counter(key for keys in many for key in keys)

    @property
    def drew(self) -> bool:
        """Whether random numbers entered the first update of either run."""
        passes = [one for record in (self.one, *self.many) for one in record.updates[0].passes]
        return any(record.drew_in_workers for record in (self.one, *self.many)) or any(
            one.draws.moved or any(batch.draws and batch.draws.moved for batch in one.batches) for one in passes)


def trained(record: Record) -> list[Iteration]:
    return [one for one in record.iterations if one.trained]


def known_by_index(records: list[Record]) -> bool:
    """Whether an index means the same example on all ranks: their data sets have one class and length."""
    kinds = {one.data for record in records for one in trained(record)[:1]}
    return len(kinds) == 1 and not any(one.iterable for record in records for one in trained(record))


def keys_of(records: list[Record], number: int) -> list[list]:
    """What identifies the examples of an update on each rank, index or contents; empty where nothing does."""
    by_index = known_by_index(records)
    found = []
    for record in records:
        batches = [batch for one in record.updates[number].passes for batch in one.batches]
        keys = [key for batch in batches for key in (batch.ids if by_index else batch.contents)]
        if not keys or len(keys) != sum(batch.examples for batch in batches):
            return []
        found.append(keys)
    return found


def examples_of(updates: list[Update]) -> int:
    """Examples of an update on all ranks together; 0 where no loader gave any."""
    return sum(one.examples for update in updates for one in update.passes)


def apart(a: np.ndarray, b: np.ndarray) -> float:
    """The norm of the difference, relative to the larger of both."""
    larger = max(np.linalg.norm(a), np.linalg.norm(b))
    return float(np.linalg.norm(a - b) / larger) if larger else 0.0


def passes_of(updates: list[Update]) -> Iterator[Pass]:
    """The passes of all updates given, such as those of one number on each rank."""
    for update in updates:
        yield from update.passes
