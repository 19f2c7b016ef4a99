"""Measured curves beside published ones: figures, tables and sentences.

    view = published_views(curves, "shallue2019")       raises UsageError, naming those there are, for another name
    view.summary, view.tables, view.figures
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from ...analysis.curves import BatchPoint, Curve, CurvePoint
from ...analysis.reference import (B_CRIT_WITHIN, SHARE_COVERED, SHARE_WITHIN, WITHIN_LOG2, Fidelity, NoMatch, Ordering,
                                   PassMark, PublishedCurve, Reference, against, jobs_of, load, ordering_of)
from ...analysis.trials import JobKey
from ...formatting.numbers import counted, exact, in_brackets, listed, number, percent, ratio, span, whole
from ...target import Target
from ..columns import BATCH
from ..drawing import BLUE, MUTED, ORANGE, Axes, Figure, arrows_of, fraction, log2_axis, mark_estimate, power_ticks
from ..file_names import section_name
from ..findings import Finding
from ..scaling.noise import is_bounded, one_ended
from ..search.curve_figures import mark_regimes
from ..table import Cell, Column, Row, Table, TrialKeys, keys_of, steps_cell
from ..view import View

INTERPOLATED = "~"      # marks a batch size between two published ones

THERE = Column("published_steps", "published steps", "steps", "published; between two published batch sizes on a "
               "straight line in logarithms; below: what the value may be off by")
HERE = Column("steps_to_target", "steps to target", "steps", "S: steps done at the first evaluation that meets the "
              "target; the table of steps says how it is estimated")
EQUAL = Column("steps_at_equal_trials", "at equal trials", "steps", "S as the best of as many trials as "
               "were published, extrapolated by how the best falls with the number of trials here")
APART = Column("log2_apart", "apart, log2", "1", "log2 of steps to target, at equal trials, over published steps")
WITHIN = Column("within", f"within {WITHIN_LOG2:g}", "1", f"whether that lies within +-{WITHIN_LOG2:g}")
COVERED = Column("covered", "interval covers", "1", "whether the interval of steps to target and what the published "
                 "value may be off by have steps in common; no where the target was not met")
MARK = Column("mark", "pass mark", "1")
WANTED = Column("wanted", "asked for", "1")
FOUND = Column("found", "found", "1", "share of the batch sizes run far enough; B_crit here over B_crit fitted to the "
               "published steps; ratio of where perfect scaling ends")
PASSED = Column("passed", "passed", "1")


def published_views(curves: Sequence[Curve], name: str, noise_scales: Mapping[JobKey, float] | None = None) -> View:
    """Curves beside the publication ``name``, those of no job in it passed over.

    noise_scales  measured, in examples, for a publication that has such
    Where nothing can be compared, the findings say why.
    """
    reference = load(name)
    found, barred = [], []
    shapes: dict[tuple[str, JobKey], NoMatch] = {}
    for curve in curves:
        for published in reference.curves:
            one = against(curve, published)
            if isinstance(one, Fidelity) and one.points:
                found.append(one)
            elif isinstance(one, Fidelity):
                barred.append(f"{published.label} ({reference.title}) was published for batch sizes "
                              f"{exact(published.batches[0])} to {exact(published.batches[-1])}; none of those here "
                              "lies there.")
            elif isinstance(one, NoMatch):
                barred.append(f"Not compared with {one.label} ({reference.title}): {'; '.join(one.why)}."
                              f"{_would_do(one)}")
                if one.base is not None:
                    shapes.setdefault((one.label, curve.workload), one)
    orderings = [(one, mark) for one in reference.orderings for mark in [ordering_of(curves, one)] if mark]
    said = [text for one in found for text in _said(one, reference)]
    said += [_ordering_said(one, mark, reference) for one, mark in orderings]
    said += _jobs_said(curves, reference, noise_scales or {})
    said += dict.fromkeys(barred)
    if not said:
        has = listed(dict.fromkeys([*(one.label for one in reference.curves), *(job.label for job in reference.jobs)]))
        said.append(f"{reference.title}: nothing to compare with; it has {has}.")
    tables = [table for one in found for table in _tables(one, reference)]
    if orderings and not found:
        tables.append(_marks_table(f"published-{name}-marks", reference, [mark for _, mark in orderings], ()))
    figures = [*(_figure(one.curve, one.published, reference) for one in found),
               *(_shape_figure(one.curve, one.published, reference, one.base) for one in shapes.values() if one.base)]
    return View(tuple(map(Finding, said)), tuple(tables), find=lambda: figures)


def _would_do(one: NoMatch) -> str:
    """What would make a comparison of a NoMatch that only another target bars."""
    if one.base is None:
        return ""
    target = one.published.target
    return (f" Trials that went on to {target} would do, with --target '{target}'; a figure has the shapes of both "
            f"alone, each over its own steps at batch {one.base:,}.")


def _named(kind: str, reference: Reference, curve: Curve) -> str:
    return f"{kind}-{reference.name}-{section_name(curve.workload, curve.target)}"


def _said(found: Fidelity, reference: Reference) -> list[str]:
    published = found.published
    within, told = found.counted("within")
    said = []
    if told:
        steps, b_crit, intervals = found.marks
        text = (f"Against {published.label} ({reference.title}): steps lie within {WITHIN_LOG2:g} log2 of the "
                f"published ones at {within} of {counted(told, 'batch size')} ({percent(within / told)}; "
                f"{percent(SHARE_WITHIN)} asked for)")
        if b_crit.passed is not None:
            text += (f"; B_crit is {_found(b_crit)} times the one fitted to them "
                     f"({'within' if b_crit.passed else 'beyond'} a factor {B_CRIT_WITHIN:g})")
        covered, known = found.counted("covered")
        if known:
            text += f"; {covered} of {counted(known, 'interval')} cover them ({percent(SHARE_COVERED)} asked for)"
        said.append(text + f": {_verdict(found.marks)}.")
    else:
        said.append(f"Against {published.label} ({reference.title}): no batch size was run far enough.")
    if found.remarks:
        said.append(f"They differ otherwise, too: {'; '.join(found.remarks)}.")
    return said


def _found(mark: PassMark) -> str:
    return f"{mark.bound} {ratio(mark.found)}".strip()


def _verdict(marks: Sequence[PassMark]) -> str:
    failed = [mark for mark in marks if mark.passed is False]
    open_ = [mark for mark in marks if mark.passed is None]
    if failed:
        return f"{listed(_NAMES[mark.name] for mark in failed)} {'does' if len(failed) == 1 else 'do'} not pass"
    if open_:
        return f"what can be judged passes; {listed(_NAMES[mark.name] for mark in open_)} cannot be judged"
    return "all pass"


_NAMES = {"steps": "the curve", "b_crit": "B_crit", "intervals": "the coverage"}


def _ordering_said(one: Ordering, mark: PassMark, reference: Reference) -> str:
    asked = "at least" if mark.passed else "short of"
    return (f"{one.label} ({reference.title}): published, perfect scaling ends at batch {exact(one.perfect[0])} and "
            f"{exact(one.perfect[1])}. Here the second end is {ratio(mark.found)} times the first, {asked} the factor "
            f"of {exact(one.at_least)} asked for.")


def _jobs_said(curves: Sequence[Curve], reference: Reference, noise_scales: Mapping[JobKey, float]) -> list[str]:
    """Published critical batch sizes on the same data, beside the measured one."""
    said = []
    for curve in curves:
        for job in jobs_of(reference, curve.workload):
            text = (f"{reference.title} gives for {job.label}, on a model of its own and averaged over training, a "
                    f"critical batch of {_range(job.b_crit)} and a noise scale of {_range(job.noise_scale)} {job.unit}")
            fit = curve.regimes.fit
            here = []
            if job.unit == "examples" and fit is not None and is_bounded(fit.b_crit):
                ends = in_brackets(fit.b_crit.low, fit.b_crit.high)
                here.append(f"B_crit {one_ended(fit.b_crit) or number(fit.b_crit.value) + ends} to {curve.target}")
            if job.unit == "examples" and noise_scales.get(curve.workload, math.nan) > 0:
                here.append(f"a noise scale of {number(noise_scales[curve.workload])}")
            said.append(text + (f"; here {curve.workload.dataset}/{curve.workload.model} has {listed(here)}" if here
                                else "") + ".")
    return list(dict.fromkeys(said))


def _range(values: Iterable[float]) -> str:
    return " to ".join(map(exact, values))


def _tables(found: Fidelity, reference: Reference) -> tuple[Table, Table]:
    published, name, target = found.published, _named("published", reference, found.curve), found.curve.target
    unequal = any(point.equal is not point.measured for point in found.points)
    rows = tuple(Row((
        Cell(f"{INTERPOLATED * point.interpolated}{point.global_batch:,}", point.global_batch),
        Cell(number(point.published), point.published, point.low, point.high, span(point.low, point.high)),
        *(steps_cell(steps, whole) for steps in (point.measured, point.equal)[:1 + unequal]),
        _apart(point.log2_apart), _yes(point.within), _yes(point.covered)),
        keys_of_point(point.point), ()) for point in found.points)
    title = f"Beside the published curve: {published.label}, {published.target}"
    columns = (BATCH, THERE, HERE, *[EQUAL] * unequal, APART, WITHIN, COVERED)
    return (Table(name, title, columns, rows, _notes(found, reference), target),
            _marks_table(f"{name}-marks", reference, found.marks, found.remarks, target))


def _marks_table(name: str, reference: Reference, marks: Iterable[PassMark], remarks: Sequence[str],
                 target: Target | None = None) -> Table:
    rows = []
    for mark in marks:
        said, wanted, found = _mark_texts(mark)
        rows.append(Row((Cell(said, said), Cell(wanted, mark.wanted), Cell(found, mark.found), _yes(mark.passed)),
                        (), ()))
    notes = (f"They differ otherwise, too: {'; '.join(remarks)}.",) if remarks else ()
    return Table(name, f"Fidelity to {reference.title}", (MARK, WANTED, FOUND, PASSED), tuple(rows), notes, target)


def _mark_texts(mark: PassMark) -> tuple[str, str, str]:
    """(what it is, what is asked, what was found) of a pass mark."""
    shares = {"steps": f"steps within {WITHIN_LOG2:g} log2", "intervals": "intervals that cover"}
    if mark.name in shares:
        found = "cannot be judged" if mark.passed is None else percent(mark.found)
        return shares[mark.name], f"{percent(mark.wanted)} of batches", found
    if mark.name == "b_crit":
        found = "cannot be judged" if mark.passed is None else _found(mark)
        return "B_crit over published", f"1/{mark.wanted:g} to {mark.wanted:g}", found
    return f"end of perfect scaling: {mark.name}", f"{mark.wanted:g} or more", ratio(mark.found)


def _notes(found: Fidelity, reference: Reference) -> tuple[str, ...]:
    published = found.published
    estimated = f"the fewest steps of {published.trials} finite trials" if published.trials else reference.estimate
    notes = [f"Published: {reference.source}{f' ({published.file})' if published.file else ''}; {reference.obtained}. "
             f"Each is {estimated}."]
    if any(point.interpolated for point in found.points):
        notes.append(f"{INTERPOLATED} between two published batch sizes, on a straight line in logarithms.")
    if found.beyond:
        notes.append(f"Batch {listed(f'{batch:,}' for batch in found.beyond)}: outside the published ones.")
    if any(point.within is not None and point.covered is None and math.isinf(point.measured.high)
           for point in found.points):
        notes.append("interval covers, n/a: the interval has no upper end, so it cannot show that it covers the "
                     "published steps.")
    if any(point.within is None for point in found.points):
        notes.append("n/a: the target was not met, nor was it run for long enough.")
    fewer = {point.point.trials for point in found.points if isinstance(point.point, CurvePoint)}
    if published.trials and fewer:
        low, high = min(fewer), max(fewer)
        here = exact(low) if low == high else f"{exact(low)} to {exact(high)}"
        notes.append(f"Here the steps are of {here} finite trials at each batch size"
                     + (f"; at equal trials, they are what the best of {published.trials} would need."
                        if (low, high) != (published.trials,) * 2 else "."))
    return tuple(notes)


def _apart(log2: float) -> Cell:
    return Cell(f"{log2:+.2f}" if math.isfinite(log2) else "not met" if math.isinf(log2) else "n/a", log2)


def _yes(told: bool | None) -> Cell:
    return Cell("n/a" if told is None else "yes" if told else "no", None if told is None else int(told))


def keys_of_point(point: CurvePoint | BatchPoint) -> TrialKeys:
    """The trial behind a point of a curve, or those of its cell."""
    if isinstance(point, CurvePoint):
        return () if point.best is None else (point.study.key(point.best),)
    return keys_of(point.cell)


def _figure(curve: Curve, published: PublishedCurve, reference: Reference) -> Figure:
    return Figure(
        _named("published", reference, curve),
        f"Steps to {curve.target} beside the published ones\n{published.label}",
        f"Steps to target against the global batch, measured and published, both axes in powers of 2. "
        f"{_band_said(curve, published)} Along the dashed line the batch doubles and the steps halve; vertical lines "
        "are the end of perfect scaling here and the maximum useful batch here.",
        f"published: {reference.obtained}", reference.source, _keys(curve),
        lambda axes: _draw(axes, curve, published, 1.0, 1.0, "steps to target S"))


def _shape_figure(curve: Curve, published: PublishedCurve, reference: Reference, base: int) -> Figure:
    """Two curves to different targets, each over its own steps at the smallest batch of both."""
    here = next(point.steps.value for point in curve.points if point.global_batch == base)
    there, *_ = published.at(base) or (math.nan,)
    return Figure(
        _named("shape", reference, curve),
        f"Another target than published: shapes alone\n{published.label}",
        f"Steps to {curve.target} here and to {published.target} as published, each over its own steps at batch "
        f"{base:,}, against the global batch, both axes in powers of 2: shapes, no comparison of steps. "
        f"{_band_said(curve, published)}",
        f"S(B) / S({base:,}); published: {reference.obtained}", reference.source, _keys(curve),
        lambda axes: _draw(axes, curve, published, 1 / here, 1 / there, f"steps / steps at B = {base:,}"))


def _band_said(curve: Curve, published: PublishedCurve) -> str:
    band = ("the spread of their mean and the spacing of their evaluations" if not published.trials else
            "how well the published plot can be read")
    return f"The band is {band}; bars are {curve.confidence:.0%} intervals."


def _shown(curve: Curve) -> list[CurvePoint | BatchPoint]:
    return [point for point in curve.points if point.steps.met or point.steps.beyond > 0]


def _keys(curve: Curve) -> TrialKeys:
    return tuple(dict.fromkeys(key for point in _shown(curve) for key in keys_of_point(point)))


def _draw(axes: Axes, curve: Curve, published: PublishedCurve, here: float, there: float, label: str) -> None:
    """Both curves, the steps of each times its factor."""
    points = [(point.global_batch, point.steps.scaled(here)) for point in _shown(curve)]
    low, high, steps = (there * values for values in (published.low, published.high, published.steps))
    target = "" if here == there else f", to {published.target}"
    log2_axis(axes, "x", [*published.batches, *(batch for batch, _ in points)])
    first, last = axes.get_xlim()
    power_ticks(axes.xaxis, max(first, 1), last)                # no batch is smaller
    log2_axis(axes, "y", [*low, *high, *(value for _, one in points for value in (one.value, one.beyond))],
              [end for _, one in points for end in (one.low, one.high)],
              arrows=[arrow for _, one in points for arrow in arrows_of(one)])
    if here != there:
        axes.yaxis.set_major_formatter(fraction)
    met = [(batch, one.value) for batch, one in points if one.met]
    if here == there and met:
        mark_regimes(axes, curve.regimes, intervals=False)
        (first, most), last = met[0], met[-1][0]
        axes.plot([first, last], [most, most * first / last], "--", color=MUTED, linewidth=1.1, label="perfect scaling")
    axes.fill_between(published.batches, low, high, color=ORANGE, alpha=0.25, linewidth=0,
                      label="how far they may be off")
    axes.plot(published.batches, steps, "s-", color=ORANGE, linewidth=1, markersize=3.5, markeredgewidth=0,
              label=f"published: {published.label}{target}")
    axes.plot([batch for batch, _ in met], [value for _, value in met], color=BLUE, linewidth=1)
    for batch, one in points:
        mark_estimate(axes, batch, one, BLUE, "o", "here" if here == there else f"here, to {curve.target}")
    axes.set_xlabel("global batch B (examples)")
    axes.set_ylabel(label)
