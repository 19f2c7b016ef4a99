"""Whether the ranks have split one data set into training and validation alike."""
from __future__ import annotations

from ....formatting.numbers import counted
from ...finding import Finding, Verdict
from ..record import MOST_INDICES, Iteration, Record
from .pair import Pair, trained

SEEDED = "random_split(data, lengths, generator=torch.Generator().manual_seed(seed)), the same seed on all ranks"


def different_splits(pair: Pair, name: str) -> Finding | None:
    """A failed finding, where a sampler shares out by position what is another subset on each rank, or where one rank
    trains on what another one evaluates."""
    firsts = [trained(record)[0] for record in pair.many]
    training = [_subset(record, first) for record, first in zip(pair.many, firsts)]
    if pair.same_data is False or len({one.data for one in firsts}) > 1 or not all(training):
        return None
    leaked = _leaked(pair, training)
    first = firsts[0]
    if first.sampling.replicas == pair.workers and any(each != training[0] for each in training):
        other = next(each for each in training if each != training[0])
        disjoint = not training[0] & other
        return Finding(
            name, Verdict.FAILED, f"the subsets of {first.data[0]} that {pair.workers} ranks train on",
            f"the ranks' data sets hold different examples: {len(training[0] - other):,} of rank 0's "
            f"{len(training[0]):,} are not in another rank's{leaked and f', and {leaked}'}",
            cause="the data set is shared out twice: by rank, and then by DistributedSampler" if disjoint else
            "random_split draws by a generator that each rank seeds in its own way, and DistributedSampler shares "
            "positions out, not examples",
            remedy="leave one of the two out" if disjoint else SEEDED, where=first.line)
    if leaked:
        return Finding(name, Verdict.FAILED, f"the subsets of {first.data[0]} that the ranks train on and evaluate",
                       leaked, cause="the ranks have split the data set in different ways", remedy=SEEDED,
                       where=first.line)
    return None


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
