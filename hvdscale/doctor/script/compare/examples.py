"""Which examples each rank trained on, and in which order from epoch to epoch."""
from __future__ import annotations

from collections import Counter

import numpy as np

from ....formatting.numbers import counted, listed, percent
from ...finding import Finding, Verdict
from ..record import Iteration, Record
from .pair import Pair, trained

EXAMPLES, EPOCHS = "examples", "epochs"
WHOLE = ("RandomSampler", "SequentialSampler")      # samplers that know nothing of ranks
BY_CHANCE = 0.5             # share of equal contents under which they may be repeated in the data set


def examples(pair: Pair) -> Finding:
    """Whether the ranks of one update took different examples, as many as one worker would."""
    if not all(map(trained, (pair.one, *pair.many))):
        return _same_gradients(pair) or Finding(
            EXAMPLES, Verdict.NOT_APPLICABLE, "the script takes no training examples from a DataLoader")
    keys = [pair.keys(pair.many, number) for number in range(pair.updates)]
    if not all(keys):
        return Finding(EXAMPLES, Verdict.NOT_APPLICABLE, "the examples cannot be distinguished: the data set is "
                       "iterable, or each rank has one of its own")
    taken = sum(len(each) for ranks in keys for each in ranks)
    looked_at = f"{counted(taken, 'example')} of {counted(pair.updates, 'update')} on {pair.workers} workers"
    return (_shared(pair, keys, taken, looked_at) or _whole(pair, looked_at) or _other_batch(pair, looked_at)
            or Finding(EXAMPLES, Verdict.PASSED, f"{looked_at}: no two ranks took the same one{_against_one(pair)}"))


def _same_gradients(pair: Pair) -> Finding | None:
    """A failed finding, where examples that no loader gave have the same gradient on all ranks."""
    for at in range(pair.updates):
        first, *others = ([one.gradient for one in update.passes] for update in pair.at(at))
        if not first or not all(len(each) == len(first) and all(map(np.array_equal, first, each)) for each in others):
            return None
    return Finding(EXAMPLES, Verdict.FAILED, f"the local gradients of {counted(pair.updates, 'update')}",
                   "all ranks computed the same gradients: they took the same examples",
                   cause="the examples are drawn by a generator that every rank seeds alike",
                   remedy="draw them by a generator of their own, seeded by seed + rank, or share one draw out by rank")


def _shared(pair: Pair, keys: list[list[list]], taken: int, looked_at: str) -> Finding | None:
    """A failed finding, where ranks took the same examples."""
    if any(one.sampling.replacement for record in pair.many for one in trained(record)):
        return None
    twice = sum(_repeated(ranks) for ranks in keys)
    padded = max(one.sampling.padded for record in pair.many for one in trained(record))
    if twice <= padded or not pair.known_by_index and twice < BY_CHANCE * taken:
        return None
    same = all(sorted(map(str, ranks[0])) == sorted(map(str, each)) for ranks in keys for each in ranks)
    sampling = trained(pair.many[0])[0].sampling
    if not same and sampling.name in WHOLE:
        return None                     # an order of its own on each rank
    remedy = "sampler=DistributedSampler(dataset) in the training loader, after init_process_group"
    if trained(pair.many[0])[0].iterable:
        cause, remedy = ("its IterableDataset yields the same on every rank",
                         "share it out in __iter__: itertools.islice(examples, rank, None, workers)")
    elif sampling.replicas not in (None, pair.workers):
        cause = f"its DistributedSampler has num_replicas={sampling.replicas}"
    elif sampling.replicas:
        cause = "all its DistributedSamplers have one rank, or different seeds"
    else:
        cause = (f"its loader has a {sampling.name}, so every rank goes through the whole data set"
                 + (" in the same order" if same else ""))
    differs = (f"all ranks took the same examples: {taken // pair.workers} of {taken} count" if same else
               f"{twice} of {taken} examples were taken by another rank as well ({percent(twice / taken)})")
    return Finding(EXAMPLES, Verdict.FAILED, looked_at, differs, cause=cause, remedy=remedy)


def _repeated(ranks: list[list]) -> int:
    """Examples of an update that an earlier rank took as well."""
    return sum(count - 1 for count in Counter(key for each in ranks for key in set(each)).values())


def _whole(pair: Pair, looked_at: str) -> Finding | None:
    """A warning, where each rank goes through the whole data set in an order of its own."""
    sampling, (name, size) = trained(pair.many[0])[0].sampling, trained(pair.many[0])[0].data
    if sampling.name not in WHOLE or sampling.length != size or sampling.replacement or (
            trained(pair.one)[0].data != (name, size)):
        return None
    return Finding(EXAMPLES, Verdict.WARNED, looked_at,
                   f"each rank goes through all {size:,} examples: an epoch on {pair.workers} workers is "
                   f"{pair.workers} epochs",
                   cause=f"its loader has a {sampling.name}, which knows nothing of the other ranks",
                   remedy="sampler=DistributedSampler(dataset), or count the epochs by examples")


def _other_batch(pair: Pair, looked_at: str) -> Finding | None:
    """A warning, where the runs have not the global batch that they were meant to have."""
    one, many = sum(pair.examples([pair.one], 0)), sum(pair.examples(pair.many, 0))
    if pair.batch is None or one == many:
        return None
    cause = ("the script divides its batch by the number of workers itself" if many * pair.workers == one else
             "{local} is not all that the batch depends on")
    return Finding(EXAMPLES, Verdict.WARNED, looked_at,
                   f"an update takes {one} examples on one worker and {many} on {pair.workers}, and not the "
                   f"{pair.batch} of --batch",
                   cause=cause, remedy="have one global batch in both runs: put {local} where the script takes a "
                   "worker's share, or leave it out if the script divides, and compare again")


def _against_one(pair: Pair) -> str:
    if pair.batch is None:
        return ""
    same = all(pair.same_examples_at(number) for number in range(pair.updates))
    return ", and each update has those it has on one worker" if same else ""


def epochs(pair: Pair) -> Finding:
    """Whether a shuffling DistributedSampler has another order in the second epoch."""
    shuffled = [[one for one in trained(record) if one.sampling.replicas and one.sampling.shuffle]
                for record in pair.many]
    if not all(shuffled):
        return Finding(EPOCHS, Verdict.NOT_APPLICABLE, "no DistributedSampler shuffles the training examples")
    if any(len(each) < 2 for each in shuffled):
        return Finding(EPOCHS, Verdict.NOT_APPLICABLE, "the script did not begin a second epoch")
    looked_at = "the first batches of two epochs"
    repeated = [rank for rank, (first, second, *_) in enumerate(shuffled) if _same_order(first, second)]
    if not repeated:
        return Finding(EPOCHS, Verdict.PASSED, f"{looked_at}: the order is another one")
    return Finding(EPOCHS, Verdict.FAILED, looked_at,
                   f"the second epoch has the order of the first on {counted(len(repeated), 'rank')} "
                   f"({listed(repeated)}): the same examples meet in every batch",
                   cause="DistributedSampler shuffles by (seed, epoch), and nothing sets its epoch",
                   remedy="sampler.set_epoch(epoch) before each epoch")


def _same_order(first: Iteration, second: Iteration) -> bool:
    both = [one.batches[0].ids if one.batches else () for one in (first, second)]
    return both[0] == both[1] and len(both[0]) > 1


def notes_of_loader(record: Record, workers: int) -> list[str]:
    """What an epoch repeats or leaves out, by the training loader of a rank."""
    found = []
    for one in trained(record)[:1]:
        sampling = one.sampling
        if sampling.padded:
            found.append(f"DistributedSampler repeats {counted(sampling.padded, 'example')} of {one.data[1]:,} in each "
                         f"training epoch, so that {workers} ranks have the same number")
        if sampling.left_out:
            found.append(f"DistributedSampler leaves {counted(sampling.left_out, 'example')} of {one.data[1]:,} out of "
                         "each training epoch; how many depends on the number of workers")
        if sampling.drops_last:
            found.append("the training loader drops the incomplete last batch of each rank (drop_last); how many "
                         "examples that leaves out depends on the number of workers")
    return found
