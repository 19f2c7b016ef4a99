"""Whether each update took the mean gradient over all its examples, by the weights of the ranks' gradients in it."""

import math

import numpy as np

from ....formatting.numbers import list_first
from ....watch.remarks import HOOK, IN_BACKWARD, OWN_HOOK
from ...finding import Choice, Finding, first_met
from .pair import (ACTIVE, CLOSE, BothRuns, Pair, Weighing, alike, apart, are_finite, close, factor, factor_of,
                   only_call, passes_of)
from .state import averaged, different_untrained, is_joined

NAME, OF_WRAPPER = "gradient", ("not_reduced", "parts", "own_group")        # which are mended where it takes the model


def gradient(pair: Pair) -> Finding:
    """The first fault of any update; else a passed finding with the largest difference, or what was not seen."""
    checks = (_modes, _early_clip, _parted, _apart, _clipped, _changed, undivided, remainder, scaled, unequal,
              against_one)
    faults = (check(both) for check in checks for both in pair.both.values())
    return _hidden(pair) or next(filter(None, faults), None) or judge(pair)


def _hidden(pair: Pair) -> Finding | None:
    sharded = [record.sharded for record in pair.records if record.sharded]
    steps = [update for record in pair.records for update in pair.steps(record).updates]
    if sharded and any(any(update.rates) for update in steps) and not any(
            update.digest != update.digest_after or any(one.gradient.any() for one in (update, *update.passes))
            for update in steps):               # no gradient reaches the optimizer, and no step moves its parameters
        return pair.finding(NAME, "of_others", where=pair.at(0)[0].line)
    if sharded and not is_joined(pair.records):
        return _clipped_alone(pair) or pair.finding(NAME, "sharded", how=sharded[0])
    if pair.flat:
        alone, square = pair.on_one(0).square, sum(update.square for update in pair.at(0))
        times = math.sqrt(square / alone) if alone and pair.both[0].comparable else 0.0
        if close(times, 1):
            return pair.finding(NAME, "parts_as_on_one", by=abs(times - 1), limit=CLOSE)
        moved = any(not np.array_equal(pair.at(at)[0].parameters, pair.at(0)[0].parameters) for at in pair.whole)
        kinds = {"parts_summed": close(times, pair.workers), "flat": moved or pair.updates < 2, "of_others": True}
        return pair.finding(NAME, kinds, times=times, where=pair.at(0)[0].line)
    updates = [update for at in pair.whole for update in pair.at(at)]
    if not all(update.passes for update in updates):
        return pair.finding(NAME, "in_backward" if IN_BACKWARD in pair.many[0].remarks else "no_pass")
    if not any(update.gradient.any() for update in updates):
        passes = updates[0].passes
        return pair.finding(NAME, "lost" if passes[-1].gradient.any() else "zero", update=1, passes=len(passes),
                            lost=[*range(1, len(passes) + 1)], where=passes[-1].line)
    if infinite := [at for at in pair.whole if not are_finite(pair.at(at))]:
        return pair.finding(NAME, "not_finite", update=infinite[0] + 1)
    return None if all(both.reduction for both in pair.both.values()) else judge_passes(pair)


def _clipped_alone(pair: Pair) -> Finding | None:
    """Ranks that have unknown parts of one gradient clipped theirs by their own norms."""
    for at in pair.whole:
        clips = [clip for update in pair.at(at) for clip in update.clips[-1:]]
        norms, factors = [clip.norm for clip in clips], [factor_of(clip) for clip in clips]
        if len(clips) == pair.workers and min(factors) < ACTIVE and max(norms) - min(norms) > pair.limit * max(
                norms) and all(close(clip.norm, math.sqrt(clip.square)) for clip in clips):
            return pair.finding(NAME, "clipped_by_parts", update=at + 1, factors=factors, name="all that a rank has",
                                by=1 - min(norms) / max(norms), limit=pair.limit, where=clips[0].line)
    return None


def _modes(both: BothRuns) -> Finding | None:
    """The ranks train models whose dropout or batch-norm is in other modes."""
    layers, evaluate = zip(*(each.passes[-1].layers for each in both.ranks))
    parted = len({*layers}) == 1 and len({*evaluate}) > 1 and not both.agrees
    return finding(both, "modes", layers=layers[0], evaluate=[*evaluate]) if parted else None


def _apart(both: BothRuns) -> Finding | None:
    pair, one, first = both.pair, both.reduction, both.pair.many[0]
    by_pass, own = np.abs(one.weights), np.eye(pair.workers, dtype=bool)
    # passes whose gradients stayed on their rank: of the others' a rank has (next to) none
    alone = [] if own.all() else np.flatnonzero(by_pass[~own].max(0) < by_pass[own].max(0) / 10).tolist()
    if one.spread <= pair.limit and not alone:
        return None
    after = {update.digest_after for update in both.ranks}
    if len(after) == 1 and after != {update.digest for update in both.ranks}:       # what steps change is the same
        return _combined_in_step(pair)
    passes = both.ranks[0].passes
    differs = {name: max(apart(parts[0], part) for part in parts) > pair.limit
               for name, parts in pair.parts(one.gradients) if any(part.any() for part in parts)}
    not_reduced, weights = [name for name, is_so in differs.items() if is_so], by_pass.max(axis=2)
    sizes = {int(count) for count in (weights > weights.max() / 100).sum(axis=1)}      # that one has the mean of
    group = max(sizes) if len(sizes) == 1 and max(sizes) > 1 else first.group or len(weights)
    fetched = {batch.number for batch in pair.batches(first, both.at)}
    calls = {call for number, call in first.combined if number in fetched}
    parted, some_alone = 0 < len(not_reduced) < len(differs), 0 < len(alone) < len(passes)
    cause = first_met({
        "parts": parted and any(name in not_reduced and not all(np.array_equal(parts[0], part) for part in parts)
                                for name, parts in pair.parts([update.parameters for update in pair.at(0)])),
        "not_reduced": parted, "again": some_alone and passes[alone[0]].again, "passes_alone": some_alone,
        "skips": pair.skipped is not None and both.at >= pair.skipped, "local_steps": averaged(pair),
        "own_group": group < pair.workers, "changed_by_rank": "reduce" not in calls and all(        # to one rank
            np.delete(each, rank).max(initial=0.0) > each.max() / 10 for rank, each in enumerate(weights)),
        "left_off": both.at, "not_averaged": True})
    if cause == "local_steps":
        return finding(both, cause)
    where = (first.wrapped if cause in OF_WRAPPER else "") or passes[(alone or [-1])[-1]].line
    clipping = [rank for rank, update in enumerate(both.ranks) if update.clips]
    if cause == "changed_by_rank":
        where = both.ranks[0].line if len(clipping) in (0, pair.workers) else both.ranks[clipping[0]].clips[-1].line
    return finding(both, "apart", by=one.spread, cause=cause, where=where, names=list_first(not_reduced, 4),
                   group=group, parameters=len(differs), called="all_reduce" in calls,
                   alone=[each + 1 for each in alone], clipping=clipping[:len(clipping) % pair.workers] or None)


def _parted(both: BothRuns) -> Finding | None:
    pair, one = both.pair, both.reduction
    name, factors = pair.scaled_parts(both.sum / pair.workers, both.ranks[0].gradient, both.ranks)
    if factors and not both.agrees:
        by = 1 - min(factors) / max(factors)
        return finding(both, "clipped_by_parts", factors=factors, name=name, by=by, where=both.ranks[0].line)
    weights = np.abs(one.weights).max(axis=(0, 1))
    if one.residual <= pair.limit and weights.min() < weights.max() / 100:
        lost = [at + 1 for at, weight in enumerate(weights) if weight < weights.max() / 100]
        return finding(both, "lost", lost=lost, where=both.ranks[0].passes[int(weights.argmin())].line)
    return None


def _combined_in_step(pair: Pair) -> Finding:
    """The finding on an optimizer whose step combines the gradients, by what its first step did to the parameters."""
    if not pair.both[0].comparable or pair.updates < 2 or pair.on_one(0).rates != pair.at(0)[0].rates:
        return pair.finding(NAME, "in_step_unseen", comparable=False)
    one, many = (steps[1].parameters - steps[0].parameters for steps in (
        [pair.on_one(at) for at in (0, 1)], [pair.at(at)[0] for at in (0, 1)]))
    times = factor(one, many)
    if times is None:
        return pair.finding(NAME, "in_step_unseen", comparable=True)
    if close(times, 1):
        return pair.finding(NAME, "in_step", by=apart(one, many), limit=CLOSE)
    return pair.finding(NAME, "in_step_scaled", by=abs(times - 1), limit=CLOSE, times=times, where=pair.at(0)[0].line,
                        cause="summed_in_step" if close(times, pair.workers) else "scaled_in_step")


def _early_clip(both: BothRuns) -> Finding | None:
    """Gradients were clipped before a GradScaler divided them, before Horovod did, or before others were added."""
    for update in both.ranks:
        for clip in update.clips:
            cuts, between = not clip.norm <= clip.limit, clip.passes < len(update.passes)
            kinds = {"clipped_scaled": clip.scale != 1, "clipped_early": clip.early and cuts,
                     "clipped_in_between": between and cuts and both.reduction.spread <= both.pair.limit}
            if any(kinds.values()):
                return finding(both, kinds, where=clip.line, scale=clip.scale, clips=len(update.clips))
    return None


def _clipped(both: BothRuns) -> Finding | None:
    one = both.reduction
    if one.clipped is None or min(one.clipped) > ACTIVE:
        return None
    directions = [each / max(np.linalg.norm(each), 1e-300) for each in (both.sum, one.gradients[0])]
    return finding(both, "clipped", by=apart(*directions), factors=one.clipped, where=both.ranks[0].clips[-1].line)


def _changed(both: BothRuns) -> Finding | None:
    one, taken, limit = both.reduction, both.reduction.gradients[0], both.pair.limit
    if one.residual <= limit or both.agrees or all(
            factor(*parts) is not None for _, parts in both.pair.parts([both.sum, taken])
            if all(part.any() for part in parts)):      # a factor of each parameter's, as of a clip by its norm
        return None
    ranks = np.stack([sum(each.gradient for each in update.passes) for update in both.ranks])
    by_number = {"largest": ranks.max(0), "smallest": ranks.min(0), "product": ranks.prod(0)}
    if how := first_met({how: apart(made, taken) <= limit for how, made in by_number.items()}):
        return finding(both, "by_number", how=how, by=one.residual, where=both.ranks[0].line)
    if clips := [clip for update in both.ranks for clip in update.clips[-1:]]:
        cut = ranks.clip(-clips[0].limit, clips[0].limit).mean(0)
        if math.isnan(clips[0].norm) and factor(cut, taken):
            return finding(both, "clipped_values", by=one.residual, where=clips[0].line)
    if both.at:                                         # or with that of the update before
        local = [each.gradient for each in passes_of(both.ranks)]
        columns = np.stack([*local, both.pair.at(both.at - 1)[0].gradient], axis=1)
        *_, share = weights = np.linalg.lstsq(columns, taken, rcond=None)[0]
        count = max(1, round(share * both.pair.workers))
        if close(share * both.pair.workers, count) and apart(columns @ weights, taken) <= limit:
            return finding(both, "kept", times=share, count=count, by=one.residual, where=both.ranks[0].passes[-1].line)
    hooked, own = (hook in both.pair.many[0].remarks for hook in (HOOK, OWN_HOOK))
    kind = "another" if own and not hooked and both.comparable else "changed"
    return finding(both, kind, cause={"hooked": hooked, "own_hook": own}, by=one.residual, where=both.ranks[0].line)


def finding(both: BothRuns, kind: str | Choice, **given) -> Finding:
    about = {"update": both.at + 1, "where": both.line, "passes": both.passes, "of_one": int(both.passes_of_one),
             "limit": both.pair.limit if "by" in given else None}
    return both.pair.finding(NAME, kind, **about | given)


def undivided(both: BothRuns) -> Finding | None:
    """Accumulated passes are summed, where each is a mean."""
    by, alone, passes = both.weighing, both.scale_alone, both.passes
    if by and passes > 1 and _accumulates(both, by) and close(by.scale, passes) and (
            alone is None or close(alone, both.passes_of_one)):
        return finding(both, "undivided", by=by.scale - 1, limit=CLOSE, scale=by.scale, targets=by.counts.sum())
    return None


def remainder(both: BothRuns) -> Finding | None:
    """An update of fewer passes is divided as the others are."""
    by, usual = both.weighing, max(other.passes for other in both.pair.both.values())
    if by and both.passes != usual and close(by.scale, both.passes / usual):
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
    by, means, counts = both.weighing, both.weighing.weights.sum(axis=1), both.weighing.counts.sum(axis=1)
    by_rank = len({*counts}) == 1 and alike(both.reduction.weights[0]) and not alike(means)
    return finding(both, "scaled", by=abs(ratio - 1), limit=CLOSE, scale=by.scale, alone=both.scale_alone,
                   shares=[*(means / np.abs(means).max())],
                   cause={"scaled_by_rank": by_rank, **_causes_of(both, ratio, both.scale_alone)})


def _causes_of(both: BothRuns, ratio: float, alone: float | None) -> Choice:
    """Why the gradient is ``ratio`` times that of one worker; ``alone``: its scale there, if known."""
    workers, times, weights = both.pair.workers, both.pair.times, both.reduction.weights[0]
    by_pass, passes = weights.mean(axis=0), weights.shape[1]
    return {"reduced_again": passes > 1 and close(by_pass[-2], workers * by_pass[-1]),
            "summed": np.allclose(weights, 1, rtol=CLOSE) and workers > 1,      # local gradients, each as it is
            "multiplied": close(ratio, times) and (alone is None or close(alone, 1)),
            "passes_of_one": passes != both.passes_of_one and close(ratio, passes / both.passes_of_one),
            "divided_twice": np.allclose(weights * workers * times, 1, rtol=CLOSE) and times > 1,   # of whole losses
            "divided": close(ratio, 1 / times) and alone is not None and close(alone, 1),
            "sum_over_batch": close(ratio, 1 / times), "divided_otherwise": close(by_pass[-1] * workers, 1),
            "scaled_after": True}


def other_divisor(pair: Pair) -> tuple[int, int]:
    """By how many targets the first loss is divided, on any number of workers, and how many it has, if others."""
    weighed, ratios = zip(*((each.weighing, each.ratio) for each in pair.both.values()))
    if not all(ratio and close(ratio, 1) for ratio in ratios) or close(weighed[0].scale, 1):
        return 0, 0
    divided = [each.counts.sum() / each.scale for each in weighed]
    counts = [*map(round, divided)]
    if len({*counts}) < 2 or any(abs(each - count) > 0.01 for each, count in zip(divided, counts)):
        return 0, 0
    of_examples = counts == [sum(pair.examples(pair.many, at)) for at in pair.whole]       # of sums over their targets
    times = [max(each.scale, 1 / each.scale) for each in weighed]       # whole ones are factors of the script's own
    by_factors = np.allclose(times, np.round(times), rtol=1e-4)
    return (0, 0) if of_examples or by_factors else (counts[0], round(weighed[0].counts.sum()))


def unequal(both: BothRuns) -> Finding | None:
    """Targets of different ranks or passes have different weights."""
    pair, by, limit = both.pair, both.weighing, both.pair.limit
    if by is None:
        taken = pair.examples(pair.many, both.at)
        return None if len({*taken}) == 1 or pair.matches_one else finding(both, "unequal_examples", examples=taken)
    counts = by.counts.sum(axis=1)
    if by.error <= limit or both.agrees or len({*counts}) == 1 and not _accumulates(both, by):
        return None
    kept = [one.losses[0].weights[one.losses[0].weights != 0] for one in passes_of(both.ranks)]
    if not both.comparable and not all(map(alike, kept)):
        return None                     # the script's own weights of targets, as it means them or not
    if len({*by.counts.flatten()}) > 1 and alike(by.weights.flatten()):
        parts, counts = ("ranks", counts) if len({*counts}) > 1 else ("passes", by.counts[0])
        return finding(both, "unequal", by=by.error, parts=parts, counts=[*counts])
    weights, of_target = both.reduction.weights[0], (by.weights / by.counts).flatten()
    scaled = weights * [[np.linalg.norm(each.gradient) for each in update.passes] for update in both.ranks]
    by_rank, by_batch = not alike(weights), alike(weights) and both.comparable
    kinds = {"one_norm": by_rank and alike(scaled.flatten()), "weighted_by_batch": by_batch, "weighted": True}
    return finding(both, kinds, by=by.error, weights=[*(of_target / of_target.max())],
                   cause={"by_rank": by_rank, "factors": not by_batch})


def against_one(both: BothRuns) -> Finding | None:
    """The same examples and parameters give another gradient on one worker."""
    pair, alone = both.pair, both.reduction_alone
    if not alone or not both.comparable:
        return None
    many, one, limit = both.reduction.gradients[0], alone.gradients[0], both.floor
    error = apart(one, many)
    if error <= limit:
        return None
    times = factor(one, many) if both.at == pair.whole[0] else None
    if times is not None and not close(times, 1):
        return finding(both, "times", by=abs(times - 1), limit=CLOSE, times=times,
                       cause=_causes_of(both, times, 1.0 if both.weighing else None))
    # with which weights the mean of the ranks' local gradients is that of one worker, if with any
    local = np.stack([sum(each.gradient for each in update.passes) for update in both.ranks], axis=1)
    shares = np.linalg.lstsq(local, one, rcond=None)[0]
    if shares.min() > 0 and close(shares.sum(), 1) and apart(local @ shares, one) <= pair.limit:
        return finding(both, "shares", by=error, limit=limit, shares=[*shares])
    cause = _why_another(both)
    later = cause == "untrained" and not different_untrained(pair)
    if both.at and (later or cause == "mixed"):
        return finding(both, "departs", by=error, limit=limit, cause=cause if later else "")
    return finding(both, "another", by=error, limit=limit, cause=cause)


def _why_another(both: BothRuns) -> str:
    """The cause of another gradient, as far as the calls of loss functions show it."""
    if different_untrained(both.pair, later=both.at > 0):
        return "untrained"
    one, many = ([call for each in passes_of(of) for call in each.losses] for of in ([both.alone], both.ranks))
    names, same = {call.name for call in one}, True
    if not one or names != {call.name for call in many}:
        return "mixed"
    for name in names:
        calls = [[call for call in each if call.name == name] for each in (one, many)]
        values, others = (np.concatenate([call.values for call in each]) for each in calls)
        weights, their_weights = (np.concatenate([call.weights for call in each]) for each in calls)
        if not math.isclose(values.sum(), others.sum(), rel_tol=both.floor / 100):
            return "mixed"
        weights, share = weights[values.argsort()], both.reduction.weights[0].mean() * their_weights[others.argsort()]
        if len(weights) != len(share):
            weights, share = ([each.min(), each.max()] for each in (weights, share))
        same &= np.allclose(weights, share, rtol=CLOSE, atol=CLOSE * np.abs(weights).max())
    return first_met({"chosen": not same, "term": losses_apart(both, both.floor / 100),
                      "gathered": any("gather" in call for _, call in both.pair.many[0].combined), "unexplained": True})


def losses_apart(both: BothRuns, limit: float) -> tuple[float, float] | None:
    """The losses on one worker and of all ranks, weighted as their gradients, where they differ and must not."""
    pair, alone = both.pair, both.reduction_alone
    if not alone or not both.comparable or max(both.reduction.residual, alone.residual) > pair.limit:
        return None
    one, many = (sum(weight * each.loss for weight, each in zip(reduction.weights[0].reshape(-1), passes_of(updates)))
                 for reduction, updates in ((both.reduction_alone, [both.alone]), (both.reduction, both.ranks)))
    one *= pair.base                    # each pass of it has its share of the mean
    return (one, many) if abs(one - many) > limit * max(abs(one), abs(many)) else None


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
        if apart_by := losses_apart(both, both.floor):
            return finding(both, "losses_unexplained", alone=apart_by[0], together=apart_by[1])
    if all(by and by.error <= limit for by in weighed):
        if found[0].passes > 1 and close(weighed[0].scale, 1 / found[0].passes):
            return finding(found[0], "divided_again", scale=weighed[0].scale)
        return pair.finding(NAME, "mean", scale=None if close(weighed[0].scale, 1) else weighed[0].scale, limit=limit,
                            of=pair.workers, targets=weighed[0].counts.sum(), by=max(by.error for by in weighed))
    if pair.matches_one:
        return pair.finding(NAME, "as_on_one", by=apart(pair.on_one(0).gradient, pair.at(0)[0].gradient), limit=limit)
    return pair.finding(NAME, "unknown_divisor")


def judge_passes(pair: Pair) -> Finding:
    """The finding on gradients of which the ranks made different numbers of passes: only those of one worker tell."""
    compared = [both for both in pair.both.values() if both.comparable]
    for both in compared:
        if not both.agrees:
            by = max(apart(both.alone.gradient, each.gradient) for each in both.ranks)
            calls = [[only_call(one) for one in update.passes] for update in both.ranks]
            weights = [sum(call.total for call in row) / sum(call.count for call in row) for row in calls if all(row)]
            uneven = len(weights) == pair.workers and not alike(weights)
            return finding(both, "another", by=by, limit=both.floor, made=[*map(len, calls)],
                           weights=[weight / max(weights) for weight in weights],
                           cause="uneven_passes" if uneven else "unexplained_passes")
    return pair.finding(NAME, "uneven_as_on_one" if compared else "uneven_passes", count=len(compared))
