"""The best of a metric under budgets, in tables and findings."""
from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache, partial

import numpy as np

from ...analysis.budgets import (BaseRates, BestUnder, Budget, BudgetPoint, EarlyEnd, TrialKind, best_under,
                                 both_readings, value_range)
from ...formatting.numbers import in_brackets, listed, number, span
from ..document import Details, Finding, Part, column_name
from ..drawing import (INK, MARKERS, MOST_MARKS, MUTED, PANEL_TICKS, SHADES, TICKS, Axes, Figure, Look,
                       decimal_ticks, draw_line, draw_panels, explain, is_named, is_positive, label_axes, log2_axis,
                       shade, value_axis)
from ..subject import Subject
from ..table import Cell, Table, cell_of, keys_of, metric_name, no_cell
from ..texts import SEARCH, Cells
from .curves import ASIDE, heading, plain

MARK = "+"              # marks a best value of a trial that ended before the budget was spent
LEVELS = 5                  # of the scale of colours that the legend names
CELL = ((-1, -0.5), (1, -0.5), (1, 0.5), (-1, 0.5), (-1, -0.5))        # a mark twice as wide as high


def parts_of_budgets(subject: Subject, column: str, minimizes: bool, own: bool = False) -> Iterator[Part]:
    """The best of a metric under each budget asked for; ``own``: without any, under each trial's own."""
    budgets = subject.asked.budgets or ((None,) if own else ())
    found = best_under(subject.studies, column, minimizes, budgets, subject.asked.confidence)
    if found:
        yield from find_budgets(found)
        yield budgets_table(found)


def base_rates(subject: Subject, column: str, minimizes: bool) -> Iterator[Part]:
    yield Details(cache(lambda: [base_rates_table(*both_readings(subject.studies, column, minimizes))]))


def budgets_table(found: BestUnder) -> Table:
    columns: Cells = {SEARCH.column("best_within", _key(budget), within=within_budget(budget), metric=found.column):
                      partial(lambda at, points: best_cell(points[at]), at) for at, budget in enumerate(found.budgets)}
    return SEARCH.table("budgets", zip(*found.rows), {
        "global_batch": lambda points: points[0].global_batch,
        SEARCH.column("feasible_of_all", "feasible"): lambda points: cell_of(
            max(point.feasible for point in points), f"{points[0].diverged} div." if points[0].diverged else ""),
        **columns}, keys_of, file=f"budgets-{column_name(found.column)}", warnings=warnings(found),
        metric=metric_name(found.column), notes=(SEARCH.say("budget_intervals", confidence=found.confidence),))


def find_budgets(found: BestUnder) -> tuple[Finding, ...]:
    """For each budget, at which batch the metric is best and how the smallest and the largest fare."""
    def find(budget: Budget | None, points: Sequence[BudgetPoint]) -> Finding:
        known = [point for point in points if point.trial is not None]
        metric, within = metric_name(found.column), within_budget(budget)
        if not known:
            return SEARCH.find("budget_unmeasured", metric=metric, within=within)
        best = min(known, key=lambda point: point.value if found.minimizes else -point.value)
        ends = [SEARCH.say("budget_end", value=point.value, batch=point.global_batch)
                for point in dict.fromkeys((known[0], known[-1])) if point is not best]
        short = [point.global_batch for point in known if point.best_is_short]
        return SEARCH.find("budget", metric=metric, within=within, value=best.value, batch=best.global_batch,
                           ends=ends, interval=in_brackets(best.best.low, best.best.high),
                           short=at_batches(short, points) if short else "", how=describe_ends(best_ends(known)))
    return tuple(map(find, found.budgets, found.rows))


def best_ends(points: Sequence[BudgetPoint]) -> set[EarlyEnd]:
    """How the best trials of these points ended, of those that ended before the budget was spent."""
    return set().union(*(point.ends([point.trial]) for point in points
                         if point.trial is not None and point.best_is_short))


def describe_ends(ends: Collection[EarlyEnd], their: str = "its") -> str:
    """``at its target or stopped by its search``: see analysis.budgets.BudgetPoint.ends."""
    words = {EarlyEnd.OWN_TARGET: f"at {their} target", EarlyEnd.OWN_BUDGET: f"at the end of {their} own budget",
             EarlyEnd.PRUNED: f"stopped by {their} search"}
    return listed((said for end, said in words.items() if end in ends), "or")


def at_batches(batches: Sequence[int], points: Sequence[BudgetPoint]) -> str:
    """``at batch 8 and 16``; ``at every batch`` where it is all of the points'."""
    return SEARCH.say("at_batches", batches=list(batches),
                      all=len(batches) > 1 and set(batches) == {point.global_batch for point in points})


def warnings(found: BestUnder) -> Iterator[str]:
    """Of the tables: trials that ended early, and batches with more trials than others."""
    points = [point for points in found.rows for point in points]
    if any(point.best_is_short for point in points):
        yield SEARCH.say("short_best", mark=MARK, ends=describe_ends(best_ends(points)))
    fewest, most = (end((point.feasible for point in points), default=0) for end in (min, max))
    if fewest < most:
        yield SEARCH.say("uneven", fewest=str(fewest), most=str(most))


def best_cell(point: BudgetPoint) -> Cell:
    if point.trial is None:
        return no_cell()
    mark = f" {MARK}" if point.best_is_short else ""
    return Cell(f"{number(point.value)}{mark}", point.value, point.best.low, point.best.high,
                span(point.best.low, point.best.high))


def within_budget(budget: Budget | None) -> str:
    """``within 10 epochs``."""
    return "over the whole run" if budget is None else f"within {budget}"


def within_own(budget: Budget | None) -> str:
    return f" {within_budget(budget)}" if budget else " within each trial's own budget"


def _key(budget: Budget | None) -> str:
    return "best" if budget is None else f"best_{str(budget).replace(' ', '_').replace(',', '').replace('.', 'p')}"


def base_rates_table(*found_maps: BaseRates | None) -> Table | None:
    """By batch the best base rate of each map; None where there is none."""
    maps = [found for found in found_maps if found is not None and found.best]
    if not maps:
        return None
    best = [{int(found.global_batch[at]): at for at in found.best} for found in maps]       # by batch

    def value(found: BaseRates, best: dict[int, int], batch: int) -> Cell:
        if (at := best.get(batch)) is None:
            return Cell("n/a")
        mark = f" {MARK}" if found.kind[at] == TrialKind.SHORT else ""
        return Cell(f"{number(found.value[at])}{mark}", float(found.value[at]))

    def rate(found: BaseRates, best: dict[int, int], batch: int) -> Cell:
        shown = float(found.log2_rate[best[batch]]) if batch in best else None
        return Cell("n/a" if shown is None else f"{shown:.1f}", shown)
    columns: Cells = {}
    for found, own in zip(maps, best):
        within, key = within_budget(found.budget), _key(found.budget)
        columns |= {
            SEARCH.column("base_value", f"{key}_value", within=within, metric=found.column): partial(value, found, own),
            SEARCH.column("base_rate", f"{key}_log2_rate", within=within, effective=found.effective):
                partial(rate, found, own)}
    short = any(found.kind[at] == TrialKind.SHORT for found in maps for at in found.best)
    return SEARCH.table(
        "base-rates", sorted(set().union(*best)), {"global_batch": int, **columns},
        lambda batch: tuple(found.key(at[batch]) for found, at in zip(maps, best) if batch in at),
        file=f"base-rates-{column_name(maps[0].column)}", notes=[SEARCH.say("short_best", mark=MARK) if short else ""],
        metric=metric_name(maps[0].column))


def best_under_figure(*records: BestUnder | None, title: str = "") -> Figure | None:
    """The best value of a metric at each batch, a line a budget, a panel a record; None where none has a value."""
    found = [one for one in records if one is not None and any(_valued(row) for row in one.rows)]
    if not found:
        return None
    metrics = {metric_name(one.column) for one in found}
    title = title or f"Best {min(metrics)} under budgets\n{heading(found[0].workload)}"
    short = any(point.best_is_short for one in found for row in one.rows for point in row)

    def draw(*axes: Axes) -> None:
        if short:
            explain(axes[0], "open: the best trial ended earlier", marker="o", color=MUTED, markersize=5.5,
                    markerfacecolor="none")
        draw_panels(partial(_draw_best_under, found), found, list(map(heading_of, found)))(*axes)

    def heading_of(record: BestUnder) -> str:
        units = {budget.unit for budget in record.budgets if budget is not None}
        what = f"budgets of {' and '.join(sorted(units))}" if units else "each trial's own budget"
        return plain(what if len({one.workload for one in found}) == 1 else f"{record.workload.dataset}: {what}")
    points = [point for one in found for row in one.rows for point in row]
    return SEARCH.figure("best-under-budgets", draw, keys_of(points), len(found), title=title,
                         metrics=" or ".join(sorted(metrics)), confidence=found[0].confidence,
                         ends=describe_ends(best_ends(points)) if short else "")


def _valued(row: Iterable[BudgetPoint]) -> list[BudgetPoint]:
    return [point for point in row if math.isfinite(point.best.value)]


def _draw_best_under(found: Sequence[BestUnder], axes: Axes, record: BestUnder) -> None:
    most = PANEL_TICKS if len(found) > 1 else TICKS
    rows = sorted(((budget, _valued(row)) for budget, row in zip(record.budgets, record.rows)),
                  key=lambda one: one[0].amount if one[0] else 0)
    batches = sorted({point.global_batch for _, row in rows for point in row})
    log2_axis(axes, "x", batches, most=most)
    gap = min((after / before for before, after in zip(batches, batches[1:])), default=2) ** ASIDE
    for at, (budget, row) in enumerate(rows):
        color, marker = shade(at, len(rows)), MARKERS[at % len(MARKERS)]
        aside = gap ** ((at + 0.5) / len(rows) - 0.5)
        x, y = [point.global_batch * aside for point in row], [point.best.value for point in row]
        axes.plot(x, y, color=color, linewidth=1)
        look: Look = {"linestyle": "", "marker": marker, "color": color, "markersize": 5.5}
        for point, across in zip(row, x):
            if point.best.high > point.best.low:
                draw_line(axes, ((across, point.best.low), (across, point.best.high)), color, width=1.4, alpha=0.6)
            axes.plot([across], [point.best.value], **look,
                      **({"markerfacecolor": "none"} if point.best_is_short else {"markeredgewidth": 0}))
        if row and is_named(at, len(rows)):
            explain(axes, str(budget or "its own budget"), **look, markeredgewidth=0)
    alike = [other for other in found if other.column == record.column]         # have one scale
    value_axis(axes, "y", [point.best.value for other in alike for row in other.rows for point in _valued(row)], most)
    label_axes(axes, "global batch B (examples)", metric_name(record.column))


def base_rate_figure(*records: BaseRates | None) -> Figure | None:
    """The map of a metric over batch and base rate, a panel a record, of one scale of colours; None without a value."""
    maps = [one for one in records if one is not None and np.isfinite(one.value).any()]
    if not maps:
        return None
    metric = metric_name(maps[0].column)
    scale = _Scale(*value_range(maps))

    def draw(*axes: Axes) -> None:
        draw_panels(lambda one, record: _draw_map(one, record, scale, maps), maps,
                    [str(record.budget or "each trial's own budget") for record in maps])(*axes)
        for share in np.linspace(0, 1, LEVELS):
            explain(axes[0], f"{metric} {scale.words(share)}", marker=CELL, markersize=9, markeredgewidth=0,
                    color=scale.at(share))
    rate = "\N{GREEK SMALL LETTER ETA} / (1 - momentum)" if maps[0].effective else "\N{GREEK SMALL LETTER ETA}"
    keys = dict.fromkeys(one.key(at) for one in maps for at in range(len(one.rate)))
    return SEARCH.figure("base-rates", draw, tuple(keys), len(maps), metric=metric, rate=rate,
                         budget=str(maps[0].budget) if len(maps) == 1 and maps[0].budget else "",
                         workload=heading(maps[0].workload),
                         short=any((one.kind == TrialKind.SHORT).any() for one in maps))


class _Scale:
    """Colours of values by their share of the way from the best (0: dark) to the worst, beyond which all have one."""

    def __init__(self, best: float, worst: float) -> None:
        self.best, self.worst = best, worst
        self.by_ratio = min(self.best, self.worst) > 0 and max(self.best, self.worst) > 4 * min(self.best, self.worst)

    def share(self, value: float) -> float:
        best, at, worst = map(math.log, (self.best, value, self.worst)) if self.by_ratio and value > 0 else (
            self.best, value, self.worst)
        return min(max((at - best) / (worst - best), 0.0), 1.0) if worst != best else 0.0

    def at(self, share: float) -> str:
        return shade(round(share * SHADES), SHADES + 1)

    def words(self, share: float) -> str:
        value = (self.best * (self.worst / self.best) ** share if self.by_ratio else
                 self.best + share * (self.worst - self.best))
        return number(value, 2 if self.by_ratio else 3) + (" or worse" if share == 1 else "")


def _draw_map(axes: Axes, record: BaseRates, scale: _Scale, maps: Sequence[BaseRates]) -> None:
    rates = np.concatenate([one.rate for one in maps])
    log2_axis(axes, "x", record.batches, most=PANEL_TICKS if len(maps) > 1 else TICKS)
    log2_axis(axes, "y", rates.tolist())
    decimal_ticks(axes.yaxis, axes.get_ylim(), PANEL_TICKS if len(maps) > 1 else TICKS)
    lost = record.kind == TrialKind.DIVERGED
    look: Look = {"linestyle": "", "marker": "x", "color": MUTED, "markersize": 4.5, "markeredgewidth": 1}
    crowded = sum(len(one.rate) for one in maps) > MOST_MARKS
    axes.plot(record.global_batch[lost], record.rate[lost], **look, rasterized=crowded)
    if lost.any():
        explain(axes, "diverged", **look)
    shares = np.array([scale.share(value) if math.isfinite(value) else math.nan for value in record.value])
    marks: dict[tuple[str, int], list[int]] = {}            # of one look: drawn together
    for at in np.argsort(-shares, kind="stable"):           # the better lie on top
        if is_positive(record.rate[at]) and not lost[at] and not math.isnan(shares[at]):
            marks.setdefault((scale.at(shares[at]), 5 if record.kind[at] == TrialKind.SHORT else 10), []).append(at)
    for (color, size), rows in marks.items():
        axes.plot(record.global_batch[rows], record.rate[rows], linestyle="", marker=CELL, markeredgewidth=0,
                  color=color, markersize=size, rasterized=crowded)
    best = list(record.best)
    frame: Look = {"linestyle": "", "marker": CELL, "markerfacecolor": "none", "markeredgecolor": INK,
                   "markersize": 13, "markeredgewidth": 1.2}
    axes.plot(record.global_batch[best], record.rate[best], **frame)
    explain(axes, "best of its batch", **{**frame, "markersize": 10})
    label_axes(axes, "global batch B (examples)",
               "learning rate / ((1 - momentum) B)" if record.effective else "learning rate / B")
