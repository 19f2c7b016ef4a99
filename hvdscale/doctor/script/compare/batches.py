"""Which batches belong to which update, whenever they were fetched; whether an index means one example on all ranks."""
from __future__ import annotations

from statistics import median

from ..record import Iteration, LoadedBatch, OptimizerUpdates, Record

Contents = dict[int | str, str]         # of an example, by its index


def batches_of(record: Record, optimizer: OptimizerUpdates) -> list[list[LoadedBatch]]:
    """The batches of each update of an optimizer.

    Loops, and wrappers of loaders, read ahead. The first update of an epoch then seems to have more batches than its
    passes need, and the last one none; so batches are handed out in their order, at the rate of the updates between.
    """
    found: list[list[LoadedBatch]] = [[] for _ in optimizer.updates]
    for number, iteration in enumerate(record.iterations):
        if not iteration.trained:
            continue
        fetched = {at: [one.fetched[number] for one in update.passes if number in one.fetched]
                   for at, update in enumerate(optimizer.updates)}
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
    """Whether all ranks of the runs have one data set of that class and length; None if nothing shows it.

    Ranks may have files of their own. Where examples are augmented, a part that is not, such as the label, is enough:
    it has to differ between examples, and to agree at each index that two ranks have read.
    """
    read = [{at: content for one in record.iterations if one.data == data and not one.iterable for batch in one.batches
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
