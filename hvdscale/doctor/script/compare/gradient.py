"""Whether each update took the mean gradient over all its examples."""
from __future__ import annotations

import math

import numpy as np

from ....formatting.numbers import list_first
from ....watch.remarks import HOOK, OWN_HOOK
from ...finding import Finding, first_met
from . import scale
from .pair import ACTIVE, BothRuns, Pair, Reduction, apart, are_finite, passes_of
from .scale import CLOSE, agrees, close, finding
from .state import averaged, is_joined

NAME, OF_WRAPPER = scale.NAME, ("not_reduced", "parts", "own_group")        # which are mended where it takes the model


def gradient(pair: Pair) -> Finding:
    """The first fault of any update; else a passed finding with the largest difference, or what was not seen."""
    if hidden := _hidden(pair):
        return hidden
    for check in (_clipped_early, _parted, _apart, _clipped, _unexplained, *scale.CHECKS):
        for both in pair.both.values():
            if fault := check(both):
                return fault
    return scale.judge(pair)


def _hidden(pair: Pair) -> Finding | None:
    sharded = [record.sharded for record in pair.records if record.sharded]
    steps = [update for record in pair.records for update in pair.steps(record).updates]
    if sharded and any(any(update.rates) for update in steps) and not any(
            update.digest != update.digest_after or any(one.gradient.any() for one in (update, *update.passes))
            for update in steps):               # no gradient reaches the optimizer, and no step moves its parameters
        return pair.finding(NAME, "of_others", where=pair.at(0)[0].line)
    if sharded and not is_joined(pair.records):
        return _clipped_alone(pair) or pair.finding(NAME, "sharded", how=sharded[0])
    if not pair.updates:
        return pair.finding(NAME, "no_update")
    if pair.flat:
        alone, square = pair.on_one(0).square, sum(update.square for update in pair.at(0))
        times = math.sqrt(square / alone) if alone and scale.comparable(pair) else 0.0
        if close(times, 1):
            return pair.finding(NAME, "parts_as_on_one", by=abs(times - 1), limit=CLOSE)
        moved = any(not np.array_equal(pair.at(at)[0].parameters, pair.at(0)[0].parameters) for at in pair.whole)
        kinds = {"parts_summed": close(times, pair.workers), "flat": moved or pair.updates < 2, "of_others": True}
        return pair.finding(NAME, kinds, times=times, where=pair.at(0)[0].line)
    updates = [update for at in pair.whole for update in pair.at(at)]
    if not all(update.passes for update in updates):
        return pair.finding(NAME, "no_pass")
    if not any(update.gradient.any() for update in updates):
        passes = updates[0].passes
        return pair.finding(NAME, "lost", update=1, passes=len(passes), lost=[*range(1, len(passes) + 1)],
                            where=passes[-1].line) if passes[-1].gradient.any() else pair.finding(NAME, "zero")
    for at in pair.whole:
        if not are_finite(pair.at(at)):
            return pair.finding(NAME, "not_finite", update=at + 1)
    if not all(both.reduction for both in pair.both.values()):
        return scale.judge_passes(pair)
    return None


def _clipped_alone(pair: Pair) -> Finding | None:
    """Ranks that have unknown parts of one gradient clipped theirs by their own norms."""
    for at in pair.whole:
        clips = [clip for update in pair.at(at) for clip in update.clips[-1:]]
        norms = [clip.norm for clip in clips]
        factors = [min(1.0, clip.limit / max(clip.norm, 1e-12)) for clip in clips]
        if len(clips) == pair.workers and min(factors) < ACTIVE and max(norms) - min(norms) > pair.limit * max(
                norms) and all(close(clip.norm, math.sqrt(clip.square)) for clip in clips):
            return pair.finding(NAME, "clipped_by_parts", update=at + 1, factors=factors, name="all that a rank has",
                                by=1 - min(norms) / max(norms), limit=pair.limit, where=clips[0].line)
    return None


def _apart(both: BothRuns) -> Finding | None:
    pair, one, first = both.pair, both.reduction, both.pair.many[0]
    alone, weights = _passes_alone(one), np.abs(one.weights).max(axis=2)
    if one.spread <= pair.limit and not alone:
        return None
    after = {update.digest_after for update in both.ranks}
    if len(after) == 1 and after != {update.digest for update in both.ranks}:       # what steps change is the same
        return _combined_in_step(pair)
    passes = both.ranks[0].passes
    differs = {name: max(apart(parts[0], part) for part in parts) > pair.limit
               for name, parts in pair.parts(one.gradients) if any(part.any() for part in parts)}
    not_reduced, reduced = ([name for name, is_so in differs.items() if is_so == wanted] for wanted in (True, False))
    sizes = {int(count) for count in (weights > weights.max() / 100).sum(axis=1)}      # that one has the mean of
    group = max(sizes) if len(sizes) == 1 and max(sizes) > 1 else first.group or len(weights)
    fetched = {batch.number for batch in pair.batches(first, both.at)}
    calls = {call for number, call in first.combined if number in fetched}
    parted, some_alone = not_reduced and reduced, 0 < len(alone) < len(passes)
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
    return finding(both, "apart", by=one.spread, limit=pair.limit, cause=cause, where=where,
                   names=list_first(not_reduced, 4), group=group,
                   parameters=len(not_reduced) + len(reduced), passes=len(passes), called="all_reduce" in calls,
                   alone=[each + 1 for each in alone], clipping=clipping[:len(clipping) % pair.workers] or None)


def _passes_alone(one: Reduction) -> list[int]:
    """Passes whose gradients stayed on their rank: of the others' a rank has (next to) none."""
    own, weights = np.eye(len(one.weights), dtype=bool), np.abs(one.weights)
    return [at for at in range(weights.shape[2]) if not own.all() and (
            weights[~own, at].max() < weights[own, at].max() / 10)]


def _parted(both: BothRuns) -> Finding | None:
    pair, one = both.pair, both.reduction
    mean = sum(each.gradient for each in passes_of(both.ranks)) / pair.workers
    name, factors = pair.scaled_parts(mean, both.ranks[0].gradient, both.ranks)
    if factors and not agrees(both):
        return finding(both, "clipped_by_parts", factors=factors, name=name, where=both.ranks[0].line,
                       by=1 - min(factors) / max(factors), limit=pair.limit)
    passes, weights = len(both.ranks[0].passes), np.abs(one.weights).max(axis=(0, 1))
    if one.residual <= pair.limit and weights.min() < weights.max() / 100:
        lost = [at + 1 for at in range(passes) if weights[at] < weights.max() / 100]
        return finding(both, "lost", lost=lost, passes=passes, where=both.ranks[0].passes[int(weights.argmin())].line)
    return None


def _combined_in_step(pair: Pair) -> Finding:
    """The finding on an optimizer whose step combines the gradients, by what its first step did to the parameters."""
    if not scale.comparable(pair) or pair.updates < 2 or pair.on_one(0).rates != pair.at(0)[0].rates:
        return pair.finding(NAME, "in_step_unseen", comparable=False)
    one, many = (steps[1].parameters - steps[0].parameters for steps in (
        [pair.on_one(at) for at in (0, 1)], [pair.at(at)[0] for at in (0, 1)]))
    times = scale.factor(one, many)
    if times is None:
        return pair.finding(NAME, "in_step_unseen", comparable=True)
    if close(times, 1):
        return pair.finding(NAME, "in_step", by=apart(one, many), limit=CLOSE)
    return pair.finding(NAME, "in_step_scaled", by=abs(times - 1), limit=CLOSE, times=times, where=pair.at(0)[0].line,
                        cause="summed_in_step" if close(times, pair.workers) else "scaled_in_step")


def _clipped_early(both: BothRuns) -> Finding | None:
    """Gradients were clipped before a GradScaler divided them again, while Horovod combined them, or before further
    ones were added to them."""
    for update in both.ranks:
        for clip in update.clips:
            cuts, between = not clip.norm <= clip.limit, clip.passes < len(update.passes)
            kinds = {"clipped_scaled": clip.scale != 1, "clipped_early": clip.early and cuts,
                     "clipped_in_between": between and cuts and both.reduction.spread <= both.pair.limit}
            if any(kinds.values()):
                return finding(both, kinds, where=clip.line, scale=clip.scale, clips=len(update.clips),
                               passes=len(update.passes))
    return None


def _clipped(both: BothRuns) -> Finding | None:
    one, limit = both.reduction, both.pair.limit
    if one.clipped is None or min(one.clipped) > ACTIVE:
        return None
    directions = [each / max(np.linalg.norm(each), 1e-300) for each in (
        sum(each.gradient for each in passes_of(both.ranks)), one.gradients[0])]
    return finding(both, "clipped", by=apart(*directions), limit=limit, factors=one.clipped,
                   where=both.ranks[0].clips[-1].line)


def _unexplained(both: BothRuns) -> Finding | None:
    one, limit = both.reduction, both.pair.limit
    mean = sum(each.gradient for each in passes_of(both.ranks))
    if one.residual <= limit or agrees(both) or all(
            scale.factor(*parts) is not None for _, parts in both.pair.parts([mean, one.gradients[0]])
            if all(part.any() for part in parts)):      # a factor of each parameter's, as of a clip by its norm
        return None
    if both.at:                                         # or with that of the update before
        local = [each.gradient for each in passes_of(both.ranks)]
        columns = np.stack([*local, both.pair.at(both.at - 1)[0].gradient], axis=1)
        *_, share = weights = np.linalg.lstsq(columns, one.gradients[0], rcond=None)[0]
        count = max(1, round(share * both.pair.workers))
        if scale.close(share * both.pair.workers, count) and apart(columns @ weights, one.gradients[0]) <= limit:
            return finding(both, "kept", times=share, count=count, by=one.residual, limit=limit,
                           where=both.ranks[0].passes[-1].line)
    hooked, own_hook = (hook in both.pair.many[0].remarks for hook in (HOOK, OWN_HOOK))
    kind = "another" if own_hook and not hooked and scale.comparable(both.pair, both.at) else "changed"
    return finding(both, kind, cause={"hooked": hooked, "own_hook": own_hook}, by=one.residual, limit=limit,
                   where=both.ranks[0].line)
