"""Whether larger batches reach worse solutions, in findings and a table.

    view = View(find_quality(quality_of(studies, "val/error", True, Budget(5000, "steps"))))
"""
from __future__ import annotations

import math
from collections.abc import Iterator

from ...analysis.best_batch import Valley
from ...analysis.best_points import LEARNING_RATE
from ...analysis.budgets import BudgetPoint, EarlyEnd
from ...analysis.quality import BATCHES, LEAST_BATCHES, LEAST_TRIALS, LEVEL, POWER, STOPPED, UNFINISHED, Quality
from ...analysis.shares import Tolerance
from ...formatting.numbers import capital, in_brackets, listed, percent, span, whole
from ..columns import BATCH, metric_name
from ..file_names import column_name
from ..findings import Finding
from ..table import Cell, Table, count_cell, number_cell
from ..texts import Cells
from .budgets import MARK, at_batches, best_cell, describe_ends, heading
from .words import SEARCH


def find_quality(found: Quality) -> Finding:
    """The verdict, what it is based on, and what the sweep could have found."""
    more = tuple(_describe_basis(found))
    metric, within = metric_name(found.column), _within(found)
    if not math.isfinite(found.p_value):
        why, *cure = _why(found)
        return SEARCH.find("quality_unknown", None, (*cure, *more), metric=metric, within=within, why=why)
    values, batches, apart = [float(one) for one in found.best], found.batches, found.apart
    fallen = found.valley is not None and math.isfinite(found.valley.best.high)
    kind = ("quality_open" if not found.penalty and (fallen or apart) else
            "quality_better" if found.improves else "quality_worse" if found.penalty else "quality_same")
    at = int(found.valley.fitted.argmin()) if found.valley else found.best_at
    return SEARCH.find(
        kind, None, more, metric=metric, within=within, smallest=batches[0], largest=batches[-1], first=values[0],
        largest_value=values[-1], best=values[found.best_at],
        batch=found.worse_from if found.penalty else batches[at], apart=apart,
        value=values[at], worse=found.worse_by.value, share=found.worse_share,
        ends=in_brackets(max(found.worse_by.low, 0), found.worse_by.high))


def _describe_basis(found: Quality) -> Iterator[str]:
    """What the verdict is based on, and what the sweep could have found."""
    tested, best = math.isfinite(found.p_value), abs(found.best.mean()) if len(found.best) else 0.0
    if tested:
        yield SEARCH.say(
            "quality_test", p=_p(found.p_value), n=found.n, batches=len(found.batches), penalty=bool(found.penalty),
            better=found.improves, level=f"{LEVEL:g}", equal=not found.detectable > 0, rise=float(found.detectable),
            rise_share=float(found.detectable / best) if best > 0 else None, power=POWER)
    if found.penalty and found.budget is not None and found.budget.unit in ("epochs", "examples"):
        yield SEARCH.say("quality_steps", unit=found.budget.unit)
    if found.penalty and found.late and len(found.late) < len(found.points):
        yield SEARCH.say("quality_late", at=at_batches(found.late, found.points))
    if found.left_out and tested:
        yield SEARCH.say("quality_left_out", batches=listed(found.left_out), least=LEAST_TRIALS)


def find_best_batch(found: Quality, tolerance: Tolerance) -> tuple[Finding, ...]:
    """The best batch at the budget, which others are as good, and by how much the largest is worse; () without a
    valley."""
    if found.valley is None:
        return ()
    valley = found.valley
    low, high = valley.within(tolerance)
    lowest, last = abs(valley.lowest), valley.fitted[-1] - valley.lowest
    return (SEARCH.find(
        "best_batch", valley.best, (SEARCH.say("best_batch_of", n=found.n, batches=len(valley.batches)),),
        within=_within(found), best=valley.best.value, metric=metric_name(found.column), lowest=lowest,
        ends=span(valley.best.low, valley.best.high, whole) or "any of those run", tolerance=str(tolerance), low=low,
        high=high, share=last / lowest if lowest else None, amount=last, largest=valley.batches[-1]),)


def _why(found: Quality) -> tuple[str, ...]:
    """Why nothing can be said, then what would decide it where that is known."""
    if found.why == STOPPED:
        ends = set().union(*(point.outcomes.ends(point.outcomes.searched.nonzero()[0].tolist())
                             for point in found.points if point.global_batch in found.short))
        cures = ["a search with keep_going and prune_keep off, or for the metric itself,"] * bool(
            ends - {EarlyEnd.OWN_BUDGET}) + ["a search with a larger budget"] * (EarlyEnd.OWN_BUDGET in ends)
        return SEARCH.say("quality_stopped", at=at_batches(found.short, found.points),
                          ends=describe_ends(ends, "their")), capital(SEARCH.say("quality_cure", cures=cures))
    if found.why == BATCHES:
        return (SEARCH.say("quality_few", batches=LEAST_BATCHES, trials=LEAST_TRIALS,
                           found=len(found.batches) or None, one=len(found.batches) < 2),)
    if found.why == UNFINISHED:
        examples, of_steps = found.workload.train_examples, found.budget is not None and found.budget.unit == "steps"
        amount = found.budget.amount if found.budget else 0.0
        few, many = (amount * batch / (examples or 1) for batch in (found.batches[0], found.batches[-1]))
        return (SEARCH.say("quality_unfinished", smallest=found.batches[0] if of_steps and examples else None, few=few,
                           largest=found.batches[-1], many=many),)
    return (SEARCH.say("quality_unmeasured"),)


def _p(value: float) -> str:
    return f"= {value:.2f}" if value >= 0.095 else f"= {value:.3f}" if value >= 0.001 else "< 0.001"


def _within(found: Quality) -> str:
    return f" {heading(found.budget)}" if found.budget else " within each trial's own budget"


def _fitted_cells(valley: Valley, minimizes: bool) -> list[Cell]:
    over, lowest = valley.fitted - valley.lowest, abs(valley.lowest)
    return [number_cell(cost if minimizes else -cost, f"{percent(more / lowest)} worse" if lowest else "")
            for cost, more in zip(valley.fitted.tolist(), over.tolist())]


def _rate_of(point: BudgetPoint) -> float:
    """The learning rate of the best trial."""
    return float("nan") if point.trial is None else float(
        point.outcomes.study.metaparameter(LEARNING_RATE)[point.trial])


def quality_table(found: Quality, apart: bool = False) -> Table:
    """By batch the best value and what was compared of it. apart: its name has the budget."""
    best = {found.points[at].global_batch: value for at, value in zip(found.compared, found.best)}
    fitted = {found.points[at].global_batch: cell for at, cell in zip(
        found.compared, _fitted_cells(found.valley, found.minimizes) if found.valley else ())}
    valley: Cells = {"fitted": lambda point: fitted.get(point.global_batch, number_cell(math.nan))}
    own = f"-{found.budget}".replace(" ", "-").replace(",", "") if apart else ""
    return SEARCH.table("quality", found.points, {
        BATCH: lambda point: count_cell(point.global_batch),
        SEARCH.column("feasible_valued", "feasible"): lambda point: count_cell(point.feasible),
        SEARCH.column("best_of_all", "best", metric=found.column): best_cell,
        "compared": lambda point: number_cell(float(best.get(point.global_batch, math.nan))),
        **(valley if found.valley else {}), "learning_rate": lambda point: number_cell(_rate_of(point)),
        "short": lambda point: count_cell(point.short)}, lambda point: point.keys,
        file=f"quality-{column_name(found.column)}{own}", n=found.n, metric=metric_name(found.column),
        within=_within(found), notes=[SEARCH.say("intervals", confidence=found.confidence)],
        warnings=[SEARCH.say("short_best", mark=MARK, might=True)] * any(
            point.best_is_short for point in found.points))
