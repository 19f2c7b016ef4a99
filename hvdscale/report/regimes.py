"""What is said of the regimes of a curve of steps to target by global batch.

    print(*curve_said(curve), sep="\\n")
"""
from __future__ import annotations

import math
from collections.abc import Sequence

from ..analysis.curves import Curve
from ..analysis.hyperbola import Hyperbola
from ..analysis.intervals import Estimate
from ..analysis.regimes import BatchEstimate, Regimes
from .numbers import listed, number, percent, span, whole

ROUGH = 0.3             # rms of log2(S / fit) from which on the fit is called rough


def curve_said(curve: Curve) -> tuple[str, ...]:
    """The regimes of a curve of searches; nothing where fewer than two batches were run, or none met."""
    return regimes_said(curve.regimes, curve.batches, [point.steps for point in curve.points],
                        [point.met > 0 for point in curve.points])


def regimes_said(regimes: Regimes | None, batches: Sequence[int], estimates: Sequence[Estimate],
                 any_met: Sequence[bool]) -> tuple[str, ...]:
    """The regimes at these batches, smallest first.

    any_met  whether some run of a batch met the target, though its estimate may not
    """
    untrained = [f"{batch:,}" for batch, one in zip(batches, estimates) if one.value == 0]
    if untrained:
        return (f"The target is met before the first step at batch {listed(untrained)}: nothing can be told of how "
                "steps scale with the batch. A stricter target would tell.",)
    if len(batches) < 2 or regimes is None or regimes.maximum_useful.value is None:
        return ()
    return (_perfect_said(regimes, batches, estimates), _useful_said(regimes, batches, estimates, any_met),
            *fit_said(regimes.fit))


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


def _perfect_said(regimes, batches, estimates):
    until, meaning = regimes.perfect_until, f"batch x steps within {percent(regimes.perfect_within)} of the smallest"
    known = [(batch, inside) for batch, one, inside in zip(batches, estimates, regimes.perfect) if one.met]
    but = _unsteady_said(until, known)
    if until.value == batches[0]:
        return f"No perfect scaling ({meaning}) beyond batch {batch_said(until)}: larger ones need more examples.{but}"
    if until.value == batches[-1]:
        return f"Perfect scaling ({meaning}) up to the largest batch, {batch_said(until)}.{but}"
    rest = "; diminishing returns from there" if known[-1][0] > until.value else ""
    return f"Perfect scaling ({meaning}) up to batch {batch_said(until)}{rest}.{but}"


def _unsteady_said(until, known):
    """Which batches before the end are outside and which after it inside.

    known  (batch, whether it is inside) of those that met
    """
    first = next(batch for batch, inside in known if inside)
    out = [f"{batch:,}" for batch, inside in known if batch < until.value and not inside]
    back = [f"{batch:,}" for batch, inside in known if batch > until.value and inside]
    said = []
    if out:
        why = f", which {'its interval allows' if len(out) == 1 else 'their intervals allow'}"
        said.append(f"batch {listed(out)} {'needs' if len(out) == 1 else 'need'} more"
                    + (why if until.known and first == known[0][0] else ""))
    if back:
        said.append(f"batch {listed(back)} {'is' if len(back) == 1 else 'are'} within it again, beyond one that surely "
                    "is not")
    return f" Not steadily: {'; '.join(said)}." if said else ""


def _useful_said(regimes, batches, estimates, any_met):
    at = list(batches).index(regimes.maximum_useful.value)
    met = [(one.value, batch) for batch, one in zip(batches, estimates) if one.met]
    fewest, where = min(met)
    said = f"Maximum useful batch: {batch_said(regimes.maximum_useful)}, "
    if where == batches[at]:
        return f"{said}which took the fewest steps ({whole(fewest)}); {_larger(at, batches, estimates, any_met)}."
    return (f"{said}whose {whole(estimates[at].value)} steps are within {percent(regimes.useful_within)} of the fewest "
            f"({whole(fewest)}, at batch {where:,}).")


def _larger(at, batches, estimates, any_met):
    """What is known of batches larger than this one."""
    if at == len(batches) - 1:
        return "no larger one was run"
    if any(one.met for one in estimates[at + 1:]):
        return "larger ones took no fewer"
    most = " in most runs" if any(any_met[at + 1:]) else ""
    return f"batch {listed(f'{batch:,}' for batch in batches[at + 1:])} did not meet the target{most}"


def fit_said(fit: Hyperbola | None) -> tuple[str, ...]:
    """S_min and B_crit with their intervals, as far as the points bound them; nothing where they bound neither end."""
    if fit is None or fit.b_crit.low == 0 and math.isinf(fit.b_crit.high):
        return ()
    s_min, b_crit = fit.s_min, fit.b_crit
    if math.isinf(b_crit.high):
        return (f"Critical batch (B_crit in S = S_min (1 + B_crit / B)): at least {number(b_crit.low, 2)}; these "
                "batches do not reach a plateau, and no fewest steps can be told.",)
    if b_crit.low == 0:
        return (f"Critical batch (B_crit in S = S_min (1 + B_crit / B)): at most {number(b_crit.high, 2)}; these "
                f"batches do not reach perfect scaling. S_min: {as_fitted(s_min)} steps.",)
    rough = f", a rough fit ({fit.rms_log2:.2f} rms in log2)" if fit.rms_log2 > ROUGH else ""
    return (f"S = S_min (1 + B_crit / B){rough}: S_min {as_fitted(s_min)} steps, critical batch {as_fitted(b_crit)}.",)


def as_fitted(estimate):
    """A value with its interval, to as many digits as that bears."""
    digits = 2 if estimate.high >= 1.5 * estimate.low else 3
    return f"{number(estimate.value, digits)} ({span(estimate.low, estimate.high, whole)})"
