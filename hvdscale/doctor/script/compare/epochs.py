"""The size of an epoch, on each rank and on one worker, and its order from epoch to epoch."""
from __future__ import annotations

from ....formatting.numbers import counted, listed
from ...finding import Finding, Verdict
from ..record import Iteration, Record
from .examples import planned
from .pair import Pair, trained

NAME = "epochs"
IN_ORDER = ("SequentialSampler",)


def epochs(pair: Pair) -> Finding:
    """Whether an epoch has one size on all ranks and in both runs, and another order the second time."""
    if not all(map(trained, pair.records)):
        return Finding(NAME, Verdict.UNSEEN, "the script takes its training examples from no DataLoader")
    return _sizes(pair) or _order(pair)


def _sizes(pair: Pair) -> Finding | None:
    ranks, alone = [planned(record) for record in pair.many], planned(pair.one)
    first = trained(pair.many[0])[0]
    if not all(ranks):
        return None
    looked_at = "the sizes of the first training epoch"
    batches = [len(one.batches) + len(one.rest) for one in (trained(record)[0] for record in pair.many)]
    if max(batches) - min(batches) > 1:
        return Finding(NAME, Verdict.WARNED, looked_at, f"the ranks have {listed(batches)} batches",
                       cause="their data sets have different sizes, and nothing shares the examples out. Right only if "
                             "the script stops all ranks together, or joins them (torch.distributed.algorithms.Join)",
                       remedy="sampler=DistributedSampler(dataset), which gives each rank as many", where=first.line)
    together = sum(map(len, ranks))
    largest = max(len(batch) for one in map(trained, pair.records) for batch in _batches(one[0]))
    if not alone or abs(together * pair.workers - len(alone)) > pair.workers * pair.workers * largest or (
            len(alone) - together <= pair.workers * largest):
        return None
    smaller = first.data[1] < trained(pair.one)[0].data[1] and first.sampling.replicas == pair.workers
    return Finding(NAME, Verdict.FAILED if smaller else Verdict.WARNED, looked_at,
                   f"it has {counted(len(alone), 'example')} on one worker, and {together:,} on {pair.workers} workers "
                   "together",
                   cause="the examples are shared out twice: by rank, and then by the sampler" if smaller else
                   "the examples are shared out twice; right if an epoch is a number of updates",
                   remedy="leave one of the two out", where=first.line)


def _batches(one: Iteration) -> list[tuple]:
    return [*(batch.ids for batch in one.batches), *one.rest]


def _order(pair: Pair) -> Finding:
    first = trained(pair.many[0])[0]
    looked_at = "the first batches of two epochs"
    if first.sampling.name in IN_ORDER and not first.iterable or first.sampling.shuffle is False and (
            first.sampling.replicas):
        return Finding(NAME, Verdict.NOT_APPLICABLE, f"{first.sampling.name} does not shuffle the training examples")
    both = [_two(record) for record in pair.many]
    kept = [at for at in range(pair.updates) if not pair.batches(pair.many[0], at)]
    if not all(both) and first.ended and kept and kept == [*range(max(2, kept[0]), pair.updates)]:
        return Finding(NAME, Verdict.WARNED, looked_at,
                       f"update {kept[0] + 1} and later ones take no new batch of the loader, whose epoch has ended",
                       cause="the script keeps its batches, as itertools.cycle does: they come again in the same "
                             "order, with the same augmentation",
                       remedy="loop over the loader again for each epoch, after sampler.set_epoch(epoch)",
                       where=first.line)
    if not all(both):
        return Finding(NAME, Verdict.UNSEEN, "the script did not begin a second epoch")
    begins = [[_begin(one) for one in each] for each in both]
    if not all(len(one) > 1 for each in begins for one in each):
        return Finding(NAME, Verdict.UNSEEN, "which examples a batch has, or a batch of one shows no order")
    repeated = [rank for rank, (one, two) in enumerate(begins) if one == two]
    if not repeated:
        return Finding(NAME, Verdict.PASSED, f"{looked_at}: the order is another one")
    if first.iterable or _ascends(begins[repeated[0]][0]):
        return Finding(NAME, Verdict.NOT_APPLICABLE, f"{looked_at}: they begin alike, as of data that is not shuffled")
    return _repeats(pair, first, repeated, looked_at)


def _two(record: Record) -> list[Iteration]:
    """The first two epochs of the loader that is trained from; empty if there is no second one."""
    of_one = [one for one in trained(record) if one.data == trained(record)[0].data]
    return of_one[:2] if len(of_one) > 1 else []


def _begin(one: Iteration) -> tuple:
    """What identifies the examples of its first batch."""
    return (one.batches[0].ids or one.batches[0].contents) if one.batches else ()


def _ascends(ids: tuple) -> bool:
    return all(isinstance(one, int) for one in ids) and len({b - a for a, b in zip(ids, ids[1:])}) == 1


def _repeats(pair: Pair, first: Iteration, repeated: list[int], looked_at: str) -> Finding:
    sampling = first.sampling
    differs = (f"the second epoch has the order of the first on {counted(len(repeated), 'rank')} ({listed(repeated)}): "
               "the same examples meet in every batch")
    if sampling.settable:
        return Finding(NAME, Verdict.FAILED, looked_at, differs,
                       cause=f"{sampling.name} shuffles by (seed, epoch), and nothing sets its epoch",
                       remedy="sampler.set_epoch(epoch) before each epoch", where=first.line)
    return Finding(NAME, Verdict.WARNED, looked_at, differs,
                   cause=f"{sampling.name} begins each epoch with the same random numbers; right if the order is meant "
                         "to be fixed", remedy="draw the order by the epoch", where=first.line)
