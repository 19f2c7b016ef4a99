"""Whether larger batches reach worse solutions, in findings and a table."""
from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ...analysis.best_points import LEARNING_RATE
from ...analysis.budgets import Budget, BudgetPoint, EarlyEnd, common_budgets
from ...analysis.quality import (BATCHES, LEAST_BATCHES, LEAST_TRIALS, LEVEL, POWER, STOPPED, UNFINISHED, Quality,
                                 quality_of)
from ...analysis.defaults import Tolerance
from ...analysis.studies import are_searched, better, is_measured, show_ends_alone
from ...formatting.numbers import capital, in_brackets, listed, percent, span, whole
from ...log.schema import SMALLER
from ..document import Details, Figures, Finding, Part, Shown, column_name
from ..drawing import INK, MUTED, TICKS, Axes, Figure, draw_line, ends_of, label_axes, log2_axis, shade, value_axis
from ..subject import Subject
from ..table import Cell, Table, cell_of, keys_of, metric_name
from ..texts import GENERAL, SEARCH, Cells
from .budgets import MARK, at_batches, best_cell, describe_ends, parts_of_budgets, within_own
from .curves import heading


def parts_of_quality(subject: Subject, column: str, minimizes: bool) -> Iterator[Part]:
    """Within the steps that every batch has run, where that decides; else as long as each trial was to run, else within
    the epochs that every batch has run. Then under the budgets that were asked for, their tables in files only."""
    def under(budget: Budget | None) -> Quality | None:
        return quality_of(subject.studies, column, minimizes, budget, subject.asked.confidence)
    epochs, steps = common_budgets(subject.studies)
    tried: list[Quality] = []
    for budget in (steps, None, epochs):
        found = under(budget)
        if found is None:               # none has the metric
            return
        tried.append(found)
        if not found.why:
            break
    decided, tolerance = not tried[-1].why, subject.asked.loss_within
    first = tried[-1] if decided else tried[1]
    others = [found for budget in subject.asked.budgets if budget != first.budget and (found := under(budget))]
    for found in (first, *others):
        yield from (*find_best_batch(found, tolerance), find_quality(found))
    if decided:
        yield quality_table(first)
    yield Details(lambda: [quality_table(one, apart=True) for one in others])
    yield Figures(lambda: [best_batch_figure(first, tolerance)])


def best_of_metrics(subject: Subject) -> Iterator[Part]:
    """The best of each metric whose better way is known, of validation if it was measured, of studies held against no
    target."""
    studies = subject.studies
    columns = sorted({name for study in studies for name in study.evaluations.columns if "/" in name})
    every = [(column, way == SMALLER) for column in columns
             if (way := better(column, studies)) and is_measured(studies, column)]
    known = [one for one in every if one[0].startswith("val/")] or every
    objectives = {(study.plan(0).get("sweep") or {}).get("objective") for study in studies if len(study)}
    told = [one for one in known if one[0] in objectives] or known       # a search's own, or all
    best, quality = {one: Shown(tuple(parts_of_budgets(subject, *one, own=True))) for one in known}, {}
    for one in known if len(studies) > 1 else ():
        found = Shown(tuple(parts_of_quality(subject, *one)))
        if found.tables or are_searched(studies):       # of repeats it is of no interest that no test can be made
            quality[one] = found
    shown, rest = ([views[one] for views in (quality, best) for one in metrics if one in views] for metrics in (
        told, [one for one in known if one not in told]))
    yield from (found for one in shown for found in one.findings)
    if show_ends_alone(studies):
        yield GENERAL.find("ends_alone")
    yield from (table for one in shown for table in one.tables)
    yield Details(lambda: [*(table for one in rest for table in one.tables),
                           *(table for views in (best, quality) for one in views.values() for table in one.details)])
    yield from (figures for one in (*shown, *rest) for figures in one.of_kind(Figures))


def find_quality(found: Quality) -> Finding:
    more = tuple(_describe_basis(found))
    metric, within = metric_name(found.column), within_own(found.budget)
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
    tested, best = math.isfinite(found.p_value), abs(found.best.mean()) if len(found.best) else 0.0
    if tested:
        p = f"= {found.p_value:.{2 if found.p_value >= 0.095 else 3}f}" if found.p_value >= 0.001 else "< 0.001"
        yield SEARCH.say(
            "quality_test", p=p, n=found.n, batches=len(found.batches), penalty=bool(found.penalty),
            better=found.improves, level=f"{LEVEL:g}", equal=not found.detectable > 0, rise=float(found.detectable),
            rise_share=float(found.detectable / best) if best > 0 else None, power=POWER)
    if found.penalty and found.budget is not None and found.budget.unit in ("epochs", "examples"):
        yield SEARCH.say("quality_steps", unit=found.budget.unit)
    if found.penalty and found.late and len(found.late) < len(found.points):
        yield SEARCH.say("quality_late", at=at_batches(found.late, found.points))
    if found.left_out and tested:
        yield SEARCH.say("quality_left_out", batches=listed(found.left_out), least=LEAST_TRIALS)


def find_best_batch(found: Quality, tolerance: Tolerance) -> tuple[Finding, ...]:
    """The best batch at the budget, which others are as good, and by how much the largest is worse."""
    if found.valley is None:
        return ()
    valley = found.valley
    low, high = valley.within(tolerance)
    lowest, last = abs(valley.lowest), valley.fitted[-1] - valley.lowest
    return (SEARCH.find(
        "best_batch", valley.best, (SEARCH.say("best_batch_of", n=found.n, batches=len(valley.batches)),),
        within=within_own(found.budget), best=valley.best.value, metric=metric_name(found.column), lowest=lowest,
        ends=span(valley.best.low, valley.best.high, whole) or "any of those run", tolerance=str(tolerance), low=low,
        high=high, share=last / lowest if lowest else None, amount=last, largest=valley.batches[-1]),)


def _why(found: Quality) -> tuple[str, ...]:
    """Why nothing can be said, then what would decide it where that is known."""
    if found.why == STOPPED:
        short = [point for point in found.points if point.global_batch in found.short]
        ends = set().union(*(one.ends(one.rows.tolist()) for one in short))
        cures = ["a search with keep_going and prune_keep off, or for the metric itself,"
                 ] if ends - {EarlyEnd.OWN_BUDGET} else []
        cures += ["a search with a larger budget"] if EarlyEnd.OWN_BUDGET in ends else []
        return SEARCH.say("quality_stopped", at=at_batches(found.short, found.points),
                          ends=describe_ends(ends, "their"), alike=all(one.stopped[one.trial] for one in short)
                          ), capital(SEARCH.say("quality_cure", cures=cures))
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


def quality_table(found: Quality, apart: bool = False) -> Table:
    best = {found.points[at].global_batch: value for at, value in zip(found.compared, found.best)}
    fitted: dict[int, Cell] = {}
    if found.valley:
        lowest, sign = found.valley.lowest, 1 if found.minimizes else -1
        for at, cost in zip(found.compared, found.valley.fitted.tolist()):
            worse = f"{percent((cost - lowest) / abs(lowest))} worse" if lowest else ""
            fitted[found.points[at].global_batch] = cell_of(sign * cost, worse)
    valley: Cells = {"fitted": lambda point: fitted.get(point.global_batch, math.nan)}

    def rate_of_best(point: BudgetPoint) -> float:
        return math.nan if point.trial is None else float(point.study.metaparameter(LEARNING_RATE)[point.trial])
    own = f"-{found.budget}".replace(" ", "-").replace(",", "") if apart else ""
    return SEARCH.table("quality", found.points, {
        "global_batch": lambda point: point.global_batch,
        SEARCH.column("feasible_valued", "feasible"): lambda point: point.feasible,
        SEARCH.column("best_of_all", "best", metric=found.column): best_cell,
        "compared": lambda point: float(best.get(point.global_batch, math.nan)),
        **(valley if found.valley else {}), "learning_rate": rate_of_best,
        "short": lambda point: point.short}, lambda point: point.keys,
        file=f"quality-{column_name(found.column)}{own}", n=found.n, metric=metric_name(found.column),
        within=within_own(found.budget), notes=[SEARCH.say("intervals", confidence=found.confidence)],
        warnings=[SEARCH.say("short_best", mark=MARK, might=True)
                  if any(point.best_is_short for point in found.points) else ""])


def best_batch_figure(found: Quality, tolerance: Tolerance) -> Figure | None:
    """The best value at each batch with the valley fitted to them, and which batches do as well; None without one."""
    if found.valley is None:
        return None
    valley, metric, sign = found.valley, metric_name(found.column), 1 if found.minimizes else -1
    points = [found.points[at] for at in found.compared]

    def draw(axes: Axes) -> None:
        log2_axis(axes, "x", list(valley.batches), most=TICKS)
        along = np.geomspace(valley.batches[0], valley.batches[-1], 300)
        axes.axvspan(*valley.within(tolerance), color=shade(2, 3), alpha=0.2, linewidth=0, label=f"within {tolerance}")
        for point, value in zip(points, found.best):
            draw_line(axes, [(point.global_batch, end) for end in (point.best.low, point.best.high)], MUTED, width=1.4)
            axes.plot([point.global_batch], [value], linestyle="", marker="o", color=INK, markersize=5.5)
        axes.plot(along, sign * valley.at(along), color=shade(0, 3), linewidth=1.4, label="fitted")
        axes.axvline(valley.best.value, color=shade(0, 3), linewidth=1, linestyle=":", label="best batch")
        value_axis(axes, "y", ends_of(point.best for point in points), TICKS)
        label_axes(axes, "global batch B (examples)", metric)
    return SEARCH.figure("best-batch", draw, keys_of(points),
                         name=column_name(found.column), metric=metric, workload=heading(found.workload), n=found.n,
                         confidence=found.confidence, tolerance=str(tolerance))
