"""Of gradients that are weighted sums of the ranks' local ones: whether the weights make the mean over all examples."""
from __future__ import annotations

import math

import numpy as np

from ....formatting.numbers import counted, listed, number
from ...finding import Finding, Verdict
from .pair import Pair, apart, passes_of
from .reduction import Reduction, Weighing, find_reduction, weigh
from .state import different_untrained

NAME = "gradient"
CLOSE = 0.02            # of a factor, relative
PARALLEL = 0.9995       # cosine of gradients that differ by a factor alone, where rounding has its part
DIVIDE_BY_ALL = ("take the sum of the losses, divide by the number of targets of the whole update (all_reduce it), and "
                 "multiply by the number of workers, by which DistributedDataParallel divides")
DEPARTED = 0.05         # of a later gradient, relative, where rounding has grown
ALIKE = 0.15            # of losses on the same examples that random numbers or batch-norm enter, relative


def _undivided(pair: Pair, at: int, one: Reduction, by: Weighing | None, looked_at: str) -> Finding | None:
    """Accumulated passes are summed, where each is a mean."""
    passes = one.weights.shape[2]
    alone = _scale_on_one(pair, at)
    if by is None or passes == 1 or not _accumulates(pair, at, by) or not math.isclose(by.scale, passes, rel_tol=CLOSE):
        return None
    if alone is not None and not math.isclose(alone, len(pair.on_one(at).passes), rel_tol=CLOSE):
        return None
    return Finding(NAME, Verdict.FAILED, looked_at,
                   f"update {at + 1}: the gradient is {number(by.scale)} times the mean over its {_targets(by)}",
                   by=by.scale - 1, limit=CLOSE,
                   cause=f"accumulation sums {passes} passes, and the loss of each is a mean that nothing divides by "
                         f"{passes}", remedy="(loss / passes).backward()", where=_line(pair, at))


def _remainder(pair: Pair, at: int, one: Reduction, by: Weighing | None, looked_at: str) -> Finding | None:
    """An update of fewer passes is divided as the others are."""
    usual = max(len(pair.at(number)[0].passes) for number in pair.whole)
    passes = one.weights.shape[2]
    if by is None or passes == usual or not math.isclose(by.scale, passes / usual, rel_tol=CLOSE):
        return None
    return Finding(NAME, Verdict.WARNED, looked_at,
                   f"update {at + 1} has {counted(passes, 'pass', 'passes')} in place of {usual}, and its gradient is "
                   f"{number(by.scale)} times the mean over its {_targets(by)}", by=1 - by.scale, limit=CLOSE,
                   cause=f"the batches of an epoch do not divide by {usual}, and the loss of each pass is divided by "
                         f"{usual} all the same; right if an example is to count alike in every update",
                   remedy="divide by the number of passes that the update has, or drop the last batches of the epoch",
                   where=_line(pair, at))


def _accumulates(pair: Pair, at: int, by: Weighing) -> bool:
    """Whether each pass had examples of its own, from the loader or a part of its batch; else losses are added."""
    passes = list(passes_of(pair.at(at)))
    if len({one.losses[0].name for one in passes}) > 1 or any(len(one.fetched) > 1 for one in passes):
        return False
    given, batches = sum(pair.examples(pair.many, at)), sum(len(pair.batches(each, at)) for each in pair.many)
    return batches >= len(passes) or not given or by.counts.sum() <= given


def _targets(by: Weighing) -> str:
    return f"{by.counts.sum():,.0f} targets"


def _line(pair: Pair, at: int) -> str:
    """Of the loss, or of the backward pass."""
    last = pair.at(at)[0].passes[-1]
    return last.losses[0].line if last.losses and last.losses[0].line else last.line


def _scaled(pair: Pair, at: int, one: Reduction, by: Weighing | None, looked_at: str) -> Finding | None:
    """The gradient's scale depends on the number of workers, by the same factor in all updates."""
    alone = _scale_on_one(pair, at)
    ratio = _ratio(pair, at, by)
    if by is None or alone is None or ratio is None or math.isclose(ratio, 1, rel_tol=CLOSE):
        return None
    others = [_ratio(pair, number, weigh(pair.at(number), each)) for number in pair.whole
              if (each := find_reduction(pair.at(number), pair.limit))]
    if not all(other is not None and math.isclose(other, ratio, rel_tol=CLOSE) for other in others):
        return None
    cause, remedy = _cause_of(pair, at, one, ratio, alone)
    return Finding(NAME, Verdict.FAILED, looked_at,
                   f"update {at + 1}: the gradient is {number(by.scale)} times the mean over its targets on "
                   f"{pair.workers} workers, and {number(alone)} times on one",
                   by=abs(ratio - 1), limit=CLOSE, cause=cause, remedy=remedy, where=_line(pair, at))


def _scale_on_one(pair: Pair, at: int) -> float | None:
    alone = find_reduction([pair.on_one(at)], pair.limit)
    by = alone and weigh([pair.on_one(at)], alone)
    return by.scale if by else None


def _ratio(pair: Pair, at: int, by: Weighing | None) -> float | None:
    """The scale on many workers by that on one; None where one is unknown or zero."""
    alone = _scale_on_one(pair, at)
    return by.scale / alone if by and alone else None


def _cause_of(pair: Pair, at: int, one: Reduction, ratio: float, alone: float | None) -> tuple[str, str]:
    """Why the gradient is ``ratio`` times that of one worker, and what to do; ``alone``: its scale there, if known."""
    by_pass = one.weights[0].mean(axis=0)
    if len(by_pass) > 1 and math.isclose(by_pass[-2], pair.workers * by_pass[-1], rel_tol=CLOSE):
        return ("the sum over the passes is reduced after each of them, so what an earlier pass added is summed again",
                "reduce once an update, after its last pass")
    if _is_sum(pair, one):
        return "the gradients of the ranks are summed", "divide the sum by the number of workers"
    if math.isclose(ratio, pair.workers, rel_tol=CLOSE):
        return ("the loss is multiplied by the number of workers, and the reduction is a mean",
                "leave the factor out; a larger learning rate belongs into the optimizer")
    if math.isclose(ratio, 1 / pair.workers, rel_tol=CLOSE) and (alone is None or not math.isclose(
            alone, 1, rel_tol=CLOSE)):
        return ("the loss is a sum over the local batch, and DistributedDataParallel takes the mean of the ranks'; or "
                "it is divided by the number of workers, too",
                "divide by the global batch and multiply by the number of workers, or take the mean loss")
    if math.isclose(ratio, 1 / pair.workers, rel_tol=CLOSE):
        return ("the loss is divided by the number of workers, and the reduction is a mean, which divides once more",
                "leave the division out; average what is logged on a detached copy")
    return ("the loss is divided by something that depends on the number of workers",
            "divide by what the whole global batch has")


def _is_sum(pair: Pair, one: Reduction) -> bool:
    """Whether the ranks' local gradients are added up, each as it is."""
    return bool(np.allclose(one.weights[0], 1, rtol=CLOSE)) and pair.workers > 1


def _other_denominator(pair: Pair, at: int, one: Reduction, by: Weighing | None, looked_at: str) -> Finding | None:
    """What the loss is divided by counts other targets than it takes, on any number of workers."""
    divided, alike = _divisors(pair), _ratio(pair, at, by)
    counts = [round(each) for each in divided]
    if at != pair.whole[0] or by is None or math.isclose(by.scale, 1, rel_tol=CLOSE) or len({*counts}) < 2:
        return None
    if any(abs(each - count) > 0.01 for each, count in zip(divided, counts)) or not alike or not math.isclose(
            alike, 1, rel_tol=CLOSE):
        return None
    if counts == [sum(pair.examples(pair.many, other)) for other in pair.whole]:
        return None                     # the mean over examples of what is summed over their targets
    return Finding(NAME, Verdict.WARNED, looked_at,
                   f"update {at + 1}: the gradient is {number(by.scale)} times the mean over targets, on one worker "
                   f"and on {pair.workers}: divided by {counts[0]}, where the loss has {_targets(by)}",
                   by=abs(by.scale - 1), limit=CLOSE,
                   cause="what the loss is divided by counts other targets than the loss takes, such as labels before "
                         "they are shifted; right if a target is meant to count by how many others there are",
                   remedy="count the targets that the loss takes", where=_line(pair, at))


def _divisors(pair: Pair) -> list[float]:
    """What the sum over targets is divided by in each update; empty where that is unknown."""
    found = []
    for at in pair.whole:
        one = find_reduction(pair.at(at), pair.limit)
        by = one and weigh(pair.at(at), one)
        if not by or not by.scale:
            return []
        found.append(by.counts.sum() / by.scale)
    return found


def _unequal(pair: Pair, at: int, one: Reduction, by: Weighing | None, looked_at: str) -> Finding | None:
    """Targets of different ranks or passes have different weights."""
    if by is None:
        return _unequal_examples(pair, at, looked_at)
    counts = by.counts.sum(axis=1)
    if by.error <= pair.limit or len(set(counts)) == 1 and not _accumulates(pair, at, by):
        return None
    if len(set(by.counts.reshape(-1))) == 1:
        return _weighted(pair, at, one, by, looked_at)
    differ = "ranks" if len(set(counts)) > 1 else "passes"
    shown = listed([f"{count:,.0f}" for count in (counts if differ == "ranks" else by.counts[0])])
    return Finding(NAME, Verdict.FAILED, looked_at,
                   f"update {at + 1}: the {differ} have {shown} targets, and the mean of their means is taken",
                   by=by.error, limit=pair.limit,
                   cause=f"each of the {differ} divides by its own number of targets, so a target counts for more "
                         "where there are few",
                   remedy=DIVIDE_BY_ALL, where=_line(pair, at))


def _weighted(pair: Pair, at: int, one: Reduction, by: Weighing, looked_at: str) -> Finding:
    weights = listed([number(each) for each in (by.weights / by.weights.max()).reshape(-1)])
    norms = np.array([[np.linalg.norm(each.gradient) for each in update.passes] for update in pair.at(at)])
    clipped = np.allclose(norms * one.weights[0], (norms * one.weights[0])[0, 0], rtol=CLOSE)
    by_rank = not np.allclose(one.weights[0], one.weights[0][0], rtol=CLOSE)
    return Finding(NAME, Verdict.FAILED if by_rank and clipped else Verdict.WARNED, looked_at,
                   f"update {at + 1}: ranks and passes have as many targets, but they count {weights}"
                   + ", so that their gradients have one norm" * (by_rank and clipped),
                   by=by.error, limit=pair.limit,
                   cause="the script scales each rank's gradient before the reduction, as clipping by hand does: a "
                         "rank with a large one counts for less" if by_rank else
                   "the losses have factors; right if they are weights that the script means to give",
                   remedy="clip what the reduction gives" if by_rank else
                   "look for a factor that follows the rank or the number of the pass", where=_line(pair, at))


def _unequal_examples(pair: Pair, at: int, looked_at: str) -> Finding | None:
    counts = pair.examples(pair.many, at)
    if len(set(counts)) == 1 or matches_one(pair):
        return None
    return Finding(NAME, Verdict.WARNED, looked_at,
                   f"update {at + 1}: the ranks took {listed(counts)} examples, and the mean of what they computed",
                   cause="right only if the loss is divided by the number of examples of all ranks; that cannot be "
                         "seen, as it calls no loss function of torch",
                   remedy="check what the loss is divided by", where=_line(pair, at))


def _against_one(pair: Pair, at: int, one: Reduction, by: Weighing | None, looked_at: str) -> Finding | None:
    """The same examples and parameters give another gradient on one worker."""
    if at != 0 or not comparable(pair):
        return None
    alone = find_reduction([pair.on_one(0)], pair.limit)
    error = alone and apart(alone.gradients[0], one.gradients[0])
    if not alone or not error or error <= pair.limit:
        return None
    times = factor(alone.gradients[0], one.gradients[0])
    shares = _shares(pair, alone.gradients[0]) if times is None else []
    if shares:
        return Finding(NAME, Verdict.FAILED, looked_at,
                       f"update 1: of the same examples and parameters, the ranks' gradients count {listed(shares)} in "
                       "that of one worker, and here alike", by=error, limit=pair.limit,
                       cause="each of the ranks divides by its own number of targets, tokens or weights, so one counts "
                             "for more where there are few", remedy=DIVIDE_BY_ALL, where=_line(pair, at))
    if times is None:
        untrained = different_untrained(pair)
        return Finding(NAME, Verdict.FAILED, looked_at,
                       f"update 1: of the same examples and parameters, {pair.workers} workers have another gradient "
                       "than one", by=error, limit=pair.limit,
                       cause="buffers or frozen parameters differ by rank" if untrained else
                       "the loss depends on the other examples of its rank's batch, as contrastive losses and padding "
                       "do, or on the number of workers",
                       remedy="see the check 'parameters'" if untrained else
                       "compute what mixes examples over the global batch, with its gradient "
                       "(torch.distributed.nn.functional.all_gather), or keep the local batch fixed",
                       where=_line(pair, at))
    cause, remedy = _cause_of(pair, at, one, times, None if by is None else 1.0)
    return Finding(NAME, Verdict.FAILED, looked_at,
                   f"update 1: of the same examples and parameters, {pair.workers} workers have {number(times)} times "
                   "the gradient of one", by=abs(times - 1), limit=CLOSE, cause=cause, remedy=remedy,
                   where=_line(pair, at))


def _departs(pair: Pair, at: int, one: Reduction, by: Weighing | None, looked_at: str) -> Finding | None:
    """A later update has another gradient than one worker's, though the first has not, and nothing else differs."""
    before = range(at + 1)
    if at == 0 or not comparable(pair) or not matches_one(pair) or not all(map(pair.same_examples_at, before)):
        return None
    if any(pair.on_one(each).rates != pair.at(each)[0].rates for each in before) or any(
            each.prepared.moved or each.draws.moved for record in pair.records
            for each in passes_of(pair.steps(record).updates[:at + 1])):
        return None
    alone = find_reduction([pair.on_one(at)], pair.limit)
    error = alone and apart(alone.gradients[0], one.gradients[0])
    if not error or error <= max(DEPARTED, pair.limit):
        return None
    return Finding(NAME, Verdict.WARNED, looked_at,
                   f"update {at + 1}: {pair.workers} workers have another gradient than one, though update 1 has the "
                   "same", by=error, limit=DEPARTED,
                   cause="something that is kept from update to update, or that the optimizer is given, depends on the "
                         "number of workers: a queue of earlier examples, a running mean, weight decay",
                   remedy="compute it over the examples of all ranks", where=_line(pair, at))


def _shares(pair: Pair, alone: np.ndarray) -> list[str]:
    """With which weights the mean of the ranks' local gradients is that of one worker; empty where there are none."""
    local = np.stack([sum(each.gradient for each in update.passes) for update in pair.at(0)], axis=1)
    weights = np.linalg.lstsq(local, alone, rcond=None)[0]
    fits = apart(local @ weights, alone) <= pair.limit and math.isclose(weights.sum(), 1, rel_tol=CLOSE)
    return [number(each) for each in weights] if fits and weights.min() > 0 else []


def factor(one: np.ndarray, many: np.ndarray) -> float | None:
    """How many times one gradient the other is; None where it points elsewhere."""
    lengths = float(np.linalg.norm(one) * np.linalg.norm(many))
    if not lengths or one @ many / lengths < PARALLEL:
        return None
    return float(one @ many / (one @ one))


def _scaled_losses(pair: Pair, at: int, one: Reduction, by: Weighing | None, looked_at: str) -> Finding | None:
    """Where nothing else shows the scale: the losses on the same examples differ by the number of workers."""
    ratios = _losses(pair)
    if at != pair.whole[0] or by is not None or matches_one(pair) or not ratios:
        return None
    for times in (pair.workers, 1 / pair.workers):
        if all(abs(ratio / times - 1) < ALIKE for ratio in ratios):
            return Finding(NAME, Verdict.WARNED, looked_at,
                           f"on {pair.workers} workers the loss is {number(float(np.mean(ratios)))} times that on one, "
                           f"of the same examples, in each of {len(ratios)} updates",
                           cause=("it is multiplied" if times > 1 else "it is divided") + " by the number of workers, "
                           "and the reduction is a mean. Right only if the reduction is meant to scale it back",
                           remedy="leave the factor out", where=_line(pair, 0))
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


CHECKS = _undivided, _remainder, _scaled, _unequal, _other_denominator, _against_one, _departs, _scaled_losses


def judge(pair: Pair, found: list[Reduction], weighed: list[Weighing | None], looked_at: str) -> Finding:
    """Of gradients without a fault: passed where something showed their scale, else unseen."""
    known = [by for by in weighed if by is not None]
    if len(known) == len(weighed):
        times = "" if math.isclose(known[0].scale, 1, rel_tol=CLOSE) else (
            f"on one worker and on {pair.workers} {number(known[0].scale)} times ")
        return Finding(NAME, Verdict.PASSED, f"{looked_at}: {times}the mean over all {_targets(known[0])} of an update",
                       by=max(by.error for by in known), limit=pair.limit)
    residual = max(one.residual for one in found)
    if matches_one(pair):
        return Finding(NAME, Verdict.PASSED, f"{looked_at}: their mean, and in update 1 that of one worker",
                       by=residual, limit=pair.limit)
    ratios = _losses(pair)
    if ratios and all(abs(ratio - 1) < ALIKE for ratio in ratios):
        return Finding(NAME, Verdict.PASSED, f"{looked_at}: their mean, of losses that are {number(min(ratios))} to "
                       f"{number(max(ratios))} times those on one worker", by=residual, limit=pair.limit)
    return Finding(NAME, Verdict.UNSEEN, f"{looked_at}: their mean; what the loss is divided by was not seen, as it "
                   "calls none, or several, of torch's loss functions, and the update of one worker cannot be compared")


def matches_one(pair: Pair) -> bool:
    """Whether the first update has the gradient of one worker."""
    if not pair.same_start:
        return False
    one, many = (find_reduction(updates, pair.limit) for updates in ([pair.on_one(0)], pair.at(0)))
    return bool(one and many and one.gradients[0].any() and apart(one.gradients[0], many.gradients[0]) <= pair.limit)


def comparable(pair: Pair) -> bool:
    """Whether the first gradients of both runs must be the same."""
    return (pair.batch is not None and pair.same_start and pair.same_examples and not pair.drew
            and not any(record.batch_norms for record in pair.many))
