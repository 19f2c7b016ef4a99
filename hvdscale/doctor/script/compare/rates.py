"""Learning rates and their schedules against the number of workers."""
from __future__ import annotations

import math

from ....formatting.numbers import counted, list_first, number
from ...finding import Finding, Verdict
from ..record import Record
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
                           remedy="compute it from what all ranks share, such as the number of updates",
                           where=pair.at(at)[0].line)
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
                   remedy="scale it by global batch / base batch, or fix the local batch and let the batch grow",
                   where=pair.at(0)[0].line)


def _ratio(pair: Pair, at: int) -> float | None:
    """The rate on many workers by that on one; None where parameter groups differ in it, or it is 0."""
    one, many = pair.on_one(at).rates, pair.at(at)[0].rates
    if len(one) != len(many) or not all(one):
        return None
    ratios = [b / a for a, b in zip(one, many)]
    return ratios[0] if max(ratios) - min(ratios) <= CLOSE * abs(ratios[0]) else None


def schedule(pair: Pair) -> Finding:
    """Whether the rates follow one course, update by update, on one worker and on many."""
    ratios = [ratio for ratio in (_ratio(pair, at) for at in range(pair.updates)) if ratio is not None]
    advanced = [_advance(pair, record) for record in (pair.one, pair.many[0])]
    looked_at = f"the schedule over {counted(pair.updates, 'update')}"
    by = max(ratios) / min(ratios) - 1 if ratios and min(ratios) > 0 else 0.0
    if by > CLOSE:
        return _another_course(pair, looked_at, advanced, ratios, by)
    if advanced[0] != advanced[1] and not _changes(pair):
        return _another_pace(pair, looked_at, advanced)
    if not pair.at(pair.updates - 1)[0].positions and not _changes(pair):
        return Finding(SCHEDULE, Verdict.NOT_APPLICABLE, "the rate is constant, and no schedule of torch.optim is used")
    return Finding(SCHEDULE, Verdict.PASSED, f"{looked_at}: the rates follow one course on one worker and on "
                   f"{pair.workers}")


def _advance(pair: Pair, record: Record) -> int:
    """By how much the schedules' positions grow over the updates."""
    first, *_, last = [sum(update.positions) for update in pair.steps(record).updates[:pair.updates]] * 2
    return last - first


def _another_course(pair: Pair, looked_at: str, advanced: list[int], ratios: list[float], by: float) -> Finding:
    """Rates whose ratio changes."""
    fault = Verdict.FAILED if pair.batch is not None else Verdict.WARNED
    where = pair.at(0)[0].line
    if advanced[0] and math.isclose(advanced[1] / advanced[0], pair.workers):
        return Finding(SCHEDULE, fault, looked_at,
                       f"it advances {pair.workers} times as fast: by {advanced[1]} on {pair.workers} workers, by "
                       f"{advanced[0]} on one, and the rates with it", by=by, limit=CLOSE,
                       cause="it is stepped once a worker for each update, as some wrappers do to count in local "
                             "batches",
                       remedy="call scheduler.step() once an update, and give the schedule its length in updates",
                       where=where)
    if advanced[0] != advanced[1]:
        return Finding(SCHEDULE, fault, looked_at,
                       f"it advances by {advanced[0]} on one worker and by {advanced[1]} on {pair.workers}, and the "
                       "rates with it", by=by, limit=CLOSE,
                       cause="it counts in epochs, batches or steps whose number depends on the number of workers",
                       remedy="give warmup, decay and length in updates of one global batch, or in examples",
                       where=where)
    return Finding(SCHEDULE, Verdict.WARNED, looked_at,
                   f"the rates on {pair.workers} workers follow another course: {number(ratios[0])} times those on "
                   f"one at first, {number(ratios[-1])} times in the end", by=by, limit=CLOSE,
                   cause="warmup, decay or length of the schedule are computed from the number of workers, or from "
                         "the length of a rank's loader",
                   remedy="give them in updates of one global batch, or in examples", where=where)


def _another_pace(pair: Pair, looked_at: str, advanced: list[int]) -> Finding:
    """Positions that differ, where the rates are the same so far."""
    return Finding(SCHEDULE, Verdict.WARNED, looked_at,
                   f"it advances by {advanced[0]} on one worker and by {advanced[1]} on {pair.workers}; the rates are "
                   "the same so far",
                   cause="it is stepped once a worker for each update, or in epochs and batches whose number depends "
                         "on the workers. Right if its length is counted in the same steps",
                   remedy="compare the rates of more updates: --updates", where=pair.at(0)[0].line)


def _changes(pair: Pair) -> bool:
    return len({update.rates for update in pair.steps(pair.many[0]).updates}) > 1
