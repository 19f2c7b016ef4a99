"""Whether each update took the mean gradient over all its examples."""
from __future__ import annotations

import math

import numpy as np

from ....formatting.numbers import counted, listed, number
from ...finding import Finding, Verdict
from ....watch.collectives import HOOK
from .pair import Pair, apart, passes_of
from .reduction import ACTIVE, Reduction, Weighing, find_reduction, weigh

NAME = "gradient"
CLOSE = 0.02            # of a factor, relative
DDP = "wrap the model in DistributedDataParallel and call the wrapper, not .module"


def gradient(pair: Pair) -> Finding:
    """The first fault of any update; else a passed finding with the largest difference."""
    found = [find_reduction(pair.at(at), pair.limit) for at in range(pair.updates)]
    if None in found:
        return Finding(NAME, Verdict.NOT_APPLICABLE, "no backward pass reached the optimizer's parameters, or the "
                       "ranks made different numbers of them")
    looked_at = f"the gradients of {counted(pair.updates, 'update')} against the local ones of {pair.workers} ranks"
    weighed = [weigh(pair.at(at), one) for at, one in enumerate(found)]
    for check in (_apart, _clipped, _unexplained, _undivided, _scaled, _unequal, _against_one):
        for at, (one, by) in enumerate(zip(found, weighed)):
            fault = check(pair, at, one, by, looked_at)
            if fault is not None:
                return fault
    if None in weighed:
        return Finding(NAME, Verdict.PASSED, f"{looked_at}: their mean; how the loss weighs examples cannot be seen",
                       by=max(one.residual for one in found), limit=pair.limit)
    return Finding(NAME, Verdict.PASSED, f"{looked_at}: the mean over all {_targets(weighed[0])} of an update",
                   by=max(by.error for by in weighed), limit=pair.limit)


def _targets(by: Weighing) -> str:
    return f"{by.counts.sum():,.0f} targets"


def _apart(pair: Pair, at: int, one: Reduction, by: Weighing | None, looked_at: str) -> Finding | None:
    """The ranks took different gradients."""
    if one.spread <= pair.limit:
        return None
    alone = _passes_alone(one)
    passes = one.weights.shape[2]
    if len(alone) < passes:
        cause = (f"accumulation: of {passes} passes an update, {listed([one + 1 for one in alone])} stayed local, such "
                 "as under no_sync or on .module")
        remedy = "leave no_sync for the last pass of each update; DistributedDataParallel then reduces the whole sum"
    else:
        cause, remedy = "nothing averages the gradients over the ranks", DDP
    return Finding(NAME, Verdict.FAILED, looked_at, f"update {at + 1}: each rank's optimizer took another gradient",
                   by=one.spread, limit=pair.limit, cause=cause, remedy=remedy)


def _passes_alone(one: Reduction) -> list[int]:
    """Passes whose gradients stayed on their rank: of the others' a rank has (next to) none."""
    ranks = len(one.weights)
    others = [[max(abs(one.weights[to, of, at]) for to in range(ranks) for of in range(ranks) if to != of),
               max(abs(one.weights[to, to, at]) for to in range(ranks))] for at in range(one.weights.shape[2])]
    return [at for at, (foreign, own) in enumerate(others) if foreign < own / 10]


def _clipped(pair: Pair, at: int, one: Reduction, by: Weighing | None, looked_at: str) -> Finding | None:
    """Each rank clipped its own gradient before the reduction."""
    if one.clipped is None or min(one.clipped) > ACTIVE:
        return None
    updates = pair.at(at)
    mean = sum(each.gradient for each in passes_of(updates)) / pair.workers
    cosine = float(mean @ one.gradients[0] / max(np.linalg.norm(mean) * np.linalg.norm(one.gradients[0]), 1e-300))
    factors = listed([number(each) for each in one.clipped])
    return Finding(NAME, Verdict.FAILED, looked_at,
                   f"update {at + 1}: the ranks clipped their local gradients by {factors}, then combined them",
                   by=math.sqrt(max(0.0, 2 - 2 * cosine)), limit=pair.limit,
                   cause="clipping comes before the reduction: a rank with a large gradient counts for less, and the "
                         "norm that is clipped grows as local batches shrink",
                   remedy="reduce first, then clip what the optimizer takes; under DistributedDataParallel, clip after "
                          "backward()")


def _unexplained(pair: Pair, at: int, one: Reduction, by: Weighing | None, looked_at: str) -> Finding | None:
    """The gradient is no weighted sum of the local ones."""
    if one.residual <= pair.limit:
        return None
    hooked = any(HOOK in record.remarks for record in pair.many)
    return Finding(NAME, Verdict.WARNED, looked_at,
                   f"update {at + 1}: the gradient is no weighted sum of the ranks' local gradients",
                   by=one.residual, limit=pair.limit,
                   cause="a communication hook compresses it" if hooked else
                   "something changes .grad between backward() and step(), such as noise or compression",
                   remedy="if that is intended, compare once without it")


def _undivided(pair: Pair, at: int, one: Reduction, by: Weighing | None, looked_at: str) -> Finding | None:
    """Accumulated passes are summed, where each is a mean."""
    if by is None or one.weights.shape[2] == 1 or not _accumulates(pair, at, by):
        return None
    passes = one.weights.shape[2]
    if not math.isclose(by.scale, passes, rel_tol=CLOSE):
        return None
    return Finding(NAME, Verdict.FAILED, looked_at,
                   f"update {at + 1}: the gradient is {number(by.scale)} times the mean over its "
                   f"{_targets(by)}", by=by.scale - 1, limit=CLOSE,
                   cause=f"accumulation sums {passes} passes, and the loss of each is a mean that nothing divides by "
                         f"{passes}", remedy="(loss / passes).backward()")


def _accumulates(pair: Pair, at: int, by: Weighing) -> bool:
    """Whether each pass had examples of its own, from the loader or a part of its batch; else losses are added."""
    passes = list(passes_of(pair.at(at)))
    given, batches = sum(pair.examples(pair.many, at)), sum(len(pair.batches(each, at)) for each in pair.many)
    return batches >= len(passes) or not given or by.counts.sum() <= given


def _scaled(pair: Pair, at: int, one: Reduction, by: Weighing | None, looked_at: str) -> Finding | None:
    """The gradient's scale depends on the number of workers."""
    alone = find_reduction([pair.on_one(at)], pair.limit)
    on_one = alone and weigh([pair.on_one(at)], alone)
    if by is None or not on_one:
        return None
    ratio = by.scale / on_one.scale
    if math.isclose(ratio, 1, rel_tol=CLOSE):
        return None
    summed = one.weights[0].sum(axis=0).mean()         # over ranks: 1 for a mean, the number of workers for a sum
    if math.isclose(summed, pair.workers, rel_tol=CLOSE):
        cause, remedy = "the gradients of the ranks are summed", "divide the sum by the number of workers"
    elif math.isclose(ratio, pair.workers, rel_tol=CLOSE):
        cause, remedy = ("the loss is multiplied by the number of workers, and the reduction is a mean",
                         "leave the factor out; a larger learning rate belongs into the optimizer")
    elif math.isclose(ratio, 1 / pair.workers, rel_tol=CLOSE):
        cause, remedy = ("the loss is a sum over the local batch, and DistributedDataParallel takes the mean of the "
                         "ranks'; or it is divided by the number of workers, too",
                         "divide by the global batch and multiply by the number of workers, or take the mean loss")
    else:
        cause, remedy = "the loss is divided by something that depends on the number of workers", \
            "divide by what the whole global batch has"
    return Finding(NAME, Verdict.FAILED, looked_at,
                   f"update {at + 1}: the gradient is {number(by.scale)} times the mean over its "
                   f"targets on {pair.workers} workers, and {number(on_one.scale)} times on one",
                   by=abs(ratio - 1), limit=CLOSE, cause=cause, remedy=remedy)


def _unequal(pair: Pair, at: int, one: Reduction, by: Weighing | None, looked_at: str) -> Finding | None:
    """Targets of different ranks or passes have different weights."""
    if by is None:
        return _unequal_examples(pair, at, looked_at)
    if by.error <= pair.limit:
        return None
    counts = by.counts.sum(axis=1)
    differ = "ranks" if len(set(counts)) > 1 else "passes"
    shown = listed([f"{count:,.0f}" for count in (counts if differ == "ranks" else by.counts[0])])
    return Finding(NAME, Verdict.FAILED, looked_at,
                   f"update {at + 1}: the {differ} have {shown} targets, and the mean of their means is taken",
                   by=by.error, limit=pair.limit,
                   cause=f"each of the {differ} divides by its own number of targets, so a target counts for more "
                         "where there are few",
                   remedy="take the sum of the losses, divide by the number of targets of the whole update (all_reduce "
                          "it), and multiply by the number of workers, by which DistributedDataParallel divides")


def _unequal_examples(pair: Pair, at: int, looked_at: str) -> Finding | None:
    counts = pair.examples(pair.many, at)
    if len(set(counts)) == 1:
        return None
    return Finding(NAME, Verdict.WARNED, looked_at,
                   f"update {at + 1}: the ranks took {listed(counts)} examples, and the mean of what they computed",
                   cause="right only if the loss is divided by the number of examples of all ranks; that cannot be "
                         "seen, as it calls no loss function of torch",
                   remedy="check what the loss is divided by")


def _against_one(pair: Pair, at: int, one: Reduction, by: Weighing | None, looked_at: str) -> Finding | None:
    """The same examples and parameters give another gradient on one worker."""
    if at or not comparable(pair):
        return None
    alone = find_reduction([pair.on_one(0)], pair.limit)
    if alone is None:
        return None
    error = apart(alone.gradients[0], one.gradients[0])
    if error <= pair.limit:
        return None
    return Finding(NAME, Verdict.FAILED, looked_at,
                   f"update 1: of the same examples and parameters, {pair.workers} workers have another gradient than "
                   "one", by=error, limit=pair.limit,
                   cause="the loss depends on the other examples of its rank's batch, as contrastive losses and "
                         "padding do, or on the number of workers",
                   remedy="compute what mixes examples over the global batch, or keep the local batch fixed")


def comparable(pair: Pair) -> bool:
    """Whether the first gradients of both runs must be the same."""
    return (pair.batch is not None and pair.same_start and pair.same_examples and not pair.drew
            and not any(record.batch_norms for record in pair.many))
