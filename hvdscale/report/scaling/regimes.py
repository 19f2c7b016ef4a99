"""What is said of the regimes of a curve of steps to target by global batch.

    print(*sentences_of(curve_findings(curve)), sep="\\n")
"""
from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from ...analysis.critical_batch_fit import CriticalBatchFit
from ...analysis.curves import BatchPoint, Curve
from ...analysis.intervals import Estimate
from ...analysis.regimes import BatchEstimate, Regimes
from ...formatting.numbers import number, span, spread, whole
from ..findings import Finding
from ..texts import Texts

SCALING = Texts("scaling")
LACKING = 0.05          # p-value of the lack-of-fit test from which on down it is said


def curve_findings(curve: Curve) -> tuple[Finding, ...]:
    """The regimes of a curve of searches; nothing where fewer than two batches were run, or none met."""
    counts = {point.global_batch: point.trials for point in curve.searched if point.trials}
    extrapolated = [point.global_batch for point in curve.points if point.steps.extrapolated]
    return (*find_judged(curve), *find_trials(curve.n, counts, curve.left_out, extrapolated))


def find_judged(curve: Curve) -> Iterator[Finding]:
    """Where a search is cut off, and the regimes of the batches that are not."""
    if curve.cut:
        yield SCALING.find("cut", batch=curve.cut)
    yield from find_regimes(curve.regimes, [point.global_batch for point in curve.judged],
                            [point.steps for point in curve.judged],
                            [(point.cell if isinstance(point, BatchPoint) else point).met > 0
                             for point in curve.judged])


def find_trials(n: int | None, counts: Mapping[int, int], left_out: Sequence[tuple[int, int]],
                extrapolated: Sequence[int] = ()) -> Iterator[Finding]:
    """At how many trials batches are compared, where their counts differ; which were left out, or extrapolated.

    counts    feasible trials by global batch, of the batches that are compared
    left_out  (batch, feasible trials) of those with fewer trials than were asked for
    """
    if n is not None and counts and max(counts.values()) > n:
        fewest = [] if left_out else [batch for batch, count in counts.items() if count == n]
        yield SCALING.find("trials", n=n, fewest=fewest, counts=spread(counts.values()))
        if fewest and n < max(counts.values()) / 2:
            yield SCALING.find("trials_option")
    if left_out:
        named = [SCALING.say("batch_of_trials", batch=batch, trials=count) for batch, count in left_out]
        yield SCALING.find("too_few_trials", n=n, batches=named)
    if extrapolated:
        yield SCALING.find("extrapolated", n=n, batches=list(extrapolated))


def find_regimes(regimes: Regimes | None, batches: Sequence[int], estimates: Sequence[Estimate],
                 any_met: Sequence[bool]) -> Iterator[Finding]:
    """The regimes at these batches, smallest first.

    any_met  whether some run of a batch met the target, though its estimate may not
    """
    untrained = [batch for batch, one in zip(batches, estimates) if one.value == 0]
    if untrained:
        yield SCALING.find("at_once", batches=untrained)
        return
    if len(batches) < 2 or regimes is None:
        return
    until, useful = regimes.perfect_until.value, regimes.maximum_useful.value
    if until is None or useful is None:
        return
    coarse = _too_coarse(regimes, until, batches, estimates)
    yield _find_perfect(regimes, until, batches, estimates, coarse)
    yield _find_useful(regimes, list(batches).index(useful), batches, estimates, any_met, coarse)
    yield from find_fit(regimes.fit)


def describe_batch(found: BatchEstimate) -> str:
    """``128 (64-256)``, ``128 (at least 64)``, ``128 (no other of those run)``; ``128``: nothing is known of the
    spread."""
    return SCALING.say("batch", batch=found.value, unknown=not found.known, least=_end(found.low),
                       open=math.isinf(found.high), alone=found.low == found.high, most=_end(found.high))


def _end(batch: float) -> str:
    return f"{batch:,.0f}"


def _too_coarse(regimes: Regimes, until: int, batches: Sequence[int], estimates: Sequence[Estimate]) -> list[int]:
    """The batches outside perfect scaling of one run each, of which the evaluation before, that did not meet, lies
    inside: intervals over repeats have that spread, too."""
    met = [(batch, one) for batch, one in zip(batches, estimates) if one.met]
    most = (1 + regimes.options.perfect_within) * min(batch * one.value for batch, one in met)
    return [batch for batch, one in met
            if one.runs < 2 and batch > until and batch * one.before < most < batch * one.value]


def _find_perfect(regimes: Regimes, until: int, batches: Sequence[int], estimates: Sequence[Estimate],
                  coarse: Sequence[int]) -> Finding:
    """Up to where scaling is perfect; which batches before that are outside, and which after it inside."""
    met = [(batch, inside) for batch, one, inside in zip(batches, estimates, regimes.perfect) if one.met]
    first = next(batch for batch, inside in met if inside)
    before = [batch for batch, inside in met if batch < until and not inside]
    after = [batch for batch, inside in met if batch > until and inside]
    but = [SCALING.say("outside_before", batches=before, sure=regimes.perfect_until.known and first == met[0][0])
           ] * bool(before) + [SCALING.say("inside_again", batches=after)] * bool(after)
    but += [SCALING.say("coarse", batches=coarse)] * bool(coarse)
    return SCALING.find(
        "perfect", regimes.perfect_until, batch=describe_batch(regimes.perfect_until), none=until == batches[0],
        all=until == batches[-1], more=met[-1][0] > until, but="; ".join(but),
        alone=all(one.runs < 2 for one in estimates if one.met))


def _find_useful(regimes: Regimes, at: int, batches: Sequence[int], estimates: Sequence[Estimate],
                 any_met: Sequence[bool], coarse: Sequence[int]) -> Finding:
    """Why the batch at ``at`` is the maximum useful one."""
    fewest, where = min((one.value, batch) for batch, one in zip(batches, estimates) if one.met)
    falling = any((1 + regimes.options.useful_within) * fewest >= one.value for one in estimates[:at] if one.met)
    return SCALING.find(
        "useful", regimes.maximum_useful, batch=describe_batch(regimes.maximum_useful), falling=falling,
        first=where == batches[at], fewest=fewest, where=where, steps=estimates[at].value,
        within=regimes.options.useful_within, last=at == len(batches) - 1,
        none_fewer=any(one.met for one in estimates[at + 1:]), larger=list(batches[at + 1:]),
        some=any(any_met[at + 1:]), coarse=not {*coarse}.isdisjoint(batches[at + 1:]))


def find_fit(fit: CriticalBatchFit | None) -> Iterator[Finding]:
    """The critical batch and S_min with their intervals, as far as the points bound them; nothing where they bound
    neither. Then the shape, lack of fit, and which batches were left out."""
    if fit is None:
        return
    b_crit, low, high = fit.b_crit, fit.b_crit.low, fit.b_crit.high
    rising = [SCALING.say("rising", batches=list(fit.left_out))] * bool(fit.left_out)
    if low == 0 and math.isinf(high):
        yield from [SCALING.find("rising", b_crit, batches=list(fit.left_out))] * bool(fit.left_out)
    elif math.isinf(high):
        yield SCALING.find("critical_least", b_crit, rising, least=low)
    elif low == 0:
        yield SCALING.find("critical_most", b_crit, rising, most=high, steps=as_fitted(fit.s_min))
    else:
        yield SCALING.find(
            "critical", b_crit, [_describe_shape(fit), SCALING.say("overheads", overhead=as_fitted(fit.overhead),
                                                                   half=as_fitted(fit.half_efficient)), *rising],
            batch=as_fitted(b_crit), steps=as_fitted(fit.s_min))


def _describe_shape(fit: CriticalBatchFit) -> str:
    """Which shape the points prefer: of S = S_min (1 + (B_crit / B)^p)^(1/p); and whether they scatter about it."""
    low, high = fit.shape.low, fit.shape.high
    said = (SCALING.say("bend_unknown") if fit.points < 4 or low <= 1 and high >= 4 else
            SCALING.say("bend", sharp=low > 1, soft=high < 1, shape=fit.shape.value, low=low, high=high))
    if fit.lack_of_fit < LACKING:
        said += " " + SCALING.say("scatter", p=fit.lack_of_fit, rms=f"{fit.rms_log2:.2f}")
    return said


def as_fitted(estimate: Estimate) -> str:
    """A value with its interval, to as many digits as that justifies."""
    digits = 2 if estimate.high >= 1.5 * estimate.low else 3
    return f"{number(estimate.value, digits)} ({span(estimate.low, estimate.high, whole)})"
