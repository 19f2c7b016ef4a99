"""What is said of the regimes of a curve of steps to target by global batch.

    print(*sentences_of(curve_findings(curve)), sep="\\n")
"""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ...analysis.critical_batch_fit import CriticalBatchFit
from ...analysis.curves import Curve
from ...analysis.intervals import Estimate
from ...analysis.regimes import BatchEstimate, Regimes
from ...formatting.numbers import counted, listed, number, percent, span, spread, whole
from ..findings import Finding, finding_of

BIAS_NOTE = ("On average the end of perfect scaling comes out a quarter to a half of a doubling low and the maximum "
             "useful batch as much high: both compare with the smallest of several noisy values.")
LACKING = 0.05          # p-value of the lack-of-fit test from which on down it is said


def meanings_said(perfect_within: float, useful_within: float) -> tuple[str, ...]:
    """What is called perfect and useful."""
    return (f"Perfect scaling: batch x steps within {percent(perfect_within)} of the smallest. Maximum useful batch: "
            f"the smallest with steps within {percent(useful_within)} of the fewest.",)


def curve_findings(curve: Curve) -> tuple[Finding, ...]:
    """The regimes of a curve of searches; nothing where fewer than two batches were run, or none met."""
    counts = {point.global_batch: point.trials for point in curve.searched if point.trials}
    extrapolated = [point.global_batch for point in curve.points if point.steps.extrapolated]
    return (*regimes_found(curve.regimes, curve.batches, [point.steps for point in curve.points],
                           [point.met > 0 for point in curve.searched]),
            *map(Finding, trials_said(curve.n, counts, curve.left_out, extrapolated)))


def trials_said(n: int | None, counts: Mapping[int, int], left_out: Sequence[tuple[int, int]],
                extrapolated: Sequence[int] = ()) -> tuple[str, ...]:
    """At how many trials batches are compared, where their counts differ; which were left out, or extrapolated.

    counts    feasible trials by global batch, of the batches that are compared
    left_out  (batch, feasible trials) of those with fewer trials than were asked for
    """
    said = []
    if n is not None and counts and max(counts.values()) > n:
        fewest = [f"{batch:,}" for batch, count in counts.items() if count == n]
        why = f", as batch {listed(fewest)} has no more" if fewest and not left_out else ""
        said.append(f"Batches compared at the median best of {counted(n, 'trial')}{why}; the searches have "
                    f"{spread(counts.values())}.")
        if fewest and not left_out and n < max(counts.values()) / 2:
            said.append("--trials N compares at N trials and leaves out batches with fewer.")
    if left_out:
        named = listed(f"{batch:,} ({counted(count, 'trial')})" for batch, count in left_out)
        said.append(f"Left out, with fewer than the {n:,} trials asked for: batch {named}.")
    if extrapolated:
        batches = listed(f"{batch:,}" for batch in extrapolated)
        said.append(f"Pruning hid the median best of {counted(n, 'trial')} at batch {batches}: extrapolated from the "
                    "trials that met the target sooner.")
    return tuple(said)


def regimes_found(regimes: Regimes | None, batches: Sequence[int], estimates: Sequence[Estimate],
                  any_met: Sequence[bool]) -> tuple[Finding, ...]:
    """The regimes at these batches, smallest first.

    any_met  whether some run of a batch met the target, though its estimate may not
    """
    untrained = [f"{batch:,}" for batch, one in zip(batches, estimates) if one.value == 0]
    if untrained:
        return (Finding(f"The target is met before the first step at batch {listed(untrained)}: how steps "
                        "scale with the batch cannot be estimated. Use a stricter target."),)
    if len(batches) < 2 or regimes is None:
        return ()
    until, useful = regimes.perfect_until.value, regimes.maximum_useful.value
    if until is None or useful is None:
        return ()
    alone = " One run a batch: no spread between runs was seen." * all(one.runs < 2 for one in estimates if one.met)
    return (Finding(f"{_perfect_said(regimes, until, batches, estimates)}{alone}", (), regimes.perfect_until),
            Finding(_useful_said(regimes, list(batches).index(useful), batches, estimates, any_met), (),
                    regimes.maximum_useful),
            *finding_of(fit_said(regimes.fit), regimes.fit.b_crit if regimes.fit else None))


def batch_said(found: BatchEstimate) -> str:
    """``128 (64-256)``, ``128 (at least 64)``, ``128 (no other of those run)``; ``128``: nothing is known of the
    spread."""
    value = f"{found.value:,}"
    if not found.known:
        return value
    if math.isinf(found.high):
        return f"{value} (at least {found.low:,.0f})"
    if found.low == found.high:
        return f"{value} (no other of those run)"
    return f"{value} ({found.low:,.0f}-{found.high:,.0f})"


def _perfect_said(regimes: Regimes, until: int, batches: Sequence[int], estimates: Sequence[Estimate]) -> str:
    shown = batch_said(regimes.perfect_until)
    known = [(batch, inside) for batch, one, inside in zip(batches, estimates, regimes.perfect) if one.met]
    but = _unsteady_said(until, regimes.perfect_until.known, known)
    if until == batches[0]:
        return f"No perfect scaling beyond batch {shown}: larger ones need more examples{but}."
    if until == batches[-1]:
        return f"Perfect scaling up to the largest, batch {shown}{but}."
    rest = "; diminishing returns beyond" if known[-1][0] > until else ""
    return f"Perfect scaling up to batch {shown}{rest}{but}."


def _unsteady_said(until: int, sure: bool, known: Sequence[tuple[int, bool]]) -> str:
    """Which batches before the end are outside and which after it inside.

    sure   whether the end has an interval
    known  (batch, whether it is inside) of those that met
    """
    first = next(batch for batch, inside in known if inside)
    out = [f"{batch:,}" for batch, inside in known if batch < until and not inside]
    back = [f"{batch:,}" for batch, inside in known if batch > until and inside]
    said = []
    if out:
        why = f", within {'its interval' if len(out) == 1 else 'their intervals'}"
        said.append(f"{'batch' if len(out) == 1 else 'batches'} {listed(out)} "
                    f"{'needs' if len(out) == 1 else 'need'} more examples"
                    + (why if sure and first == known[0][0] else ""))
    if back:
        said.append(f"{'batch' if len(back) == 1 else 'batches'} {listed(back)} "
                    f"{'is' if len(back) == 1 else 'are'} within it again, beyond one that surely "
                    "is not")
    return f"; but {'; '.join(said)}" if said else ""


def _useful_said(regimes: Regimes, at: int, batches: Sequence[int], estimates: Sequence[Estimate],
                 any_met: Sequence[bool]) -> str:
    """Why the batch at ``at`` is the maximum useful one."""
    met = [(one.value, batch) for batch, one in zip(batches, estimates) if one.met]
    fewest, where = min(met)
    said = f"Maximum useful batch: {batch_said(regimes.maximum_useful)}, "
    if any((1 + regimes.useful_within) * fewest >= one.value for one in estimates[:at] if one.met):
        return f"{said}the end of perfect scaling: steps still fall there."
    if where == batches[at]:
        return f"{said}with the fewest steps ({whole(fewest)}); {_larger(at, batches, estimates, any_met)}."
    return (f"{said}whose {whole(estimates[at].value)} steps are within {percent(regimes.useful_within)} of the fewest "
            f"({whole(fewest)}, at batch {where:,}).")


def _larger(at: int, batches: Sequence[int], estimates: Sequence[Estimate], any_met: Sequence[bool]) -> str:
    if at == len(batches) - 1:
        return "none larger was run"
    if any(one.met for one in estimates[at + 1:]):
        return "larger ones took no fewer"
    most = " in most runs" if any(any_met[at + 1:]) else ""
    return f"batch {listed(f'{batch:,}' for batch in batches[at + 1:])} did not meet the target{most}"


def fit_said(fit: CriticalBatchFit | None) -> tuple[str, ...]:
    """The critical batch and S_min with their intervals, as far as the points bound them; nothing where they bound
    neither. Then the shape, lack of fit, and which batches were left out."""
    if fit is None or fit.b_crit.low == 0 and math.isinf(fit.b_crit.high):
        return _left_out_said(fit)
    s_min, b_crit = fit.s_min, fit.b_crit
    if math.isinf(b_crit.high):
        return (f"Critical batch (E_min / S_min): at least {number(b_crit.low, 2)}; no plateau is reached, so S_min "
                "cannot be estimated.", *_left_out_said(fit))
    if b_crit.low == 0:
        return (f"Critical batch (E_min / S_min): at most {number(b_crit.high, 2)}; no perfect scaling is reached. "
                f"S_min: {as_fitted(s_min)} steps.", *_left_out_said(fit))
    return (f"Critical batch (E_min / S_min): {as_fitted(b_crit)}; S_min: {as_fitted(s_min)} steps.",
            f"{_shape_said(fit)}{_lack_said(fit)}",
            f"20% more examples than perfect scaling at batch {as_fitted(fit.overhead)}, twice as many at "
            f"{as_fitted(fit.half_efficient)}.", *_left_out_said(fit))


def _shape_said(fit: CriticalBatchFit) -> str:
    """Which shape the points prefer: of S = S_min (1 + (B_crit / B)^p)^(1/p)."""
    low, high = fit.shape.low, fit.shape.high
    if fit.points < 4 or low <= 1 and high >= 4:
        return "These batches do not show how sharply the curve bends."
    shape = f"p = {number(fit.shape.value, 2)} ({number(low, 2)}-{number(high, 2)})"
    if low > 1:
        return f"The curve bends more sharply than McCandlish's hyperbola (p = 1): {shape}."
    if high < 1:
        return f"The curve bends more softly than McCandlish's hyperbola (p = 1): {shape}."
    return f"The curve is consistent with McCandlish's hyperbola (p = 1): {shape}."


def _lack_said(fit: CriticalBatchFit) -> str:
    if not fit.lack_of_fit < LACKING:
        return ""
    return (f" The points scatter more than their intervals allow (lack of fit: p-value {number(fit.lack_of_fit, 2)}, "
            f"{fit.rms_log2:.2f} rms in log2); the intervals of the fit include that.")


def _left_out_said(fit: CriticalBatchFit | None) -> tuple[str, ...]:
    if fit is None or not fit.left_out:
        return ()
    batches = [f"{batch:,}" for batch in fit.left_out]
    return (f"Steps rise again at the largest batches: batch {listed(batches)} {'is' if len(batches) == 1 else 'are'} "
            "left out of the fit.",)


def as_fitted(estimate: Estimate) -> str:
    """A value with its interval, to as many digits as that justifies."""
    digits = 2 if estimate.high >= 1.5 * estimate.low else 3
    return f"{number(estimate.value, digits)} ({span(estimate.low, estimate.high, whole)})"
