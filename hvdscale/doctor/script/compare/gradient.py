"""Whether each update took the mean gradient over all its examples."""
from __future__ import annotations

import math

import numpy as np

from ....formatting.numbers import counted, list_first, listed, number
from ....watch.collectives import HOOK
from ...finding import Finding, Verdict
from . import scale
from .pair import Pair, apart, passes_of
from .reduction import ACTIVE, Reduction, Weighing, find_reduction, weigh
from .shards import is_joined
from .state import LOCAL_STEPS, averaged

NAME = scale.NAME
DDP = "wrap the model in DistributedDataParallel and call the wrapper, not .module"


def gradient(pair: Pair) -> Finding:
    """The first fault of any update; else a passed finding with the largest difference, or what was not seen."""
    hidden = _hidden(pair)
    if hidden:
        return Finding(NAME, Verdict.UNSEEN, hidden)
    found = {at: find_reduction(pair.at(at), pair.limit) for at in pair.whole}
    looked_at = f"the gradients of {counted(len(found), 'update')} against the local ones of {pair.workers} ranks"
    if None in found.values():
        return Finding(NAME, Verdict.UNSEEN, "the ranks made different numbers of backward passes for an update")
    reductions = {at: one for at, one in found.items() if one}
    weighed = {at: weigh(pair.at(at), one) for at, one in reductions.items()}
    for check in (_clipped_scaled, _clipped_early, _apart, _clipped_in_between, _clipped, _unexplained, *scale.CHECKS):
        for at, one in reductions.items():
            fault = check(pair, at, one, weighed[at], looked_at)
            if fault:
                return fault
    return scale.judge(pair, [*reductions.values()], [*weighed.values()], looked_at)


def _hidden(pair: Pair) -> str:
    """Why the gradients are not known; empty if they are."""
    sharded = [record.sharded for record in pair.records if record.sharded]
    if sharded and not is_joined(pair.records):
        return f"{sharded[0]} divides the parameters among the ranks, so that no rank has a whole gradient"
    if not pair.updates:
        return "the optimizer made no update on some rank"
    if not all(update.passes for at in pair.whole for update in pair.at(at)):
        return ("no backward pass reached the optimizer's parameters; gradients that torch.autograd.grad returns are "
                "not followed")
    if not any(update.gradient.any() for at in pair.whole for update in pair.at(at)):
        return ("the gradient is zero in every update, so nothing shows how it is scaled; the cross-entropy over one "
                "class, or of a detached value, has no other")
    return ""


def _apart(pair: Pair, at: int, one: Reduction, by: Weighing | None, looked_at: str) -> Finding | None:
    """The ranks took different gradients."""
    if one.spread <= pair.limit:
        return None
    if _moved_as_one(pair, at):
        return _combined_in_step(pair, looked_at)
    passes = [update.passes for update in pair.at(at)]
    not_reduced, reduced = _by_parameter(pair, one)
    alone = _passes_alone(one)
    verdict = Verdict.FAILED
    if not_reduced and reduced:
        names = list_first(not_reduced, 4)
        cause = f"{names} of {len(not_reduced) + len(reduced)} parameters are not reduced; the others are"
        remedy = "add and replace modules before DistributedDataParallel wraps the model"
        if _differ_at_start(pair, not_reduced):
            verdict = Verdict.WARNED
            cause += ". They differ by rank from the start: right if each rank has a part of the model"
            remedy = f"else {remedy}"
    elif alone and len(alone) < one.weights.shape[2]:
        cause = (f"accumulation: of {one.weights.shape[2]} passes an update, {listed([each + 1 for each in alone])} "
                 "stayed local, such as under no_sync or on .module")
        remedy = "leave no_sync for the last pass of each update; DistributedDataParallel then reduces the whole sum"
    elif averaged(pair) is not None:
        verdict, cause, remedy = Verdict.WARNED, LOCAL_STEPS, DDP
    else:
        cause, remedy = ("nothing averages the gradients over the ranks, nor their parameters within "
                         f"{counted(pair.updates, 'update')}", DDP)
        if _reduces(pair, at):
            cause += "; all_reduce is called, but does not change them before the step"
            remedy = f"wait() for what async_op=True returns; or {remedy}"
    return Finding(NAME, verdict, looked_at, f"update {at + 1}: each rank's optimizer took another gradient",
                   by=one.spread, limit=pair.limit, cause=cause, remedy=remedy,
                   where=passes[0][(alone or [-1])[-1]].line)


def _reduces(pair: Pair, at: int) -> bool:
    """Whether rank 0 calls all_reduce itself between the batches of an update and the next ones."""
    numbers = {batch.number for batch in pair.batches(pair.many[0], at)}
    return any(number in numbers and call == "all_reduce" for number, call in pair.many[0].combined)


def _moved_as_one(pair: Pair, at: int) -> bool:
    """Whether the ranks' steps changed their parameters, and to the same."""
    after = {update.digest_after for update in pair.at(at)}
    return len(after) == 1 and after != {update.digest for update in pair.at(at)}


def _combined_in_step(pair: Pair, looked_at: str) -> Finding:
    """Of an optimizer whose step combines the gradients: judged by what the first one did to the parameters."""
    hidden = "the optimizer combines the ranks' gradients within its step"
    if not scale.comparable(pair) or pair.updates < 2 or pair.on_one(0).rates != pair.at(0)[0].rates:
        return Finding(NAME, Verdict.UNSEEN, f"{hidden}, and update 1 cannot be compared with that of one worker")
    one, many = (steps[1].parameters - steps[0].parameters for steps in (
        [pair.on_one(at) for at in (0, 1)], [pair.at(at)[0] for at in (0, 1)]))
    factor = scale.factor(one, many)
    if factor is None:
        return Finding(NAME, Verdict.UNSEEN, f"{hidden}, and update 1 is none of one worker's times a factor")
    if math.isclose(factor, 1, rel_tol=scale.CLOSE):
        return Finding(NAME, Verdict.PASSED, f"{hidden}; update 1 is that of one worker", by=apart(one, many),
                       limit=scale.CLOSE)
    return Finding(NAME, Verdict.FAILED, looked_at,
                   f"update 1 is {number(factor)} times that of one worker, of the same examples and parameters",
                   by=abs(factor - 1), limit=scale.CLOSE,
                   cause=f"{hidden}, and takes their sum" if math.isclose(factor, pair.workers, rel_tol=scale.CLOSE)
                   else f"{hidden}, and scales them by the number of workers",
                   remedy="take their mean", where=pair.at(0)[0].line)


def _by_parameter(pair: Pair, one: Reduction) -> tuple[list[str], list[str]]:
    """The parameters of which the ranks have different gradients, and those of which they have one."""
    different, same, begin = [], [], 0
    for name, size in pair.steps(pair.many[0]).sampled:
        parts = [each[begin:begin + size] for each in one.gradients]
        if any(part.any() for part in parts):
            differs = max(apart(parts[0], part) for part in parts) > pair.limit
            (different if differs else same).append(name)
        begin += size
    return different, same


def _differ_at_start(pair: Pair, names: list[str]) -> bool:
    begin = 0
    for name, size in pair.steps(pair.many[0]).sampled:
        parts = [update.parameters[begin:begin + size] for update in pair.at(0)]
        if name in names and not all(np.array_equal(parts[0], part) for part in parts):
            return True
        begin += size
    return False


def _passes_alone(one: Reduction) -> list[int]:
    """Passes whose gradients stayed on their rank: of the others' a rank has (next to) none."""
    ranks = len(one.weights)
    others = [[max(abs(one.weights[to, of, at]) for to in range(ranks) for of in range(ranks) if to != of),
               max(abs(one.weights[to, to, at]) for to in range(ranks))] for at in range(one.weights.shape[2])]
    return [at for at, (foreign, own) in enumerate(others) if foreign < own / 10]


def _clipped_in_between(pair: Pair, at: int, one: Reduction, by: Weighing | None, looked_at: str) -> Finding | None:
    """Gradients were clipped, and further ones were added to them."""
    for update in pair.at(at):
        active = [clip for clip in update.clips if clip.passes < len(update.passes) and not clip.norm <= clip.limit]
        if active:
            clips, passes = counted(len(update.clips), "time"), len(update.passes)
            return Finding(NAME, Verdict.FAILED, looked_at,
                           f"update {at + 1}: the gradients were clipped {clips} during the {passes} passes of the "
                           "update",
                           cause=f"clipping comes after each pass, so what the first of {passes} adds is cut more "
                                 "often than what the last adds",
                           remedy="clip once, after the last pass and before optimizer.step()", where=active[0].line)
    return None


def _clipped_scaled(pair: Pair, at: int, one: Reduction, by: Weighing | None, looked_at: str) -> Finding | None:
    """Gradients were clipped before a GradScaler divided them again."""
    scaled = [clip for clip in pair.at(at)[0].clips if clip.scale != 1]
    if not scaled:
        return None
    return Finding(NAME, Verdict.FAILED, looked_at,
                   f"update {at + 1}: the gradients were clipped while multiplied by {number(scaled[0].scale)}",
                   cause="clipping comes between scaler.scale(loss).backward() and scaler.unscale_(optimizer), so the "
                         "limit means another norm whenever the scale changes",
                   remedy="scaler.unscale_(optimizer) before clipping", where=scaled[0].line)


def _clipped_early(pair: Pair, at: int, one: Reduction, by: Weighing | None, looked_at: str) -> Finding | None:
    """Gradients were clipped while Horovod combined them."""
    early = [clip for update in pair.at(at) for clip in update.clips if clip.early and not clip.norm <= clip.limit]
    if not early:
        return None
    return Finding(NAME, Verdict.FAILED, looked_at,
                   f"update {at + 1}: the gradients were clipped before Horovod had combined them",
                   cause="Horovod begins the reduction in backward(), and waits for it in optimizer.step(); what is "
                         "clipped in between is one rank's, or half combined",
                   remedy="optimizer.synchronize(), clip, then optimizer.step() within optimizer.skip_synchronize()",
                   where=early[0].line)


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
                          "backward(), and under Horovod after optimizer.synchronize()",
                   where=updates[0].clips[-1].line)


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
                   remedy="if that is intended, compare once without it", where=pair.at(at)[0].line)
