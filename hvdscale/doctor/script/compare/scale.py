"""Of gradients that are weighted sums of the ranks' local ones: whether the weights make the mean over all examples."""
from __future__ import annotations

import math

import numpy as np

from ...finding import Choice, Finding, first_met
from .pair import BothRuns, Pair, Weighing, apart, only_call, passes_of
from .state import different_untrained

NAME = "gradient"
CLOSE = 0.02            # of a factor, relative
PARALLEL = 0.9995       # cosine of gradients that differ by a factor alone, where rounding has its part
DEPARTED = 0.05         # of a later gradient, relative, where rounding has grown, at most
GROWTH = 100            # times the distance of the parameters, by what they have moved
DRIFTED = 0.02          # of that distance, from which on parameters are others


def close(value: float, to: float) -> bool:
    return math.isclose(value, to, rel_tol=CLOSE)


def finding(both: BothRuns, kind: str, **given) -> Finding:
    passes, of_one = (len(update.passes) for update in (both.ranks[0], both.alone))
    return both.pair.finding(NAME, kind, **{"update": both.at + 1, "where": both.line, "passes": passes,
                                            "of_one": of_one // both.pair.base, **given})


def undivided(both: BothRuns) -> Finding | None:
    """Accumulated passes are summed, where each is a mean."""
    by, alone, passes = both.weighing, both.scale_alone, len(both.ranks[0].passes)
    if by and passes > 1 and _accumulates(both, by) and close(by.scale, passes) and (
            alone is None or close(alone, len(both.alone.passes) / both.pair.base)):
        return finding(both, "undivided", by=by.scale - 1, limit=CLOSE, scale=by.scale, targets=by.counts.sum())
    return None


def remainder(both: BothRuns) -> Finding | None:
    """An update of fewer passes is divided as the others are."""
    by, passes = both.weighing, len(both.ranks[0].passes)
    usual = max(len(other.ranks[0].passes) for other in both.pair.both.values())
    if by and passes != usual and close(by.scale, passes / usual):
        return finding(both, "remainder", by=1 - by.scale, limit=CLOSE, scale=by.scale, targets=by.counts.sum(),
                       usual=usual)
    return None


def _accumulates(both: BothRuns, by: Weighing) -> bool:
    """Whether each pass had examples of its own, from the loader or a part of its batch; else losses are added."""
    pair, passes = both.pair, list(passes_of(both.ranks))
    if len({one.losses[0].name for one in passes}) > 1 or any(len(one.fetched) > 1 for one in passes):
        return False
    given, batches = sum(pair.examples(pair.many, both.at)), sum(len(pair.batches(each, both.at)) for each in pair.many)
    return batches >= len(passes) or not given or by.counts.sum() <= given


def scaled(both: BothRuns) -> Finding | None:
    """The gradient's scale depends on the number of workers, by the same factor in all updates."""
    ratio, every = both.ratio, [other.ratio for other in both.pair.both.values()]
    if None in every or close(ratio, 1) or not all(close(other, ratio) for other in every):
        return None
    return finding(both, "scaled", by=abs(ratio - 1), limit=CLOSE, scale=both.weighing.scale, alone=both.scale_alone,
                   cause=_causes_of(both, ratio, both.scale_alone))


def _causes_of(both: BothRuns, ratio: float, alone: float | None) -> Choice:
    """Why the gradient is ``ratio`` times that of one worker; ``alone``: its scale there, if known."""
    workers, times, weights = both.pair.workers, both.pair.times, both.reduction.weights[0]
    by_pass = weights.mean(axis=0)
    passes, of_one = len(by_pass), len(both.alone.passes) / both.pair.base
    return {"reduced_again": passes > 1 and close(by_pass[-2], workers * by_pass[-1]),
            "summed": np.allclose(weights, 1, rtol=CLOSE) and workers > 1,      # local gradients, each as it is
            "multiplied": close(ratio, times), "passes_of_one": passes != of_one and close(ratio, passes / of_one),
            "divided_twice": np.allclose(weights * workers * times, 1, rtol=CLOSE) and times > 1,   # of whole losses
            "divided": close(ratio, 1 / times) and alone is not None and close(alone, 1),
            "sum_over_batch": close(ratio, 1 / times), "divided_otherwise": close(by_pass[-1] * workers, 1),
            "scaled_after": True}


def other_divisor(pair: Pair) -> tuple[int, int]:
    """By how many targets the loss of the first update is divided, on any number of workers, and how many it has, where
    these are others."""
    weighed, ratios = zip(*((each.weighing, each.ratio) for each in pair.both.values()))
    if not all(ratio and close(ratio, 1) for ratio in ratios) or close(weighed[0].scale, 1):
        return 0, 0
    divided = [each.counts.sum() / each.scale for each in weighed]
    counts = [round(each) for each in divided]
    if len({*counts}) < 2 or any(abs(each - count) > 0.01 for each, count in zip(divided, counts)):
        return 0, 0
    of_examples = counts == [sum(pair.examples(pair.many, at)) for at in pair.whole]       # of sums over their targets
    return (0, 0) if of_examples else (counts[0], round(weighed[0].counts.sum()))


def unequal(both: BothRuns) -> Finding | None:
    """Targets of different ranks or passes have different weights."""
    pair, by, limit = both.pair, both.weighing, both.pair.limit
    if by is None:
        taken = pair.examples(pair.many, both.at)
        same = len({*taken}) == 1 or matches_one(pair)
        return None if same else finding(both, "unequal_examples", examples=taken)
    counts = by.counts.sum(axis=1)
    if by.error <= limit or agrees(both) or len({*counts}) == 1 and not _accumulates(both, by):
        return None
    kept = [one.losses[0].weights[one.losses[0].weights != 0] for one in passes_of(both.ranks)]
    if not comparable(pair, both.at) and not all(np.allclose(each, each[:1], rtol=CLOSE) for each in kept):
        return None                     # the script's own weights of targets, as it means them or not
    if len({*by.counts.reshape(-1)}) > 1 and np.allclose(by.weights, by.weights[0, 0], rtol=CLOSE):
        parts, counts = ("ranks", counts) if len({*counts}) > 1 else ("passes", by.counts[0])
        return finding(both, "unequal", by=by.error, limit=limit, parts=parts, counts=[*counts])
    weights = both.reduction.weights[0]
    scaled = weights * [[np.linalg.norm(each.gradient) for each in update.passes] for update in both.ranks]
    by_rank = not np.allclose(weights, weights[0], rtol=CLOSE)
    clipped = by_rank and np.allclose(scaled, scaled[0, 0], rtol=CLOSE)
    kind, cause = "one_norm" if clipped else "weighted", "by_rank" if by_rank else "factors"
    if cause == "factors" and comparable(pair, both.at):
        kind, cause = "weighted_by_batch", ""
    of_target = by.weights / by.counts
    return finding(both, kind, by=by.error, limit=limit, weights=[*(of_target / of_target.max()).reshape(-1)],
                   cause=cause)


def against_one(both: BothRuns) -> Finding | None:
    """The same examples and parameters give another gradient on one worker."""
    pair, alone = both.pair, both.reduction_alone
    if not alone or not comparable(pair, both.at):
        return None
    many, one, limit = both.reduction.gradients[0], alone.gradients[0], floor(pair, both.at)
    error = apart(one, many)
    if error <= limit:
        return None
    times = factor(one, many) if both.at == pair.whole[0] else None
    if times is not None and not close(times, 1):
        return finding(both, "times", by=abs(times - 1), limit=CLOSE, times=times,
                       cause=_causes_of(both, times, 1.0 if both.weighing else None))
    if shares := _shares(both, one):
        return finding(both, "shares", by=error, limit=limit, shares=shares)
    cause = _why_another(both)
    later = cause == "untrained" and not different_untrained(pair)
    if both.at and (later or cause == "mixed"):
        return finding(both, "departs", by=error, limit=limit, cause=cause if later else "")
    return finding(both, "another", by=error, limit=limit, cause=cause)


def _why_another(both: BothRuns) -> str:
    """The cause of another gradient, as far as the calls of loss functions show it."""
    if different_untrained(both.pair, later=both.at > 0):
        return "untrained"
    one, many = ([call for each in passes_of(updates) for call in each.losses]
                 for updates in ([both.alone], both.ranks))
    if not one or {call.name for call in one} != {call.name for call in many}:
        return "mixed"
    same = True
    for name in {call.name for call in one}:
        (values, weights), (others, their_weights) = (
            [np.concatenate([getattr(call, field) for call in calls if call.name == name])
             for field in ("values", "weights")] for calls in (one, many))
        if not math.isclose(values.sum(), others.sum(), rel_tol=floor(both.pair, both.at) / 100):
            return "mixed"
        weights, share = weights[values.argsort()], both.reduction.weights[0].mean() * their_weights[others.argsort()]
        if len(weights) != len(share):
            weights, share = ([each.min(), each.max()] for each in (weights, share))
        same &= np.allclose(weights, share, rtol=CLOSE, atol=CLOSE * np.abs(weights).max())
    return first_met({"chosen": not same, "term": losses_apart(both, floor(both.pair, both.at) / 100),
                      "gathered": any("gather" in call for _, call in both.pair.many[0].combined), "unexplained": True})


def losses_apart(both: BothRuns, limit: float) -> tuple[float, float] | None:
    """The losses on one worker and of all ranks, weighted as their gradients, where they differ and must not."""
    pair = both.pair
    if not both.reduction or not both.reduction_alone or not comparable(pair, both.at) or max(
            both.reduction.residual, both.reduction_alone.residual) > pair.limit:
        return None
    one, many = (sum(weight * each.loss for weight, each in zip(reduction.weights[0].reshape(-1), passes_of(updates)))
                 for reduction, updates in ((both.reduction_alone, [both.alone]), (both.reduction, both.ranks)))
    one *= pair.base                    # each pass of it has its share of the mean
    return (one, many) if abs(one - many) > limit * max(abs(one), abs(many)) else None


def _shares(both: BothRuns, alone: np.ndarray) -> list[float]:
    """With which weights the mean of the ranks' local gradients is that of one worker; empty where there are none."""
    local = np.stack([sum(each.gradient for each in update.passes) for update in both.ranks], axis=1)
    weights = np.linalg.lstsq(local, alone, rcond=None)[0]
    fits = apart(local @ weights, alone) <= both.pair.limit and close(weights.sum(), 1)
    return [*weights] if fits and weights.min() > 0 else []


def factor(one: np.ndarray, many: np.ndarray) -> float | None:
    """How many times one gradient the other is; None where it points elsewhere."""
    lengths = float(np.linalg.norm(one) * np.linalg.norm(many))
    return float(one @ many / (one @ one)) if lengths and one @ many / lengths >= PARALLEL else None


CHECKS = undivided, remainder, scaled, unequal, against_one


def judge(pair: Pair) -> Finding:
    """The finding on gradients without a fault: passed where something showed their scale, else unseen."""
    found, limit = [*pair.both.values()], pair.limit
    weighed = [both.weighing for both in found]
    for at in range(1, pair.updates):
        before, passes = (pair.at(each)[0].passes for each in (at - 1, at))
        earlier = [one for one in passes if one.fetched.keys() != passes[-1].fetched.keys()]
        if earlier and len(passes) > len(before):
            return pair.finding(NAME, "left_over", update=at + 1, passes=len(passes), before=len(earlier),
                                where=passes[-1].line)
    for both in found:
        if apart_by := losses_apart(both, floor(pair, both.at)):
            return finding(both, "losses_unexplained", alone=apart_by[0], together=apart_by[1])
    if all(by and by.error <= limit for by in weighed):
        passes = len(found[0].ranks[0].passes)
        if passes > 1 and close(weighed[0].scale, 1 / passes):
            return finding(found[0], "divided_again", scale=weighed[0].scale)
        return pair.finding(NAME, "mean", scale=None if close(weighed[0].scale, 1) else weighed[0].scale, limit=limit,
                            of=pair.workers, targets=weighed[0].counts.sum(), by=max(by.error for by in weighed))
    residual = max(both.reduction.residual for both in found)
    if matches_one(pair):
        return pair.finding(NAME, "as_on_one", by=residual, limit=limit)
    return pair.finding(NAME, "unknown_divisor")


def judge_passes(pair: Pair) -> Finding:
    """The finding on gradients of which the ranks made different numbers of passes: only those of one worker tell."""
    compared = [both for both in pair.both.values() if comparable(pair, both.at)]
    for both in compared:
        if not agrees(both):
            by = max(apart(both.alone.gradient, each.gradient) for each in both.ranks)
            calls = [[only_call(one) for one in update.passes] for update in both.ranks]
            weights = [sum(call.total for call in row) / sum(call.count for call in row) for row in calls if all(row)]
            uneven = len(weights) == pair.workers and not np.allclose(weights, weights[0], rtol=CLOSE)
            return finding(both, "another", by=by, limit=floor(pair, both.at), made=[*map(len, calls)],
                           cause="uneven_passes" if uneven else "unexplained_passes",
                           weights=[weight / max(weights) for weight in weights])
    return pair.finding(NAME, "uneven_as_on_one" if compared else "uneven_passes", count=len(compared))


def matches_one(pair: Pair) -> bool:
    """Whether the first update has the gradient of one worker."""
    if not pair.same_start:
        return False
    one, many = pair.both[0].reduction_alone, pair.both[0].reduction
    return bool(one and many and one.gradients[0].any() and apart(one.gradients[0], many.gradients[0]) <= pair.limit)


def comparable(pair: Pair, at: int = 0) -> bool:
    """Whether the gradients of an update must be the same in both runs: all ranks have had the same parameters,
    examples and rates so far, drew nothing, and normalized nothing over a batch."""
    return not any(obstacles(pair, at).values()) and _drift(pair, at) < DRIFTED and len(
        {update.parameters.tobytes() for update in pair.at(at)}) == 1 and all(
            pair.on_one(each).rates == pair.at(each)[0].rates for each in range(at))


def obstacles(pair: Pair, at: int = 0) -> dict[str, bool]:
    """By name, whether this keeps an update of both runs from being compared."""
    first = [update.gradient for update in (pair.on_one(0), *pair.at(0))] if pair.updates else []
    return {"other_batch": pair.batch is None, "sharded": any(np.isnan(each).any() for each in first),
            "other_start": not pair.same_start,
            "unknown_examples": not pair.keys(pair.many, 0) or not pair.keys([pair.one], 0),
            "other_examples": not all(map(pair.same_examples, range(at + 1))), "random": pair.drew_by(at),
            "batch_norm": any(record.batch_norms for record in pair.many)}


def floor(pair: Pair, at: int) -> float:
    """How far gradients of an update may be apart by rounding, which has grown as far as the parameters are apart."""
    return max(pair.limit, min(DEPARTED, GROWTH * _drift(pair, at)))


def _drift(pair: Pair, at: int) -> float:
    """How far the parameters before an update are from those of one worker, by how far they have moved."""
    begin, one, many = (update.parameters for update in (pair.on_one(0), pair.on_one(at), pair.at(at)[0]))
    moved = float(np.linalg.norm(one - begin))
    return float(np.linalg.norm(one - many)) / moved if at and moved else 0.0


def agrees(both: BothRuns) -> bool:
    """Whether the gradient that each rank takes is that of one worker, of the same parameters and examples."""
    return comparable(both.pair, both.at) and all(
        apart(both.alone.gradient, update.gradient) <= floor(both.pair, both.at) for update in both.ranks)
