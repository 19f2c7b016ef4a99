"""Learning rates and their schedules against the number of workers."""
from __future__ import annotations

import math
from dataclasses import replace

from ....formatting.numbers import list_first, number
from ...finding import Finding, Verdict
from .pair import Pair

RATE, SCHEDULE = "learning rate", "schedule"
CLOSE = 1e-6


def learning_rate(pair: Pair) -> Finding:
    """Whether all ranks have one rate, and how it depends on the number of workers."""
    for at in range(pair.updates):
        rates = [update.rates for update in pair.at(at)]
        if len(set(rates)) > 1:
            return pair.finding(RATE, "by_rank", update=at + 1, first=rates[0][0], second=rates[1][0],
                                where=pair.at(at)[0].line)
    ratio = _ratio(pair, 0)
    if ratio is None:
        return pair.finding(RATE, "same")
    if math.isclose(ratio, 1, rel_tol=CLOSE):
        shown = list_first([number(rate) for rate in dict.fromkeys(pair.at(0)[0].rates)], 3)
        return pair.finding(RATE, "as_on_one" if pair.batch is not None else "as_on_one_of_any_batch", rates=shown)
    if pair.batch is None:
        kind = "larger" if ratio <= pair.workers * (1 + CLOSE) else "larger_than_batch"
        return pair.finding(RATE, kind, ratio=ratio, where="" if kind == "larger" else pair.at(0)[0].line)
    return pair.finding(RATE, "scaled", ratio=ratio, where=pair.at(0)[0].line)


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
    last = pair.updates - 1
    alone, many = (sum(updates[last].positions) - sum(updates[0].positions)         # by how much schedules advance
                   for updates in (pair.steps(record).updates for record in (pair.one, pair.many[0])))
    changes = len({update.rates for update in pair.steps(pair.many[0]).updates}) > 1
    by = max(ratios) / min(ratios) - 1 if ratios and min(ratios) > 0 else 0.0
    if by > CLOSE:
        kind = "other_course" if alone == many else "other_pace"
        if alone and math.isclose(many / alone, pair.workers):
            kind = "hasty"
        found = pair.finding(SCHEDULE, kind, by=by, limit=CLOSE, alone=alone, many=many, first=ratios[0],
                             last=ratios[-1], where=pair.at(0)[0].line)
        return found if pair.batch is not None else replace(found, verdict=Verdict.WARNED)      # of other batches
    if alone != many and not changes:
        return pair.finding(SCHEDULE, "flat_so_far", alone=alone, many=many, where=pair.at(0)[0].line)
    if not pair.at(last)[0].positions and not changes:
        return pair.finding(SCHEDULE, "constant")
    return pair.finding(SCHEDULE, "one_course")
