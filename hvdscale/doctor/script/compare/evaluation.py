"""Whether an evaluation counts every example once, on all ranks together."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ....formatting.numbers import percent
from ....watch.remarks import WITHOUT_REPEATS
from ...finding import Choice, Finding
from ..record import Iteration, Record
from .examples import different_splits
from .pair import Pair, same_data, trained

NAME = "evaluation"
Key = tuple[int, tuple[str, int]]       # updates made before, data set


@dataclass(frozen=True)
class Round:
    """One evaluation of one data set."""

    key: Key
    ranks: list[list[Iteration]]        # the passes over loaders on each

    @property
    def ended(self) -> bool:
        return all(one.ended or one.whole for rank in self.ranks for one in rank)

    @property
    def examples(self) -> int:
        """Different examples that the ranks took together."""
        return len(_taken(one for rank in self.ranks for one in rank))

    def finding(self, pair: Pair, kind: str | Choice, **given) -> Finding:
        line = next(one.line for rank in self.ranks for one in rank)
        return pair.finding(NAME, kind, **{"where": line, "takers": sum(map(bool, self.ranks)), **given})


def evaluation(pair: Pair) -> Finding:
    """The first fault of any evaluation that all ranks finished; else a passed finding."""
    if all(map(trained, pair.records)) and different_splits(pair):
        return pair.finding(NAME, "splits")
    rounds = [each for each in rounds_of(pair.many) if each.ended]
    if not rounds:
        return pair.finding(NAME, "none")
    of_training = {update.digest_after for record in pair.many for one in record.optimizers for update in one.updates}
    for each in rounds:
        last = [one for rank in each.ranks for one in rank[-1:] if one.buffers]
        if len({one.buffers for one in last}) > 1:
            return each.finding(pair, "statistics", cause={
                "own_average": all(one.models and not of_training.intersection(one.models) for one in last),
                "last_batch": all(record.broadcasts_buffers for record in pair.many)})
    trained_alike = all(len({one.digest for one in updates}) == len({one.digest_after for one in updates}) == 1
                        for optimizers in zip(*(record.optimizers for record in pair.many))
                        for updates in zip(*(one.updates for one in optimizers)))
    for each in rounds if trained_alike else ():
        models = {rank[-1].models for rank in each.ranks if rank}
        shared_out = any(len(_taken(rank)) < each.examples for rank in each.ranks if rank)
        if shared_out and len(models) > 1 and len({*map(len, models)}) == 1:
            return each.finding(pair, "other_parameters")
    alone = [each for each in rounds_of([pair.one]) if each.ended]
    on_one = {each.key: _taken(each.ranks[0]) for each in alone}
    for each in rounds:
        if same_data(pair.records, each.key[1]) is False:
            return _of_own_data(pair, each)
        others = [one for one in alone if one.key[0] == each.key[0]]
        if each.key not in on_one and others and others[0].key[1] != each.key[1]:
            return _of_own_data(pair, each, others[0])
        if fault := _fault(pair, each, set(on_one.get(each.key) or range(each.key[1][1]))):
            return fault
    return rounds[0].finding(pair, "once", examples=rounds[0].examples)


def _taken(iterations: Iterable[Iteration]) -> Counter:
    return Counter(one for iteration in iterations for batch in iteration.batches for one in batch.ids)


def rounds_of(records: list[Record]) -> list[Round]:
    """The evaluations of a run, in order."""
    rounds: dict[Key, list[list[Iteration]]] = {}
    for rank, record in enumerate(records):
        for one in record.iterations:
            if not (one.trained or one.listed or one.iterable) and one.batches and one.data[1] >= 0:
                rounds.setdefault((one.updates, one.data), [[] for _ in records])[rank].append(one)
    return [Round(key, ranks) for key, ranks in rounds.items()]


def _of_own_data(pair: Pair, each: Round, alone: Round | None = None) -> Finding:
    """The finding of ranks with validation sets of their own, which together may be that of one worker."""
    whole = next((one.examples for one in rounds_of([pair.one]) if one.key[0] == each.key[0] and one.ended), 0)
    rounds = [one for one in rounds_of(pair.many) if one.key[0] == each.key[0]]
    sizes = [sum(len(_taken(one.ranks[rank])) for one in rounds) for rank in range(pair.workers)]
    if sum(sizes) != whole or min(sizes) == 0 or any(
            _combining(record, one) for record, rank in zip(pair.many, each.ranks) for one in rank):
        return pair.finding(NAME, "own_data") if alone is None else each.finding(
            pair, "other_data", size=each.key[1][1], alone=alone.key[1][1])
    return each.finding(pair, "own_share", rank=0, own=sizes[0], expected=whole, share=percent(sizes[0] / whole),
                        takers=pair.workers)


def _fault(pair: Pair, each: Round, expected: set) -> Finding | None:
    """Examples that the metric of a rank counts more often than others, or not at all, of those ``expected``."""
    size = len(expected)
    rank = next(rank for rank, iterations in enumerate(each.ranks) if iterations)
    combined = [(one, _combining(record, one)) for record, rounds in zip(pair.many, each.ranks) for one in rounds]
    total = _taken(one for one, calls in combined if calls)
    own = _taken(one for one in each.ranks[rank] if not _combining(pair.many[rank], one))
    if not total and len(own) < size:
        return each.finding(pair, "own_share", rank=rank, own=len(own), expected=size, share=percent(len(own) / size))
    total += own
    least = min(total.values())
    twice, left_out = sum(count - least for count in total.values()), len(expected - set(total))
    calls = [call for _, found in combined for call in found]
    twice = 0 if WITHOUT_REPEATS in calls else twice
    kinds = {"twice_if_kept": twice and any("gather" in call for call in calls), "twice": twice, "left_out": left_out}
    if not any(kinds.values()):
        return None
    return each.finding(pair, kinds, twice=twice, left_out=left_out, expected=size, where=each.ranks[rank][0].made,
                        share=percent((twice or left_out) / size))     # the statement to edit makes the loader


def _combining(record: Record, iteration: Iteration) -> list[str]:
    """Calls that combined the ranks' values after this pass over a loader, and before the next training batch."""
    last = iteration.batches[-1].number
    later = [batch.number for one in trained(record) for batch in one.batches if batch.number > last]
    return [call for number, call in record.combined if last <= number < min(later, default=record.fetched + 1)]
