"""Which examples each rank trained on."""
from __future__ import annotations

from collections import Counter

import numpy as np

from ....formatting.numbers import counted, listed, percent
from ....watch.sharding import TENSOR_PARALLEL
from ...finding import Finding, Verdict
from ..record import Iteration, Record
from .pair import Pair, trained
from .scale import matches_one
from .splits import different_splits

NAME = "examples"
WHOLE = ("RandomSampler", "SequentialSampler")      # samplers that know nothing of ranks
BY_CHANCE = 4               # times as many equal contents on two ranks as on one, up to which data may repeat itself


def examples(pair: Pair) -> Finding:
    """Whether the ranks took different examples, as many as one worker would."""
    if not all(map(trained, pair.records)):
        return _without_loader(pair)
    keys = [pair.keys(pair.many, number) for number in range(pair.updates)]
    taken = sum(len(each) for ranks in keys for each in ranks)
    looked_at = f"{counted(taken, 'example')} of {counted(pair.updates, 'update')} on {pair.workers} workers"
    splits = different_splits(pair, NAME)
    if splits:
        return splits
    if not all(keys):
        return Finding(NAME, Verdict.UNSEEN, "the examples cannot be distinguished: neither indices nor contents are "
                       "known for all batches")
    if any(record.sharded == TENSOR_PARALLEL for record in pair.many):
        return _of_one_model(keys, looked_at, pair)
    return (_by_loader_workers(pair, looked_at) or _over_the_epoch(pair) or _shared(pair, keys, taken, looked_at)
            or _whole(pair, looked_at) or _skipped(pair, looked_at) or _other_batch(pair, looked_at)
            or Finding(NAME, Verdict.PASSED, f"{looked_at}: {_apart(pair)}{_against_one(pair)}"))


def _of_one_model(keys: list[list[list]], looked_at: str, pair: Pair) -> Finding:
    """The finding of ranks that have parts of one model, and so need the same examples."""
    if all(one == ranks[0] for ranks in keys for one in ranks):
        return Finding(NAME, Verdict.PASSED, f"{looked_at}: all ranks took the same, as the parts of one model must")
    return Finding(NAME, Verdict.WARNED, looked_at, "ranks took different examples",
                   cause=f"{TENSOR_PARALLEL} divides layers among ranks, which have to have one input: right only "
                         "between ranks with different parts of the data",
                   remedy="num_replicas and rank of the sampler from the data-parallel dimension of the mesh alone",
                   where=trained(pair.many[0])[0].line)


def _apart(pair: Pair) -> str:
    return "each rank draws its own" if _replaces(pair) else "no two ranks took the same one"


def _without_loader(pair: Pair) -> Finding:
    """The finding of a script that takes its examples from no loader, by the gradients."""
    for at in range(pair.updates):
        first, *others = ([one.gradient for one in update.passes] for update in pair.at(at))
        if not any(each.any() for each in first) or not all(
                len(each) == len(first) and all(map(np.array_equal, first, each)) for each in others):
            break
    else:
        return Finding(NAME, Verdict.FAILED, f"the local gradients of {counted(pair.updates, 'update')}",
                       "all ranks computed the same gradients: they took the same examples",
                       cause="the examples are drawn by a generator that every rank seeds alike",
                       remedy="draw them by a generator of their own, seeded by seed + rank, or share one draw out by "
                              "rank", where=pair.at(0)[0].passes[-1].line if pair.updates else "")
    if matches_one(pair):
        return Finding(NAME, Verdict.PASSED, "the gradient of update 1, as the examples come from no DataLoader: it is "
                       "that of one worker")
    return Finding(NAME, Verdict.UNSEEN, "the script takes its training examples from no DataLoader")


def _by_loader_workers(pair: Pair, looked_at: str) -> Finding | None:
    """A failed finding, where a loader's workers, which give a batch each in turn, all read the same stream."""
    first = trained(pair.many[0])[0]
    contents = [batch.contents for batch in first.batches[:2]]
    if not first.iterable or first.seed is None or len(contents) < 2 or contents[0] != contents[1] or len(
            {*contents[0]}) < 2:
        return None
    return Finding(NAME, Verdict.FAILED, looked_at, "the first two batches of rank 0 have the same examples: each of "
                   "its loader's workers reads all of its share",
                   cause="its IterableDataset is not shared out by loader worker",
                   remedy="in __iter__, share it out by torch.utils.data.get_worker_info() as well",
                   where=first.line)


def _shared(pair: Pair, keys: list[list[list]], taken: int, looked_at: str) -> Finding | None:
    """A failed finding, where ranks took the same examples, in one update or in different ones of the first epoch."""
    ranks, (alone,) = _first_epoch(pair, pair.many), _first_epoch(pair, [pair.one])
    twice, padded = _repeated(ranks), max(one.sampling.padded for record in pair.many for one in trained(record))
    same = all(Counter(map(str, each[0])) == Counter(map(str, other)) for each in keys for other in each)
    first = trained(pair.many[0])[0]
    own = pair.same_data is False       # data sets of the ranks' own, which may have some example twice
    if twice <= max(padded, 2 * own) or not same and (_replaces(pair) or not own and first.sampling.name in WHOLE):
        return None                     # an order of its own on each rank
    if not pair.known_by_index and twice <= BY_CHANCE * max(
            len(each) - len({*each}) for each in (*ranks, alone)):
        return None
    taken = taken if same else sum(map(len, ranks))
    differs = (f"all ranks took the same examples: {taken // pair.workers} of {taken} count" if same else
               f"{twice} of {taken} examples were taken by another rank as well ({percent(twice / taken)})")
    if pair.known_by_index and pair.same_data is None:
        return Finding(NAME, Verdict.WARNED, looked_at, f"{differs}, if their data sets are the same",
                       cause="the indices are the same, and contents are not known: right if each rank has files of "
                             "its own", remedy="else sampler=DistributedSampler(dataset)", where=first.line)
    cause, remedy = _why_shared(pair, first, same)
    return Finding(NAME, Verdict.FAILED, looked_at, differs, cause=cause, remedy=remedy, where=first.line)


def _why_shared(pair: Pair, first: Iteration, same: bool) -> tuple[str, str]:
    if pair.same_data is False and not first.iterable:
        return ("the ranks' data sets overlap, as of a list that each rank shuffles in its own way before it takes its "
                "share", "shuffle by one seed on all ranks: random.Random(seed).shuffle(files)")
    sampling, remedy = first.sampling, "sampler=DistributedSampler(dataset) in the training loader, after " \
        "init_process_group"
    if first.iterable:
        cause = ("its IterableDataset yields the same on every rank" if same else
                 "its IterableDataset is not shared out by rank: each rank goes through all of it in its own order")
        return cause, "share it out in __iter__: itertools.islice(examples, rank, None, workers), then shuffle"
    if sampling.replacement:
        return (f"its {sampling.name} draws the same on all ranks, by one seed",
                "WeightedRandomSampler(..., generator=torch.Generator().manual_seed(seed + rank))")
    if sampling.replicas not in (None, pair.workers):
        return f"its DistributedSampler has num_replicas={sampling.replicas}", remedy
    if sampling.replicas:
        return "all its DistributedSamplers have one rank", remedy
    return (f"its loader has a {sampling.name}, so every rank goes through the whole data set"
            + (" in the same order" if same else ""), remedy)


def _replaces(pair: Pair) -> bool:
    """Whether a sampler may take an example twice."""
    return any(one.sampling.replacement for record in pair.many for one in trained(record))


def _first_epoch(pair: Pair, records: list[Record]) -> list[list]:
    """What identifies the examples that were read in the first training epoch, from as many batches on each rank."""
    firsts = [trained(record)[0].batches for record in records]
    return [[key for batch in first[:min(map(len, firsts))] for key in (
        batch.ids if pair.known_by_index else batch.contents)] for first in firsts]


def _repeated(ranks: list[list]) -> int:
    """Examples that an earlier rank took as well."""
    return sum(count - 1 for count in Counter(key for each in ranks for key in {*each}).values())


def planned(record: Record) -> list[int | str]:
    """The indices of the first training epoch, to its end, as far as its sampler gave them; else empty."""
    return [one for batch in _planned_batches(record) for one in batch]


def _planned_batches(record: Record) -> list[tuple[int | str, ...]]:
    first = trained(record)[0]
    batches = [batch.ids for batch in first.batches] + first.rest
    return batches if (first.ended or first.cut is not None) and not first.iterable else []


def filled_up(pair: Pair) -> int:
    """How many examples the ranks' last batches of the first epoch repeat, where no others do and none is left out, as
    accelerate's BatchSamplerShard fills them up so that all ranks have as many; else 0."""
    if not all(map(trained, pair.records)) or not pair.known_by_index:
        return 0
    batches = [_planned_batches(record) for record in pair.many]
    ranks, before = ([[one for batch in each[:end] for one in batch] for each in batches] for end in (None, -1))
    all_but_last = [one for each in before for one in each]
    if not all(before) or len({*all_but_last}) < len(all_but_last) or {*planned(pair.one)}.difference(*ranks):
        return 0
    return sum(map(len, ranks)) - len({one for each in ranks for one in each})


def _over_the_epoch(pair: Pair) -> Finding | None:
    """A failed finding, where a sampler shares the epoch out so that ranks have the same examples, or none has some."""
    ranks, alone = [planned(record) for record in pair.many], planned(pair.one)
    first = trained(pair.many[0])[0]
    if not all(ranks) or not alone or not pair.known_by_index or _replaces(pair) or first.sampling.name in WHOLE:
        return None
    padded = sum(trained(record)[0].sampling.padded for record in pair.many[:1])
    twice, never = _repeated(ranks), len({*alone}.difference(*ranks))
    if twice <= padded or all(each == ranks[0] for each in ranks) or filled_up(pair):
        return None
    return Finding(NAME, Verdict.FAILED, f"the indices of an epoch of {counted(len({*alone}), 'example')}",
                   f"{twice} are taken by two ranks, and {never} by none",
                   cause="the ranks' samplers have different seeds, so each shares out another order"
                   if first.sampling.replicas else f"its {first.sampling.name} does not share the examples out by rank",
                   remedy="give the sampler the same seed on all ranks; it shares out by its rank", where=first.line)


def _whole(pair: Pair, looked_at: str) -> Finding | None:
    """A warning, where each rank goes through the whole data set in an order of its own."""
    first = trained(pair.many[0])[0]
    sampling, (name, size) = first.sampling, first.data
    if sampling.name not in WHOLE or sampling.length != size or sampling.replacement or not pair.same_data or (
            trained(pair.one)[0].data != (name, size)):
        return None
    return Finding(NAME, Verdict.WARNED, looked_at,
                   f"each rank goes through all {size:,} examples: an epoch on {pair.workers} workers is "
                   f"{pair.workers} epochs",
                   cause=f"its loader has a {sampling.name}, which knows nothing of the other ranks",
                   remedy="sampler=DistributedSampler(dataset), or count the epochs by examples", where=first.line)


def _other_batch(pair: Pair, looked_at: str) -> Finding | None:
    """A warning, where the runs have not the global batch that they were meant to have."""
    one, many = sum(pair.examples([pair.one], 0)), sum(pair.examples(pair.many, 0))
    if pair.batch is None or one == many:
        return None
    cause = ("the script divides its batch by the number of workers itself" if many * pair.workers == one else
             "{local} is not all that the batch depends on")
    return Finding(NAME, Verdict.WARNED, looked_at,
                   f"an update takes {one} examples on one worker and {many} on {pair.workers}, and not the "
                   f"{pair.batch} of --batch",
                   cause=cause, remedy="have one global batch in both runs: put {local} where the script takes a "
                   "worker's share, or leave it out if the script divides, and compare again",
                   where=trained(pair.many[0])[0].line)


def _skipped(pair: Pair, looked_at: str) -> Finding | None:
    """A warning, where an update follows more batches on one rank than on another, of as many backward passes."""
    for at in pair.whole:
        batches = [len(pair.batches(record, at)) for record in pair.many]
        passes = {len(update.passes) for update in pair.at(at)}
        if len({*batches}) > 1 and len(passes) == 1:
            return Finding(NAME, Verdict.WARNED, looked_at,
                           f"the ranks read {listed(batches)} batches for update {at + 1}, of as many backward passes",
                           cause="a rank leaves batches out by itself, such as for their loss: in the end others wait "
                                 "for its updates. Right only if the script stops all ranks together",
                           remedy="decide on all ranks alike: all_reduce what is decided by",
                           where=trained(pair.many[0])[0].line)
    return None


def _against_one(pair: Pair) -> str:
    if pair.batch is None:
        return ""
    same = all(pair.same_examples_at(number) for number in range(pair.updates))
    return ", and each update has those it has on one worker" if same else ""


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
