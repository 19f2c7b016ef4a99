"""Whether larger batches reach worse solutions, in sentences and a table.

    print(*quality_said(quality_of(studies, "val/error", True, Budget(5000, "steps"))), sep="\\n")
"""
from __future__ import annotations

import math

from ...analysis.quality import BATCHES, LEAST_BATCHES, LEAST_TRIALS, LEVEL, POWER, STOPPED, UNFINISHED, Quality
from ...analysis.best_batch import Valley
from ...analysis.best_points import LEARNING_RATE
from ...analysis.budgets import BudgetPoint, EarlyEnd
from ...analysis.shares import Tolerance
from ...formatting.numbers import capital, in_brackets, listed, number, percent, span, whole
from ..columns import BATCH, SHALLUE, metric_name
from ..file_names import column_name
from ..table import Cell, Column, Row, Table, count_cell, number_cell
from .budgets import MARK, at_batches, best_cell, ends_said, heading

BY_CHANCE = "Of sweeps without any penalty, 5 to 7 in 100 would seem to have one"


def quality_said(found: Quality | None) -> tuple[str, ...]:
    """The verdict, what it is based on, and what the sweep could have found; () for None."""
    if found is None:
        return ()
    said = [_verdict(found)]
    if math.isfinite(found.p_value):
        said.append(f"Tested against the same values with the batches in any other order: p {_p(found.p_value)}, "
                    f"best of {found.n} trials at each of {len(found.batches)} batches. "
                    + (f"{BY_CHANCE}." if found.penalty else _power_said(found)))
    if found.penalty and found.budget is not None and found.budget.unit in ("epochs", "examples"):
        said.append(f"So many {found.budget.unit} are fewer steps at a larger batch: this says nothing of what it "
                    "reaches in as many steps.")
    if found.penalty and found.late and len(found.late) < len(found.points):
        said.append(f"{capital(at_batches(found.late, found.points))} the best value came at the end of the budget: a "
                    "larger one may make up for it.")
    if found.left_out and math.isfinite(found.p_value):
        said.append(f"Left out: batch {listed(found.left_out)}, with fewer than {LEAST_TRIALS} feasible trials.")
    return tuple(said)


def _verdict(found: Quality) -> str:
    metric, within = metric_name(found.column), _within(found)
    if not math.isfinite(found.p_value):
        return f"Cannot tell whether large batches reach a worse {metric}{within}: {_why(found)}"
    if not found.penalty and found.valley and math.isfinite(found.valley.best.high):
        at = found.valley.fitted.argmin()
        return (f"Whether there is a large-batch penalty{within} is open: the best {metric} is "
                f"{number(found.best[at], 4)} at batch {found.batches[at]:,} and {number(found.best[-1], 4)} at "
                f"{found.batches[-1]:,}, which may be chance.")
    if found.improves:
        return (f"No sign of a large-batch penalty{within}: the best {metric} gets better with the batch, from "
                f"{number(found.best[0])} at {found.batches[0]:,} to {number(found.best[-1])} at "
                f"{found.batches[-1]:,}.")
    if not found.penalty:
        best = found.best[int((found.best if found.minimizes else -found.best).argmin())]
        return (f"No sign of a large-batch penalty{within}: the best {metric} does not get worse with the batch from "
                f"{found.batches[0]:,} to {found.batches[-1]:,} (it is {number(found.best[-1])} at the largest, "
                f"{number(best)} at its best).")
    ends = in_brackets(max(found.worse_by.low, 0), found.worse_by.high)
    return (f"The best {metric}{within} is worse at batch {found.worse_from:,} and above by "
            f"{number(found.worse_by.value)}{ends}, {percent(found.worse_share)} of what smaller ones reach.")


def best_batch_said(found: Quality | None, tolerance: Tolerance) -> tuple[str, ...]:
    """The best batch at the budget, which others are as good, and by how much the largest is worse; () without a
    valley."""
    if found is None or found.valley is None:
        return ()
    valley, metric = found.valley, metric_name(found.column)
    low, high = valley.within(tolerance)
    lowest, last = abs(valley.lowest), valley.fitted[-1] - valley.lowest
    ends = span(valley.best.low, valley.best.high, whole) or "any of those run"
    said = (f"Best batch{_within(found)}: {number(valley.best.value, 2)} ({ends}), where the {metric} is "
            f"{number(lowest, 4)}; within {tolerance} of that: batches {number(low, 2)} to {number(high, 2)}")
    worse = f"{percent(last / lowest)} worse" if lowest else f"worse by {number(last)}"
    return (f"{said}; {worse} at batch {valley.batches[-1]:,}.",
            f"By a valley in log B fitted to the best of {found.n} at each of {len(valley.batches)} batches; the "
            "interval is of any curve that falls and then rises.")


def _why(found: Quality) -> str:
    if found.why == STOPPED:
        ends = set().union(*(point.outcomes.ends(point.outcomes.searched.nonzero()[0].tolist())
                             for point in found.points if point.global_batch in found.short))
        own_budget = EarlyEnd.OWN_BUDGET
        cures = ["a search with keep_going and prune_keep off, or for the metric itself,"] * bool(ends - {own_budget})
        cures += ["a search with a larger budget"] * (own_budget in ends)
        return (f"{at_batches(found.short, found.points)} the best trial, or most of them, ended before the budget "
                f"was spent, {ends_said(ends, 'their')}. {capital(listed(cures, 'or'))} would decide it.")
    if found.why == BATCHES:
        return (f"the test needs {LEAST_BATCHES} batch sizes with {LEAST_TRIALS} feasible trials or more, and "
                f"{len(found.batches) or 'none'} {'has' if len(found.batches) < 2 else 'have'} them.")
    if found.why == UNFINISHED:
        return f"it gets better with the batch, but the small ones had not finished{_epochs_said(found)}."
    return "no trial measured it."


def _epochs_said(found: Quality) -> str:
    """What the smallest and the largest batch had seen by the end of a budget of steps."""
    examples = found.workload.train_examples
    if found.budget is None or found.budget.unit != "steps" or not examples:
        return ""
    small, large = (found.budget.amount * batch / examples for batch in (found.batches[0], found.batches[-1]))
    return (f": by then batch {found.batches[0]:,} had seen {number(small, 2)} epochs, batch {found.batches[-1]:,} "
            f"{number(large, 2)}")


def _power_said(found: Quality) -> str:
    if found.improves:
        return f"That it gets better is more than chance (p at most {LEVEL:g}, tested the other way round)."
    if not found.detectable > 0:
        return "All of them are equal."
    best = abs(found.best.mean())
    share = f", {percent(found.detectable / best)} of it," if best > 0 else ""
    return (f"An even rise of {number(found.detectable)}{share} over these batches would have been found in "
            f"{POWER:.0%} of such sweeps; a smaller one may be there.")


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


def quality_table(found: Quality | None, apart: bool = False) -> Table | None:
    """By batch the best value and what was compared of it; None for None. apart: its name has the budget."""
    if found is None:
        return None
    columns = (BATCH, Column("feasible", "feasible", "1", "trials with a value, finite up to their stop"),
               Column("best", "best", "1", f"the best {found.column} of them all; below: the interval of the median "
                      "best of as many", SHALLUE),
               Column("compared", f"best of {found.n}", "1", f"the median over all subsets of {found.n} of the best "
                      "in each: what the test compares"),
               *[Column("fitted", "fitted", "1", "the valley in log B fitted to these; below: how much worse than at "
                        "its best batch")] * (found.valley is not None),
               Column("learning_rate", "its rate", "1", "learning rate of the trial with the best"),
               Column("short", "ended before", "1", "feasible trials that ended before the budget was spent"))
    best = dict(zip(found.compared, found.best))
    fitted = dict(zip(found.compared, _fitted_cells(found.valley, found.minimizes))) if found.valley else {}
    rows = tuple(Row((
        count_cell(point.global_batch), count_cell(point.feasible), best_cell(point),
        number_cell(float(best.get(at, math.nan))),
        *[fitted.get(at, number_cell(math.nan))] * (found.valley is not None),
        number_cell(_rate_of(point)), count_cell(point.short)), point.keys, ())
        for at, point in enumerate(found.points))
    warnings = (f"{MARK} of a trial that ended before the budget was spent: it might have been better.",) * any(
        point.best_is_short for point in found.points)
    own = f"-{found.budget}".replace(" ", "-").replace(",", "") if apart else ""
    return Table(f"quality-{column_name(found.column)}{own}", "Solution quality by batch: best "
                 f"{metric_name(found.column)}{_within(found)}", columns, rows,
                 (f"Intervals: {found.confidence:.0%}.",), warnings=warnings)
