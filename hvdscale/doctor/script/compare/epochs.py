"""The size of an epoch, on each rank and on one worker, and its order from epoch to epoch."""
from __future__ import annotations

from ....watch.remarks import JOINED, JOINED_BY_ACTIVE
from ...finding import Finding
from ..record import Iteration
from .examples import planned
from .pair import Pair, trained

NAME = "epochs"
SHARDS = "BatchSamplerShard"            # of accelerate


def epochs(pair: Pair) -> Finding:
    """Whether an epoch has one size on all ranks and in both runs, and another order the second time."""
    if not all(map(trained, pair.records)):
        return pair.finding(NAME, "no_loader")
    return _sizes(pair) or _order(pair)


def _sizes(pair: Pair) -> Finding | None:
    ranks, alone = [planned(record) for record in pair.many], planned(pair.one)
    firsts = [trained(record)[0] for record in pair.many]
    if not all(ranks):
        return None
    batches = [len(one.batches) + len(one.rest) for one in firsts]
    if max(batches) - min(batches) > 1:
        joins = {JOINED: "joined_divides", JOINED_BY_ACTIVE: "joined"}
        kind = next((joins[remark] for remark in pair.many[0].remarks if remark in joins), "uneven")
        return pair.finding(NAME, kind, batches=batches, where=firsts[0].line)
    together = sum(map(len, ranks))
    largest = max(len(batch) for one in (*firsts, trained(pair.one)[0]) for batch in (
        *(batch.ids for batch in one.batches), *one.rest))
    if not alone or abs(together * pair.workers - len(alone)) > pair.workers * pair.workers * largest or (
            len(alone) - together <= pair.workers * largest):
        return None
    sampling, by = firsts[0].sampling, "by_rank"
    if sampling.name == SHARDS:                 # accelerate's own way to share out
        by = "by_prepare"
    twice = sampling.replicas == pair.workers and (
        by == "by_prepare" or firsts[0].data[1] < trained(pair.one)[0].data[1])
    return pair.finding(NAME, "shared_twice" if twice else "smaller", alone=len(alone), together=together,
                        cause=by if twice else "", where=firsts[0].line)


def _order(pair: Pair) -> Finding:
    """The finding on the first two epochs of the loader that is trained from."""
    first = trained(pair.many[0])[0]
    sampler, where = first.sampling.name, first.line
    if sampler == "SequentialSampler" and not first.iterable or first.sampling.shuffle is False and (
            first.sampling.replicas):
        shuffles = trained(pair.one)[0].sampling.shuffle
        return pair.finding(NAME, "in_order_on_many" if shuffles else "in_order", sampler=sampler,
                            where=where if shuffles else "")
    both = [[one for one in trained(record) if one.data == trained(record)[0].data][:2] for record in pair.many]
    second = all(len(epochs) == 2 for epochs in both)
    kept = [at for at in range(pair.updates) if not pair.batches(pair.many[0], at)]
    if not second and first.ended and kept and kept == [*range(max(2, kept[0]), pair.updates)]:
        return pair.finding(NAME, "kept", update=kept[0] + 1, where=where)
    if not second:
        return pair.finding(NAME, "no_second")
    begins = [[_begin(one) for one in each] for each in both]
    if not all(len(one) > 1 for each in begins for one in each):
        return pair.finding(NAME, "not_known")
    repeated = [rank for rank, (one, two) in enumerate(begins) if one == two]
    if not repeated:
        return pair.finding(NAME, "another")
    ids = begins[repeated[0]][0]
    if first.iterable or all(isinstance(one, int) for one in ids) and len({b - a for a, b in zip(ids, ids[1:])}) == 1:
        return pair.finding(NAME, "alike")
    one, two = both[repeated[0]]
    constant = one.sampling.epoch is not None and one.sampling.epoch == two.sampling.epoch and two.sampling.line
    return pair.finding(NAME, "no_set_epoch" if first.sampling.settable else "repeats", count=len(repeated),
                        ranks=repeated, sampler=sampler, where=constant or where, epoch=one.sampling.epoch,
                        cause="constant" if constant else "")


def _begin(one: Iteration) -> tuple:
    """What identifies the examples of its first batch."""
    return (one.batches[0].ids or one.batches[0].contents) if one.batches else ()
