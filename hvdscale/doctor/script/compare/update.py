"""What each update did to the parameters, beside the gradient that it took, against one worker's."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...finding import Finding
from .pair import KINDS, BothRuns, Pair
from .reduction import apart
from .scale import CLOSE, DEPARTED, comparable, floor
from .unseen import why_incomparable

NAME = "update"


def update(pair: Pair) -> Finding:
    """Whether steps, and what is done to the parameters after them, are those of one worker where gradients are."""
    compared, agree = 0, None
    for at in pair.whole:
        both = pair.both[at]
        if not comparable(pair, at) or both.alone.rates != both.ranks[0].rates:
            break
        error = max(apart(both.alone.gradient, each.gradient) for each in both.ranks)
        divided = any(each.own is not None for each in both.ranks)
        if not divided and len({each.digest_after for each in both.ranks}) > 1:
            break                               # see the check 'parameters'
        if not pair.flat and (np.isnan(both.ranks[0].after).any() or error > floor(pair, at)):
            break
        # numbers of the gradient that are no rounding, of which steps that divide it by its own size make more
        alike = np.abs(both.alone.gradient - both.ranks[0].gradient) <= CLOSE * np.abs(both.alone.gradient)
        agree = alike if agree is None else agree & alike
        if fault := _fault(both, error, agree):
            return fault
        compared = at + 1
    return pair.finding(NAME, "same" if compared else "not_compared", compared=compared,
                        why=why_incomparable(pair) or KINDS.sentence("incomparable", "gradient", pair))


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
            return pair.finding(NAME, "factors_of_parts", name=name, factors=factors, by=by, **given)
        if worst := _worst(pair, steps[0], many, agree):
            divided = any(each.own is not None and not dict(pair.parts([each.own]))[worst["name"]][0].all()
                          for each in both.ranks)
            return pair.finding(NAME, "of_parts" if divided else "other_step", **worst, **given)
    if following and following[1].own is None and len({each.digest for each in following[1:]}) > 1:
        following = []
    whole = [after.parameters - before.parameters for before, after in zip((both.alone, *both.ranks), following)]
    for many in whole[1:]:
        if worst := _worst(pair, whole[0], many, agree):
            return pair.finding(NAME, "flat" if pair.flat else "written_after", **worst, **given)
    return None


def _worst(pair: Pair, one: np.ndarray, many: np.ndarray, agree: np.ndarray) -> dict[str, Any]:
    """The parameter whose changes are farthest apart, and by how much; empty where none is beyond rounding."""
    apart_by = {apart(a[kept], b[kept]): name for name, (a, b, kept) in pair.parts([one, many, agree])}
    by = max(apart_by, default=0.0)
    return {"name": apart_by[by], "by": by, "far": by} if by > DEPARTED else {}
