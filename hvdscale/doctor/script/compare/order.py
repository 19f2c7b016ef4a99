"""Which batches belong to which update: by their order, whenever they were fetched."""
from __future__ import annotations

from statistics import median

from ..record import Iteration, LoadedBatch, OptimizerUpdates, Record

Seen = tuple[int, int, int]         # an update, its passes, and the batches that had been fetched by its last one


def batches_of(record: Record, optimizer: OptimizerUpdates) -> list[list[LoadedBatch]]:
    """The batches of each update of an optimizer.

    Loops, and wrappers of loaders, read ahead. The first update of an epoch then seems to have more batches than its
    passes need, and the last one none; so batches are handed out in their order, at the rate of the updates between.
    """
    found: list[list[LoadedBatch]] = [[] for _ in optimizer.updates]
    for at, iteration in enumerate(record.iterations):
        seen = _seen(optimizer, at) if iteration.trained else []
        begin = 0
        for (update, *_), end in zip(seen, _ends(iteration, seen)):
            found[update] += iteration.batches[begin:end]
            begin = max(begin, end)
    return found


def _seen(optimizer: OptimizerUpdates, iteration: int) -> list[Seen]:
    """The updates with passes that followed batches of the iteration."""
    found = []
    for at, update in enumerate(optimizer.updates):
        counts = [one.fetched[iteration] for one in update.passes if iteration in one.fetched]
        if counts:
            found.append((at, len(counts), counts[-1]))
    return found


def _ends(iteration: Iteration, seen: list[Seen]) -> list[int]:
    """How many batches each of the updates, and those before it, have used."""
    if not seen:
        return []
    counts = [count for *_, count in seen]
    fetched = [now - before for before, now in zip([0, *counts], counts)]
    ahead = _ahead(fetched, [passes for _, passes, _ in seen])
    each = int(median(fetched[1:-1] or fetched[1:] or [fetched[0] - ahead]))
    ends: list[int] = []
    for new, count in zip(fetched, counts):
        before = ends[-1] if ends else 0
        used = count - ahead if new else min(count, before + each)
        ends.append(max(used, before))
    if iteration.ended or iteration.cut is not None:
        ends[-1] = counts[-1]
    return ends


def _ahead(fetched: list[int], passes: list[int]) -> int:
    """Batches that are fetched before they are needed, by the first update: a second one of as many passes needs
    none of them."""
    if len(fetched) > 1 and passes[0] == passes[1]:
        return max(0, fetched[0] - fetched[1])
    return max(0, fetched[0] - passes[0]) if len(fetched) > 1 else 0
