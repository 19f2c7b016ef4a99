"""Whether the ranks have split one data set into training and validation alike."""
from __future__ import annotations

from ....formatting.numbers import counted
from ...finding import Finding
from ..record import MOST_INDICES, Iteration, Record
from .pair import Pair, trained

NAME = "examples"


def different_splits(pair: Pair) -> Finding | None:
    """A failed finding, where a sampler shares out by position what is another subset on each rank, or where one rank
    trains on what another one evaluates."""
    firsts = [trained(record)[0] for record in pair.many]
    training = [_subset(record, first) for record, first in zip(pair.many, firsts)]
    if pair.same_data is False or len({one.data for one in firsts}) > 1 or not all(training):
        return None
    leaked, first = _leaked(pair, training), firsts[0]
    own = training[0]
    other = next((each for each in training if each != own), own)
    if first.sampling.replicas == pair.workers and other != own:
        return pair.finding(NAME, "split_by_rank", cause="" if own & other else "twice", data=first.data[0],
                            apart=len(own - other), size=len(own), leaked=leaked and f", and {leaked}",
                            where=first.line)
    return pair.finding(NAME, "leaked", data=first.data[0], leaked=leaked, where=first.line) if leaked else None


def _subset(record: Record, one: Iteration) -> frozenset[int]:
    """The indices of the subset that a loader has; empty for a whole data set, or for one too large to be kept."""
    indices = record.subsets[one.subset] if one.subset is not None else ()
    return frozenset(indices) if len(indices) < MOST_INDICES else frozenset()


def _leaked(pair: Pair, training: list[frozenset[int]]) -> str:
    """How many validation examples of one rank another one trains on, though it does not itself; empty if none."""
    for rank, record in enumerate(pair.many):
        data = trained(record)[0].data
        evaluated = {index for one in record.iterations if not one.trained and not one.listed and one.data == data
                     for index in _subset(record, one)}
        for other, trains in enumerate(training):
            common = evaluated & trains
            if common and not evaluated & training[rank]:
                return (f"{len(common):,} of rank {rank}'s {counted(len(evaluated), 'validation example')} are in rank "
                        f"{other}'s training set")
    return ""
