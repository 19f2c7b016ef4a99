"""The best of a metric under budgets, and whether larger batches reach worse solutions: tables, findings, figures."""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache, partial

import numpy as np

from ...analysis.search import LEARNING_RATE
from ...analysis.budgets import (BaseRates, BestUnder, Budget, BudgetPoint, EarlyEnd, TrialKind, best_under,
                                 both_readings, common_budgets, value_range)
from ...analysis.defaults import Tolerance
from ...analysis.quality import (BATCHES, LEAST_BATCHES, LEAST_TRIALS, LEVEL, POWER, STOPPED, UNFINISHED, Quality,
                                 quality_of)
from ...analysis.studies import are_searched, better, is_measured, show_ends_alone
from ...formatting.numbers import capital, in_brackets, listed, number, percent, span, whole, written
from ...log.schema import SMALLER
from ..document import Details, Figures, Finding, Part, Shown, column_name
from ..drawing import (ASIDE, INK, MARKERS, MOST_MARKS, MUTED, PANEL_TICKS, SHADES, TICKS, Axes, Figure, Look,
                       decimal_ticks, draw_line, draw_panels, ends_of, explain, heading, is_named, is_positive,
                       label_axes, log2_axis, plain, shade, value_axis)
from ..subject import Subject
from ..table import Cell, Table, cell_of, keys_of, metric_name, no_cell
from ..texts import GENERAL, SEARCH, Cells

MARK = "+"              # marks a best value of a trial that ended before the budget was spent
LEVELS = 5                  # of the scale of colours that the legend names
CELL = ((-1, -0.5), (1, -0.5), (1, 0.5), (-1, 0.5), (-1, -0.5))        # a mark twice as wide as high


def parts_of_budgets(subject: Subject, column: str, minimizes: bool, own: bool = False) -> Iterator[Part]:
    """The best of a metric under each budget asked for; ``own``: without any, under each trial's own."""
    budgets = subject.asked.budgets or ((None,) if own else ())
    if found := best_under(subject.studies, column, minimizes, budgets, subject.asked.confidence):
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


def find_budgets(found: BestUnder) -> Iterator[Finding]:
    """For each budget, at which batch the metric is best and how the smallest and the largest fare."""
    for budget, points in zip(found.budgets, found.rows):
        known = [point for point in points if point.trial is not None]
        metric, within = metric_name(found.column), within_budget(budget)
        if not known:
            yield SEARCH.find("budget_unmeasured", metric=metric, within=within)
            continue
        best = min(known, key=lambda point: point.value if found.minimizes else -point.value)
        ends = [f"{number(point.value)} at batch {point.global_batch:,}"
                for point in dict.fromkeys((known[0], known[-1])) if point is not best]
        short = [point.global_batch for point in known if point.best_is_short]
        yield SEARCH.find("budget", metric=metric, within=within, value=best.value, batch=best.global_batch,
                          ends=ends, interval=in_brackets(best.best.low, best.best.high),
                          short=at_batches(short, points) if short else "", how=describe_ends(best_ends(known)))


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
    every = len(batches) > 1 and set(batches) == {point.global_batch for point in points}
    return "at every batch" if every else f"at batch {written(list(batches))}"


def warnings(found: BestUnder) -> tuple[str, ...]:
    """Of the tables: trials that ended early, and batches with more trials than others."""
    points = [point for points in found.rows for point in points]
    short, counts = any(point.best_is_short for point in points), {point.feasible for point in points}
    return (SEARCH.say_if("short_best", short, mark=MARK, ends=describe_ends(best_ends(points))),
            SEARCH.say("uneven", fewest=str(min(counts)), most=str(max(counts))) if len(counts) > 1 else "")


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
    if not (maps := [found for found in found_maps if found is not None and found.best]):
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
    return SEARCH.table("base-rates", sorted(set().union(*best)), {"global_batch": int, **columns},
                        lambda batch: tuple(found.key(at[batch]) for found, at in zip(maps, best) if batch in at),
                        file=f"base-rates-{column_name(maps[0].column)}",
                        notes=[SEARCH.say_if("short_best", short, mark=MARK)], metric=metric_name(maps[0].column))


def best_under_figure(*records: BestUnder | None, title: str = "") -> Figure | None:
    """The best value of a metric at each batch, a line a budget, a panel a record; None where none has a value."""
    if not (found := [one for one in records if one is not None and any(_valued(row) for row in one.rows)]):
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
    if not (maps := [one for one in records if one is not None and np.isfinite(one.value).any()]):
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
    log2_axis(axes, "x", record.batches, most=PANEL_TICKS if len(maps) > 1 else TICKS)
    log2_axis(axes, "y", np.concatenate([one.rate for one in maps]).tolist())
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


# Whether larger batches reach worse solutions

def parts_of_quality(subject: Subject, column: str, minimizes: bool) -> Iterator[Part]:
    """Within the steps that every batch has run, where that decides; else as long as each trial was to run, else within
    the epochs that every batch has run. Then under the budgets that were asked for, their tables in files only."""
    def under(budget: Budget | None) -> Quality | None:
        return quality_of(subject.studies, column, minimizes, budget, subject.asked.confidence)
    epochs, steps = common_budgets(subject.studies)
    tried: list[Quality] = []
    for budget in (steps, None, epochs):
        if (found := under(budget)) is None:               # none has the metric
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
    yield Details(lambda: [quality_table(other, apart=True) for other in others])
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
    yield from (part for one in (*shown, *rest) for part in one.parts if isinstance(part, Figures))


def find_quality(found: Quality) -> Finding:
    metric, within = metric_name(found.column), within_own(found.budget)
    tested, best = math.isfinite(found.p_value), abs(found.best.mean()) if len(found.best) else 0.0
    digits = 2 if found.p_value >= 0.095 else 3
    p = f"= {found.p_value:.{digits}f}" if found.p_value >= 0.001 else "< 0.001"
    unit = found.budget.unit if found.budget else ""
    late = found.late and len(found.late) < len(found.points)
    more = (
        SEARCH.say_if(
            "quality_test", tested, p=p, n=found.n, batches=len(found.batches), penalty=bool(found.penalty),
            better=found.improves, level=f"{LEVEL:g}", equal=not found.detectable > 0, rise=float(found.detectable),
            rise_share=float(found.detectable / best) if best > 0 else None, power=POWER),
        SEARCH.say_if("quality_steps", found.penalty and unit in ("epochs", "examples"), unit=unit),
        SEARCH.say_if("quality_late", found.penalty and late, at=at_batches(found.late, found.points)),
        SEARCH.say_if("quality_left_out", found.left_out and tested, batches=listed(found.left_out),
                      least=LEAST_TRIALS))
    if not tested:
        why, *cure = _why(found)
        return SEARCH.find("quality_unknown", None, (*cure, *more), metric=metric, within=within, why=why)
    values, batches, apart = [float(one) for one in found.best], found.batches, found.apart
    fallen = found.valley is not None and math.isfinite(found.valley.best.high)
    kinds = {"quality_open": not found.penalty and (fallen or apart), "quality_better": found.improves,
             "quality_worse": found.penalty, "quality_same": True}
    kind = next(kind for kind, holds in kinds.items() if holds)
    at = int(found.valley.fitted.argmin()) if found.valley else found.best_at
    return SEARCH.find(kind, None, more, metric=metric, within=within, smallest=batches[0], largest=batches[-1],
                       first=values[0], largest_value=values[-1], best=values[found.best_at],
                       batch=found.worse_from if found.penalty else batches[at], apart=apart, value=values[at],
                       worse=found.worse_by.value, share=found.worse_share,
                       ends=in_brackets(max(found.worse_by.low, 0), found.worse_by.high))


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
                          ), capital(f"{listed(cures, 'or')} would decide it.")
    if found.why == BATCHES:
        return (SEARCH.say("quality_few", batches=LEAST_BATCHES, trials=LEAST_TRIALS,
                           found=len(found.batches) or None, one=len(found.batches) < 2),)
    if found.why == UNFINISHED:
        examples, of_steps = found.workload.train_examples, found.budget is not None and found.budget.unit == "steps"
        amount = found.budget.amount if found.budget else 0.0
        few, many = (amount * batch / (examples or 1) for batch in (found.batches[0], found.batches[-1]))
        return (SEARCH.say("quality_unfinished", smallest=found.batches[0] if of_steps and examples else None, few=few,
                           largest=found.batches[-1], many=many),)
    return ("no trial measured it.",)


def quality_table(found: Quality, apart: bool = False) -> Table:
    best = {found.points[at].global_batch: value for at, value in zip(found.compared, found.best)}
    fitted: dict[int, Cell] = {}
    if found.valley:
        lowest, sign = found.valley.lowest, 1 if found.minimizes else -1
        for at, cost in zip(found.compared, found.valley.fitted.tolist()):
            worse = f"{percent((cost - lowest) / abs(lowest))} worse" if lowest else ""
            fitted[found.points[at].global_batch] = cell_of(sign * cost, worse)
    valley: Cells = {"fitted": lambda point: fitted.get(point.global_batch, math.nan)}

    own = f"-{found.budget}".replace(" ", "-").replace(",", "") if apart else ""
    return SEARCH.table("quality", found.points, {
        "global_batch": lambda point: point.global_batch,
        SEARCH.column("feasible_valued", "feasible"): lambda point: point.feasible,
        SEARCH.column("best_of_all", "best", metric=found.column): best_cell,
        "compared": lambda point: float(best.get(point.global_batch, math.nan)),
        **(valley if found.valley else {}), "learning_rate": lambda point: (
            math.nan if point.trial is None else float(point.study.metaparameter(LEARNING_RATE)[point.trial])),
        "short": lambda point: point.short}, lambda point: point.keys,
        file=f"quality-{column_name(found.column)}{own}", n=found.n, metric=metric_name(found.column),
        within=within_own(found.budget), notes=[f"Intervals: {found.confidence:.0%}."],
        warnings=[SEARCH.say_if("short_best", any(point.best_is_short for point in found.points), mark=MARK,
                                might=True)])


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
                         name=f"best-batch-{column_name(found.column)}", metric=metric, n=found.n,
                         workload=heading(found.workload), confidence=found.confidence, tolerance=str(tolerance))
