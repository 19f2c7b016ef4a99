"""Whether an evaluation counts every example once, on all ranks together."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ....formatting.numbers import counted, percent
from ....watch.wrappers import WITHOUT_REPEATS
from ...finding import Finding, Verdict
from ..record import Iteration, Record
from .identity import same_data
from .pair import Pair, trained
from .splits import different_splits

NAME = "evaluation"
Key = tuple[int, tuple[str, int]]       # updates made before, data set


@dataclass(frozen=True)
class Round:
    """One evaluation of one data set: the passes over loaders on each rank."""

    key: Key
    ranks: list[list[Iteration]]

    @property
    def ended(self) -> bool:
        return all(one.ended or one.whole for rank in self.ranks for one in rank)

    @property
    def examples(self) -> int:
        """Different examples that the ranks took together."""
        return len(_taken(one for rank in self.ranks for one in rank))


def evaluation(pair: Pair) -> Finding:
    """The first fault of any evaluation that all ranks finished; else a passed finding."""
    if all(map(trained, pair.records)) and different_splits(pair, NAME):
        return Finding(NAME, Verdict.UNSEEN, "the ranks have different validation sets; see the check 'examples'")
    rounds = [each for each in rounds_of(pair.many) if each.ended]
    if not rounds:
        return Finding(NAME, Verdict.NOT_APPLICABLE, "no evaluation over a map-style data set was finished in the "
                       "updates watched")
    apart = next((each for each in rounds if _statistics_differ(each)), None)
    if apart is not None:
        return _of_several_models(pair, apart)
    apart = next((each for each in rounds if _models_differ(each)), None)
    if apart is not None and _trained_alike(pair):
        return _of_other_parameters(pair, apart)
    on_one = {each.key: _taken(each.ranks[0]) for each in rounds_of([pair.one]) if each.ended}
    for each in rounds:
        if same_data(pair.records, each.key[1]) is False:
            return _of_own_data(pair, each)
        expected = set(on_one.get(each.key) or range(each.key[1][1]))
        fault = _fault(pair, each, expected)
        if fault is not None:
            return fault
    return Finding(NAME, Verdict.PASSED, f"{_takers(rounds[0])} of {pair.workers} ranks evaluated "
                   f"{counted(rounds[0].examples, 'example')}: each counts once, as on one worker")


def _of_several_models(pair: Pair, each: Round) -> Finding:
    """The finding of ranks that evaluate with running statistics of their own."""
    broadcast = all(record.broadcasts_buffers for record in pair.many)
    cause = ("DistributedDataParallel broadcasts them only when it is called itself, and the evaluation calls the "
             "model within it, with what the last batch of each rank has added. Right if that is meant to be small") \
        if broadcast else "each rank keeps the statistics of its own batches, and nothing broadcasts them"
    return Finding(NAME, Verdict.WARNED if broadcast else Verdict.FAILED,
                   f"batch-norm's statistics at the end of an evaluation on {_takers(each)} of {pair.workers} ranks",
                   "they differ by rank: each rank evaluates another model", cause=cause,
                   remedy="SyncBatchNorm.convert_sync_batchnorm(model), or broadcast_buffers=True and evaluate by "
                          "calling the wrapper", where=_line(each))


def _of_other_parameters(pair: Pair, each: Round) -> Finding:
    """The finding of ranks that share an evaluation out, and call models that the optimizers do not train."""
    return Finding(NAME, Verdict.FAILED, f"the models in an evaluation on {_takers(each)} of {pair.workers} ranks",
                   "their parameters differ by rank, though those that are trained do not: each rank evaluates its "
                   "examples by another model",
                   cause="an average of the parameters (EMA, SWA) or a checkpoint is kept or loaded on some ranks only",
                   remedy="update it on all ranks, broadcast it, or evaluate all examples on one rank",
                   where=_line(each))


def _models_differ(each: Round) -> bool:
    found = {rank[-1].models for rank in each.ranks if rank}
    shared_out = any(len(_taken(rank)) < each.examples for rank in each.ranks if rank)
    return shared_out and len(found) > 1 and len({len(models) for models in found}) == 1


def _trained_alike(pair: Pair) -> bool:
    """Whether what the optimizers train is the same on all ranks before and after each update."""
    return all(len({one.digest for one in updates}) == len({one.digest_after for one in updates}) == 1
               for optimizers in zip(*(record.optimizers for record in pair.many))
               for updates in zip(*(one.updates for one in optimizers)))


def _statistics_differ(each: Round) -> bool:
    return len({one.buffers for rank in each.ranks for one in rank[-1:] if one.buffers}) > 1


def _line(each: Round) -> str:
    return next(one.line for rank in each.ranks for one in rank)


def _takers(each: Round) -> int:
    return sum(map(bool, each.ranks))


def _taken(iterations: Iterable[Iteration]) -> Counter:
    """How often each example was taken."""
    return Counter(one for iteration in iterations for batch in iteration.batches for one in batch.ids)


def rounds_of(records: list[Record]) -> list[Round]:
    """The evaluations of a run, in order."""
    keys = dict.fromkeys((one.updates, one.data) for record in records for one in record.iterations
                         if _is_evaluation(one))
    return [Round(key, [[one for one in record.iterations if _is_evaluation(one) and (one.updates, one.data) == key]
                        for record in records]) for key in keys]


def _is_evaluation(one: Iteration) -> bool:
    return not (one.trained or one.listed or one.iterable) and bool(one.batches) and one.data[1] >= 0


def _of_own_data(pair: Pair, each: Round) -> Finding:
    """The finding of ranks with validation sets of their own, which together may be that of one worker."""
    whole = next((one.examples for one in rounds_of([pair.one]) if one.key[0] == each.key[0] and one.ended), 0)
    rounds = [one for one in rounds_of(pair.many) if one.key[0] == each.key[0]]
    sizes = [sum(len(_taken(one.ranks[rank])) for one in rounds) for rank in range(pair.workers)]
    if sum(sizes) != whole or min(sizes) == 0 or any(
            _combining(record, one) for record, rank in zip(pair.many, each.ranks) for one in rank):
        return Finding(NAME, Verdict.UNSEEN, "the ranks evaluate data sets of their own")
    return _own_share(each, 0, sizes[0], whole, f"an evaluation of {counted(whole, 'example')} on {pair.workers} ranks")


def _fault(pair: Pair, each: Round, expected: set) -> Finding | None:
    """Examples that the metric of a rank counts more often than others, or not at all.

    expected  those that it counts on one worker
    """
    rank = next(rank for rank, iterations in enumerate(each.ranks) if iterations)
    total = _taken(one for record, iterations in zip(pair.many, each.ranks) for one in iterations
                   if _combining(record, one))
    own = _taken(one for one in each.ranks[rank] if not _combining(pair.many[rank], one))
    looked_at = f"an evaluation of {counted(len(expected), 'example')} on {_takers(each)} of {pair.workers} ranks"
    if not total and len(own) < len(expected):
        return _own_share(each, rank, len(own), len(expected), looked_at)
    total += own
    least = min(total.values())
    twice = sum(count - least for count in total.values())
    calls = [call for record, iterations in zip(pair.many, each.ranks) for one in iterations
             for call in _combining(record, one)]
    if twice and WITHOUT_REPEATS not in calls:
        gathered = any("gather" in call for call in calls)
        unless = ", unless the script drops them after it gathers" if gathered else ""
        return Finding(NAME, Verdict.WARNED if gathered else Verdict.FAILED, looked_at,
                       f"{counted(twice, 'example')} of {len(expected):,} counted twice ({_share(twice, expected)})"
                       f"{unless}",
                       cause="DistributedSampler repeats examples until all ranks have the same number; how many "
                             "depends on the number of workers",
                       remedy="evaluate range(rank, len(dataset), workers) by a Subset without a sampler, and reduce "
                              "sums and counts", where=_line(each))
    left_out = len(expected - set(total))
    if left_out:
        return Finding(NAME, Verdict.FAILED, looked_at,
                       f"{counted(left_out, 'example')} of {len(expected):,} left out ({_share(left_out, expected)})",
                       cause="drop_last of the sampler or the loader drops what does not divide by ranks and batch",
                       remedy="keep the last batch in evaluation, and reduce sums and counts", where=_line(each))
    return None


def _own_share(each: Round, rank: int, own: int, expected: int, looked_at: str) -> Finding:
    return Finding(NAME, Verdict.FAILED, looked_at,
                   f"rank {rank} took {own:,} of {expected:,} examples ({percent(own / expected)}), and no call "
                   "combined the ranks' values before training went on",
                   cause="each rank prints or keeps the metric of its own share",
                   remedy="all_reduce sums and counts, and divide last; or evaluate all examples on one rank",
                   where=_line(each))


def _share(some: int, expected: set) -> str:
    return percent(some / len(expected))


def _combining(record: Record, iteration: Iteration) -> list[str]:
    """Calls that combined the ranks' values after this pass over a loader, and before the next training batch."""
    last = iteration.batches[-1].number
    later = [batch.number for one in trained(record) for batch in one.batches if batch.number > last]
    return [call for number, call in record.combined if last <= number < min(later, default=record.fetched + 1)]
