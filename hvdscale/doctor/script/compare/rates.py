"""Learning rates and their schedules against the number of workers."""
from __future__ import annotations

import math

from ....formatting.numbers import counted, list_first, number
from ...finding import Finding, Verdict
from .pair import Pair

RATE, SCHEDULE = "learning rate", "schedule"
CLOSE = 1e-6


def learning_rate(pair: Pair) -> Finding:
    """Whether all ranks have one rate, and how it depends on the number of workers."""
    looked_at = f"the rate of {counted(pair.updates, 'update')}"
    for at in range(pair.updates):
        rates = [update.rates for update in pair.at(at)]
        if len(set(rates)) > 1:
            shown = " and ".join(number(each[0]) for each in rates[:2])
            return Finding(RATE, Verdict.FAILED, looked_at, f"update {at + 1}: the ranks have different rates, {shown}",
                           cause="the rate or its schedule is computed by rank",
                           remedy="compute it from what all ranks share, such as the number of updates")
    ratio = _ratio(pair, 0)
    shown = list_first([number(rate) for rate in dict.fromkeys(pair.at(0)[0].rates)], 3)
    if ratio is None:
        return Finding(RATE, Verdict.PASSED, f"{looked_at}: the same on all ranks")
    if math.isclose(ratio, 1, rel_tol=CLOSE):
        grows = "" if pair.batch is not None else f", though the batch may grow {pair.workers}-fold"
        return Finding(RATE, Verdict.PASSED, f"{looked_at}: {shown} on one worker and on {pair.workers}{grows}")
    if pair.batch is None:
        return Finding(RATE, Verdict.PASSED, f"{looked_at}: {number(ratio)} times as large on {pair.workers} workers")
    return Finding(RATE, Verdict.WARNED, looked_at,
                   f"the rate is {number(ratio)} times as large on {pair.workers} workers, with the same global batch",
                   cause="it is scaled by the number of workers, which is right only where the global batch grows with "
                         "them",
                   remedy="scale it by global batch / base batch, or fix the local batch and let the batch grow")


def _ratio(pair: Pair, at: int) -> float | None:
    """The rate on many workers by that on one; None where parameter groups differ in it, or it is 0."""
    one, many = pair.on_one(at).rates, pair.at(at)[0].rates
    if len(one) != len(many) or not all(one):
        return None
    ratios = [b / a for a, b in zip(one, many)]
    return ratios[0] if max(ratios) - min(ratios) <= CLOSE * abs(ratios[0]) else None


def schedule(pair: Pair) -> Finding:
    """Whether schedules advance alike, update by update, on one worker and on many."""
    one, many = ([sum(update.positions) for update in pair.steps(record).updates[:pair.updates]]
                 for record in (pair.one, pair.many[0]))
    fixed = pair.batch is not None
    advanced = [values[-1] - values[0] for values in (one, many)]
    looked_at = f"the schedule over {counted(pair.updates, 'update')}"
    if one == many:
        return _course(pair, looked_at)
    fault = Verdict.FAILED if fixed else Verdict.WARNED
    times = advanced[1] / advanced[0] if advanced[0] else math.inf
    if math.isclose(times, pair.workers):
        return Finding(SCHEDULE, fault, looked_at,
                       f"it advances {pair.workers} times as fast: by {advanced[1]} on {pair.workers} workers, by "
                       f"{advanced[0]} on one",
                       cause="it is stepped once a worker for each update, as some wrappers do to count in local "
                             "batches",
                       remedy="call scheduler.step() once an update, and give the schedule its length in updates")
    return Finding(SCHEDULE, fault, looked_at,
                   f"it advances by {advanced[0]} on one worker and by {advanced[1]} on {pair.workers}",
                   cause="it counts in epochs, batches or steps whose number depends on the number of workers",
                   remedy="give warmup, decay and length in updates of one global batch, or in examples")


def _course(pair: Pair, looked_at: str) -> Finding:
    """Of schedules that advance alike: whether the rates follow the same course."""
    ratios = [_ratio(pair, at) for at in range(pair.updates)]
    known = [ratio for ratio in ratios if ratio is not None]
    by = max(known) / min(known) - 1 if known and min(known) > 0 else 0.0
    if by > CLOSE:
        return Finding(SCHEDULE, Verdict.WARNED, looked_at,
                       f"the rates on {pair.workers} workers follow another course: {number(known[0])} times those on "
                       f"one at first, {number(known[-1])} times in the end", by=by, limit=CLOSE,
                       cause="warmup, decay or length of the schedule are computed from the number of workers, or from "
                             "the length of a rank's loader",
                       remedy="give them in updates of one global batch, or in examples")
    if not pair.at(pair.updates - 1)[0].positions and not _changes(pair):
        return Finding(SCHEDULE, Verdict.NOT_APPLICABLE, "the rate is constant, and no schedule of torch.optim is used")
    return Finding(SCHEDULE, Verdict.PASSED, f"{looked_at}: it advances alike on one worker and on {pair.workers}")


def _changes(pair: Pair) -> bool:
    return len({update.rates for update in pair.steps(pair.many[0]).updates}) > 1
