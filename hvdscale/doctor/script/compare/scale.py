"""Of gradients that are weighted sums of the ranks' local ones: whether the weights make the mean over all examples."""
from __future__ import annotations

import math

import numpy as np

from ...finding import Finding
from .pair import BothRuns, Pair
from .reduction import Weighing, apart, passes_of
from .state import different_untrained

NAME = "gradient"
CLOSE = 0.02            # of a factor, relative
PARALLEL = 0.9995       # cosine of gradients that differ by a factor alone, where rounding has its part
DEPARTED = 0.05         # of a later gradient, relative, where rounding has grown
ALIKE = 0.15            # of losses on the same examples that random numbers or batch-norm enter, relative


def close(value: float, to: float) -> bool:
    return math.isclose(value, to, rel_tol=CLOSE)


def finding(both: BothRuns, kind: str, **given) -> Finding:
    """The finding of a kind on an update."""
    return both.pair.finding(NAME, kind, **{"update": both.at + 1, "where": both.line, **given})


def undivided(both: BothRuns) -> Finding | None:
    """Accumulated passes are summed, where each is a mean."""
    by, alone, passes = both.weighing, both.scale_alone, len(both.ranks[0].passes)
    if by is None or passes == 1 or not _accumulates(both, by) or not close(by.scale, passes):
        return None
    if alone is not None and not close(alone, len(both.alone.passes)):
        return None
    return finding(both, "undivided", by=by.scale - 1, limit=CLOSE, scale=by.scale, targets=by.targets, passes=passes)


def remainder(both: BothRuns) -> Finding | None:
    """An update of fewer passes is divided as the others are."""
    by, passes = both.weighing, len(both.ranks[0].passes)
    usual = max(len(other.ranks[0].passes) for other in both.pair.both.values())
    if by is None or passes == usual or not close(by.scale, passes / usual):
        return None
    return finding(both, "remainder", by=1 - by.scale, limit=CLOSE, scale=by.scale, targets=by.targets, passes=passes,
                   usual=usual)


def _accumulates(both: BothRuns, by: Weighing) -> bool:
    """Whether each pass had examples of its own, from the loader or a part of its batch; else losses are added."""
    pair, passes = both.pair, list(passes_of(both.ranks))
    if len({one.losses[0].name for one in passes}) > 1 or any(len(one.fetched) > 1 for one in passes):
        return False
    given, batches = sum(pair.examples(pair.many, both.at)), sum(len(pair.batches(each, both.at)) for each in pair.many)
    return batches >= len(passes) or not given or by.targets <= given


def scaled(both: BothRuns) -> Finding | None:
    """The gradient's scale depends on the number of workers, by the same factor in all updates."""
    ratio = both.ratio
    if ratio is None or close(ratio, 1):
        return None
    others = [other.ratio for other in both.pair.both.values() if other.reduction]
    if not all(other is not None and close(other, ratio) for other in others):
        return None
    return finding(both, "scaled", by=abs(ratio - 1), limit=CLOSE, scale=both.weighing.scale, alone=both.scale_alone,
                   cause=_cause_of(both, ratio, both.scale_alone))


def _cause_of(both: BothRuns, ratio: float, alone: float | None) -> str:
    """Why the gradient is ``ratio`` times that of one worker; ``alone``: its scale there, if known."""
    workers, weights = both.pair.workers, both.reduction.weights[0]
    by_pass = weights.mean(axis=0)
    if len(by_pass) > 1 and close(by_pass[-2], workers * by_pass[-1]):
        return "reduced_again"
    if np.allclose(weights, 1, rtol=CLOSE) and workers > 1:         # local gradients are added up, each as it is
        return "summed"
    if close(ratio, workers):
        return "multiplied"
    if close(ratio, 1 / workers):
        return "divided" if alone is not None and close(alone, 1) else "sum_over_batch"
    return "divided_otherwise"


def other_denominator(both: BothRuns) -> Finding | None:
    """What the loss is divided by counts other targets than it takes, on any number of workers."""
    pair, by, ratio = both.pair, both.weighing, both.ratio
    weighed = [each.weighing for each in pair.both.values()]
    divided = [each.targets / each.scale for each in weighed] if all(each and each.scale for each in weighed) else []
    counts = [round(each) for each in divided]
    if both.at != pair.whole[0] or by is None or close(by.scale, 1) or len({*counts}) < 2:
        return None
    if any(abs(each - count) > 0.01 for each, count in zip(divided, counts)) or not ratio or not close(ratio, 1):
        return None
    if counts == [sum(pair.examples(pair.many, other)) for other in pair.whole]:
        return None                     # the mean over examples of what is summed over their targets
    return finding(both, "other_denominator", by=abs(by.scale - 1), limit=CLOSE, scale=by.scale, targets=by.targets,
                   divisor=counts[0])


def unequal(both: BothRuns) -> Finding | None:
    """Targets of different ranks or passes have different weights."""
    pair, by, limit = both.pair, both.weighing, both.pair.limit
    if by is None:
        taken = pair.examples(pair.many, both.at)
        same = len({*taken}) == 1 or matches_one(pair)
        return None if same else finding(both, "unequal_examples", examples=taken)
    counts = by.counts.sum(axis=1)
    if by.error <= limit or len({*counts}) == 1 and not _accumulates(both, by):
        return None
    if len({*by.counts.reshape(-1)}) == 1:
        return _weighted(both, by)
    parts, counts = ("ranks", counts) if len({*counts}) > 1 else ("passes", by.counts[0])
    return finding(both, "unequal", by=by.error, limit=limit, parts=parts, counts=[*counts])


def _weighted(both: BothRuns, by: Weighing) -> Finding:
    weights = both.reduction.weights[0]
    scaled = weights * [[np.linalg.norm(each.gradient) for each in update.passes] for update in both.ranks]
    by_rank = not np.allclose(weights, weights[0], rtol=CLOSE)
    clipped = by_rank and np.allclose(scaled, scaled[0, 0], rtol=CLOSE)
    return finding(both, "one_norm" if clipped else "weighted", by=by.error, limit=both.pair.limit,
                   weights=[*(by.weights / by.weights.max()).reshape(-1)], cause="by_rank" if by_rank else "factors")


def against_one(both: BothRuns) -> Finding | None:
    """The same examples and parameters give another gradient on one worker."""
    pair, alone = both.pair, both.reduction_alone
    if both.at != 0 or not comparable(pair) or not alone:
        return None
    many, one = both.reduction.gradients[0], alone.gradients[0]
    error = apart(one, many)
    if error <= pair.limit:
        return None
    times = factor(one, many)
    if times is not None and not close(times, 1):
        known = None if both.weighing is None else 1.0
        return finding(both, "times", by=abs(times - 1), limit=CLOSE, times=times,
                       cause=_cause_of(both, times, known))
    if shares := _shares(pair, one):
        return finding(both, "shares", by=error, limit=pair.limit, shares=shares)
    return finding(both, "another", by=error, limit=pair.limit,
                   cause="untrained" if different_untrained(pair) else "mixed")


def departs(both: BothRuns) -> Finding | None:
    """A later update has another gradient than one worker's, though the first has not, and nothing else differs."""
    pair, before = both.pair, range(both.at + 1)
    if both.at == 0 or not comparable(pair) or not matches_one(pair) or not all(map(pair.same_examples_at, before)):
        return None
    if any(pair.on_one(each).rates != pair.at(each)[0].rates for each in before) or any(
            each.prepared.moved or each.draws.moved for record in pair.records
            for each in passes_of(pair.steps(record).updates[:both.at + 1])):
        return None
    alone = both.reduction_alone
    error = alone and apart(alone.gradients[0], both.reduction.gradients[0])
    if not error or error <= max(DEPARTED, pair.limit):
        return None
    return finding(both, "departs", by=error, limit=DEPARTED)


def _shares(pair: Pair, alone: np.ndarray) -> list[float]:
    """With which weights the mean of the ranks' local gradients is that of one worker; empty where there are none."""
    local = np.stack([sum(each.gradient for each in update.passes) for update in pair.at(0)], axis=1)
    weights = np.linalg.lstsq(local, alone, rcond=None)[0]
    fits = apart(local @ weights, alone) <= pair.limit and close(weights.sum(), 1)
    return [*weights] if fits and weights.min() > 0 else []


def factor(one: np.ndarray, many: np.ndarray) -> float | None:
    """How many times one gradient the other is; None where it points elsewhere."""
    lengths = float(np.linalg.norm(one) * np.linalg.norm(many))
    if not lengths or one @ many / lengths < PARALLEL:
        return None
    return float(one @ many / (one @ one))


def scaled_losses(both: BothRuns) -> Finding | None:
    """Where nothing else shows the scale: the losses on the same examples differ by the number of workers."""
    pair, ratios = both.pair, _losses(both.pair)
    if both.at != pair.whole[0] or both.weighing is not None or matches_one(pair) or not ratios:
        return None
    for times, done in ((pair.workers, "multiplied"), (1 / pair.workers, "divided")):
        if all(abs(ratio / times - 1) < ALIKE for ratio in ratios):
            return finding(both, "losses", ratio=np.mean(ratios), count=len(ratios), done=done)
    return None


def _losses(pair: Pair) -> list[float]:
    """Losses on many workers by those on one, of updates with the same examples; empty where some have others."""
    found = []
    for at in pair.whole:
        one = sum(each.loss for each in pair.on_one(at).passes)
        if not one or not pair.same_examples_at(at):
            return []
        found.append(sum(each.loss for each in passes_of(pair.at(at))) / pair.workers / one)
    return found if pair.batch is not None and pair.same_start else []


CHECKS = undivided, remainder, scaled, unequal, other_denominator, against_one, departs, scaled_losses


def judge(pair: Pair) -> Finding:
    """The finding on gradients without a fault: passed where something showed their scale, else unseen."""
    found, ratios = [*pair.both.values()], _losses(pair)
    limit = pair.limit
    weighed = [both.weighing for both in found]
    if None not in weighed:
        return pair.finding(NAME, "mean" if close(weighed[0].scale, 1) else "mean_times",
                            scale=weighed[0].scale, targets=weighed[0].targets, limit=limit,
                            by=max(by.error for by in weighed))
    residual = max(both.reduction.residual for both in found)
    if matches_one(pair):
        return pair.finding(NAME, "as_on_one", by=residual, limit=limit)
    if ratios and all(abs(ratio - 1) < ALIKE for ratio in ratios):
        return pair.finding(NAME, "by_losses", by=residual, limit=limit, lowest=min(ratios),
                            highest=max(ratios))
    return pair.finding(NAME, "unknown_divisor")


def matches_one(pair: Pair) -> bool:
    """Whether the first update has the gradient of one worker."""
    if not pair.same_start:
        return False
    first = BothRuns(pair, 0)
    one, many = first.reduction_alone, first.reduction
    return bool(one and many and one.gradients[0].any() and apart(one.gradients[0], many.gradients[0]) <= pair.limit)


def comparable(pair: Pair) -> bool:
    """Whether the first gradients of both runs must be the same."""
    return (pair.batch is not None and pair.same_start and pair.same_examples and not pair.drew
            and not any(record.batch_norms for record in pair.many))
