"""The optimizer's steps: learning rates and their schedules, and what each update did to the parameters."""
from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from ....formatting.numbers import list_first, number
from ...finding import Finding, Verdict
from ...lost import unlike
from .pair import CLOSE, DEPARTED, KINDS, BothRuns, Pair, apart, close, factor
from .unseen import why_incomparable

RATE, SCHEDULE, UPDATE = "learning rate", "schedule", "update"
SAME = 1e-6             # of rates, relative


def learning_rate(pair: Pair) -> Finding:
    """Whether all ranks have one rate, and how it depends on the number of workers."""
    for at in range(pair.updates):
        rates = [update.rates for update in pair.at(at)]
        if len(set(rates)) > 1:
            return pair.finding(RATE, "by_rank", update=at + 1, first=rates[0][0], second=rates[1][0],
                                where=pair.at(at)[0].line)
    ratio, ratios = _ratio(pair, 0), _ratios(pair, 0)
    if ratio is None:
        return pair.finding(RATE, "by_group" if ratios else "same", ratios=ratios, where=pair.at(0)[0].line)
    if math.isclose(ratio, 1, rel_tol=SAME):
        shown = list_first([number(rate) for rate in dict.fromkeys(pair.at(0)[0].rates)], 3)
        return pair.finding(RATE, "as_on_one", rates=shown, grows=pair.workers if pair.batch is None else None)
    kinds = {"scaled": pair.batch, "larger": ratio <= pair.times * (1 + SAME), "larger_than_batch": True}
    causes = {"own_count": pair.batch and math.isclose(ratio * pair.times, 1, rel_tol=SAME)}
    return pair.finding(RATE, kinds, ratio=ratio, cause=causes, where=pair.at(0)[0].line)


def _ratio(pair: Pair, at: int) -> float | None:
    """The rate on many workers by that on one; None where parameter groups differ in it, or it is 0."""
    ratios = _ratios(pair, at)
    return ratios[0] if ratios and max(ratios) - min(ratios) <= SAME * abs(ratios[0]) else None


def _ratios(pair: Pair, at: int) -> list[float]:
    """The same of each parameter group; empty where one is 0, or their numbers differ."""
    one, many = pair.on_one(at).rates, pair.at(at)[0].rates
    return [b / a for a, b in zip(one, many)] if len(one) == len(many) and all(one) else []


def schedule(pair: Pair) -> Finding:
    """Whether the rates follow one course, update by update, on one worker and on many."""
    if any(len({update.rates for update in pair.at(at)}) > 1 for at in range(pair.updates)):
        return pair.finding(SCHEDULE, "by_rank")
    ratios = [ratio for ratio in (_ratio(pair, at) for at in range(pair.updates)) if ratio is not None]
    last = pair.updates - 1
    alone, many = (sum(updates[last].positions) - sum(updates[0].positions)         # by how much schedules advance
                   for updates in (pair.steps(record).updates for record in (pair.one, pair.many[0])))
    changes = len({update.rates for update in pair.steps(pair.many[0]).updates}) > 1
    by = max(ratios) / min(ratios) - 1 if ratios and min(ratios) > 0 else 0.0
    if by > SAME:
        kinds = {"hasty": alone and math.isclose(many / alone, pair.times), "other_course": alone == many,
                 "other_pace": True}
        found = pair.finding(SCHEDULE, kinds, by=by, limit=SAME, alone=alone, many=many, first=ratios[0],
                             last=ratios[-1], where=pair.at(0)[0].line)
        return found if pair.batch is not None else replace(found, verdict=Verdict.WARNED)      # of other batches
    kinds = {"flat_so_far": alone != many and not changes, "one_course": pair.at(last)[0].positions or changes,
             "constant": True}
    return pair.finding(SCHEDULE, kinds, alone=alone, many=many, where=pair.at(0)[0].line)


def update(pair: Pair) -> Finding:
    """Whether steps, and what is done to the parameters after them, are those of one worker where gradients are."""
    compared, agree, settings = 0, None, [pair.steps(record).settings for record in (pair.one, pair.many[0])]
    for name, one, many in unlike(*settings) if pair.batch is not None else ():
        return pair.finding(UPDATE, "settings", name=name.replace(".", " "), one=one, many=many,
                            where=pair.at(0)[0].line)
    for at in pair.whole:
        both = pair.both[at]
        if not both.comparable or both.alone.rates != both.ranks[0].rates:
            break
        error = max(apart(both.alone.gradient, each.gradient) for each in both.ranks)
        divided = any(each.own is not None for each in both.ranks)
        if not divided and len({each.digest_after for each in both.ranks}) > 1:
            break                               # see the check 'parameters'
        if not pair.flat and (np.isnan(both.ranks[0].after).any() or error > both.floor):
            break
        # numbers of the gradient that are no rounding, of which steps that divide it by its own size make more
        alike = np.abs(both.alone.gradient - both.ranks[0].gradient) <= CLOSE * np.abs(both.alone.gradient)
        agree = alike if agree is None else agree & alike
        if fault := _fault(both, error, agree):
            return fault
        compared = at + 1
    why = "gradient" if pair.on_one(0).rates == pair.at(0)[0].rates else "rate"
    return pair.finding(UPDATE, "same" if compared else "not_compared", compared=compared,
                        why=why_incomparable(pair) or KINDS.sentence("incomparable", why, pair))


def _fault(both: BothRuns, error: float, agree: np.ndarray) -> Finding | None:
    """The finding on the first parameter that the step, or what followed it, moved otherwise than on one worker."""
    pair, at = both.pair, both.at
    following = [pair.on_one(at + 1), *pair.at(at + 1)] if at + 1 < pair.updates else []
    steps = [] if pair.flat else [each.after - each.parameters for each in (both.alone, *both.ranks)]
    given = {"update": at + 1, "error": error, "limit": DEPARTED, "where": both.ranks[0].line}
    for many in steps[1:]:
        name, factors = pair.scaled_parts(*(np.where(agree, each, 0.0) for each in (steps[0], many)), both.ranks)
        if factors:
            by = apart(*dict(pair.parts([steps[0], many]))[name])
            return pair.finding(UPDATE, "factors_of_parts", name=name, factors=factors, by=by, **given)
        if worst := _worst(pair, steps[0], many, agree):
            divided = any(each.own is not None and not dict(pair.parts([each.own]))[worst["name"]][0].all()
                          for each in both.ranks)
            return pair.finding(UPDATE, "of_parts" if divided else "other_step", **worst, **given)
    if following and following[1].own is None and len({each.digest for each in following[1:]}) > 1:
        following = []
    whole = [after.parameters - before.parameters for before, after in zip((both.alone, *both.ranks), following)]
    for many in whole[1:]:
        if worst := _worst(pair, whole[0], many, agree):
            left = [name for name, (one, found) in pair.parts([whole[0], many]) if pair.flat and one[found == 0].any()]
            times = None if pair.flat else factor(*(after.parameters - before.after for before, after in zip(
                (both.alone, both.ranks[0]), following)))
            kinds = {"unmoved": left, "flat": pair.flat, "written_times": times and close(times, pair.times),
                     "written_after": True}
            return pair.finding(UPDATE, kinds, **worst | {"name": list_first(left, 3) or worst["name"]}, times=times,
                                **given)
    return None


def _worst(pair: Pair, one: np.ndarray, many: np.ndarray, agree: np.ndarray) -> dict[str, Any]:
    """The parameter whose changes are farthest apart, and by how much; empty where none is beyond rounding."""
    apart_by = {apart(a[kept], b[kept]): name for name, (a, b, kept) in pair.parts([one, many, agree])}
    by = max(apart_by, default=0.0)
    return {"name": apart_by[by], "by": by, "far": by} if by > DEPARTED else {}
