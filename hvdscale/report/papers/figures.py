"""Chapters beside published results, and all figures of a paper that logs have the data for.

Curves are computed workload by workload, so that a study's columns are read while they are kept.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from string import ascii_lowercase
from typing import Any, NamedTuple

from ...analysis.search import first_feasible
from ...analysis.budgets import Budget, best_under
from ...analysis.curves import Curve, CurvePoint, curve_of
from ...analysis.noise import best_known
from ...analysis.reference import (B_CRIT_WITHIN, SHARE_COVERED, SHARE_WITHIN, WITHIN_LOG2, Fidelity, NoMatch,
                                   PassMark, PublishedCurve, Reference, against, ordering_of)
from ...analysis.report_data import Options
from ...analysis.steps import RunCell
from ...analysis.studies import Study, group_by
from ...analysis.trials import JobKey
from ...formatting.numbers import exact, in_brackets, number, percent, ratio, span, whole
from ...formatting.screen import Tell, quiet
from ...plan.settings import tomllib
from ...target import Target
from ..document import Figures, Finding, Part, section_name
from ..drawing import (BLUE, MUTED, ORANGE, Axes, Figure, arrows, draw_line, ends_of, fraction, label_axes, log2_axis,
                       mark_estimate, plain, power_ticks)
from ..subject import PAPER, Whole
from ..table import Cell, Table, as_shown, keys_of, steps_cell
from ..texts import PAPERS, SOURCES, Cells
from ..views.batches import is_bounded, one_ended
from ..views.budgets import best_under_figure
from ..views.curves import (NORMALISED, STEPS, CurvePanel, best_panels, budgets_figure, curve_panels, mark_regimes,
                            scatter, second, split_figure)

INTERPOLATED = "~"      # marks a batch size between two published ones
# kinds of figures, beside STEPS and NORMALISED
SPLIT, BEST, TRIALS, BUDGET_TRIALS, BEST_UNDER = "split", "best", "trials", "budget-trials", "best-under"
DATA: dict[str, Any] = tomllib.loads((resources.files(__package__) / f"{PAPER}.toml").read_text(encoding="utf-8"))
TRIALS_TAKEN = 100          # of each study, unless shallue2019.toml says otherwise


class Line(NamedTuple):
    """One curve: a workload and its target, and what it is called in its panel."""

    workload: str
    target: str
    label: str = ""


class Panel(NamedTuple):
    """The curves of one panel; ``ordered``: easy to strict, small to large; ``budgets``: of steps and of epochs."""

    title: str
    lines: tuple[Line, ...]
    ordered: bool = False
    budgets: tuple[Sequence[float], Sequence[float]] = ((), ())


class Sheet(NamedTuple):
    """One figure of the paper. ``batch``, ``metaparameter``: what its kind asks for."""

    number: str
    kind: str
    title: str
    panels: tuple[Panel, ...]
    batch: int = 0
    metaparameter: str = ""

    @property
    def apart(self) -> bool:
        """Whether its panels are figures of their own, a, b, ...: curves of several names need each a legend."""
        return self.kind == BEST_UNDER or self.kind != TRIALS and max(len(panel.lines) for panel in self.panels) > 1


def _read_sheets() -> tuple[Sheet, ...]:
    """The figures of shallue2019.toml; ``like``: one has the panels of another, by its number."""
    sheets: dict[str, Sheet] = {}
    for entry in DATA["figure"]:
        like, panels = entry.pop("like", None), entry.pop("panels", ())
        for panel in panels:
            of = panel.pop("of", "{}")
            panel["lines"] = tuple(Line(*[*of.format(line).split(), label]) for line, label in panel["lines"].items())
        sheets[entry["number"]] = Sheet(
            **entry, panels=sheets[like].panels if like else tuple(Panel(**panel) for panel in panels))
    return tuple(sheets.values())


FIGURES = _read_sheets()
Drawn = Sequence[tuple[Panel, Sequence[tuple[Line, Curve]]]]        # panels that have curves, and whose these are


def names_of(workload: JobKey) -> tuple[str, ...]:
    """The archive's names that an analysis.trials.JobKey goes by, the most its own first."""
    model, optimizer = (DATA["same"].get(name, name) for name in (workload.model, workload.optimizer))
    datasets, sizes = [workload.dataset], DATA["sizes"].get(workload.dataset, ())
    if workload.train_examples in sizes:
        subset = f"{workload.dataset}_{workload.train_examples}"
        datasets = [*(datasets if workload.train_examples == max(sizes) else ()), subset]
    datasets = [f"{DATA['folders'][one]}/{one}" if one in DATA["folders"] else one for one in datasets]
    if datasets[0] in ("mnist", "fashion_mnist"):
        datasets.append(f"solution_quality/{datasets[0]}")
    return tuple(f"{dataset}/{model}/{optimizer}" for dataset in datasets)


def chapters(whole: Whole) -> Iterator[tuple[str, Iterable[Part], str]]:
    """The title and parts of each publication and paper that was asked for."""
    curves = [*(subject.curve for subject in whole.subjects),
              *(section.batches for section in whole.repeats if section.batches)]
    best = {workload: best_known([one for one in subject.noise if 0 < one[1].whole.value < math.inf])
            for workload, subject in whole.first.items()}
    noise = {workload: one[1].whole.value for workload, one in best.items() if one}
    for name in whole.asked.compare:
        yield f"Beside published results: {name}", beside_published(curves, name, noise), ""
    if whole.asked.paper:
        yield f"The figures of {PAPER}", figures(whole.studies, whole.asked, whole.tell), ""


def target_of(workload: JobKey) -> tuple[Target, ...]:
    """The first target that the paper has for a workload; () where it has none."""
    found = [line.target for sheet in FIGURES for panel in sheet.panels for line in panel.lines
             if line.workload in names_of(workload)]
    return tuple(map(Target.parse, found[:1]))


def figures(studies: Sequence[Study], options: Options = Options(), tell: Tell = quiet) -> Iterator[Part]:
    """Every figure of the paper that these studies have the data for, in its order, and those that they lack."""
    found, figures = _Found(studies, options, tell), []
    for at, sheet in enumerate(FIGURES, 1):
        tell(f"figure {sheet.number} of the paper, {at} of {len(FIGURES)}")
        figures += [replace(figure, name=f"{PAPER}-figure-{label}", title=f"Figure {label}. {figure.title}",
                            source=f"{SOURCES['SHALLUE']}, figure {label}") for label, figure in found.figures(sheet)]
    for label, names in found.missing.items():
        yield PAPERS.find("figure_missing", number=label, names=list(names))
    for name, (n, wanted) in sorted(found.short.items()):
        yield PAPERS.find("few_trials", name=name, n=n, wanted=wanted)
    for label in found.empty:
        yield PAPERS.find("figure_empty", number=label)
    yield Figures(lambda: figures)


class _Found:
    """The curves of the paper that studies have, by line, and the names of those that they lack."""

    def __init__(self, studies: Sequence[Study], options: Options, tell: Tell) -> None:
        self.options, self.tell = options, tell
        self.studies: dict[str, list[Study]] = {}           # by the paper's names
        most: dict[str, tuple[int, int, JobKey]] = {}       # of several that go by one name, that with the most trials
        for workload, group in group_by(studies, lambda study: study.workload).items():
            trials = sum(int(study.feasible.sum()) for study in group)
            for place, name in enumerate(names_of(workload)):
                key = place, -trials, workload
                if name not in most or key < most[name]:
                    most[name], self.studies[name] = key, group
        self.missing: dict[str, dict[str, None]] = {}       # of a figure, by its number: names
        self.short: dict[str, tuple[int, int]] = {}     # by workload: (trials compared, trials that the paper takes)
        self.empty: list[str] = []      # numbers of figures whose workloads are there
        lines = {(line.workload, line.target) for sheet in FIGURES for panel in sheet.panels for line in panel.lines}
        self.curves = {line: self._curve(*line, f"curve {at} of {len(lines)}")
                       for at, line in enumerate(sorted(lines), 1)}

    def _curve(self, name: str, goal: str, which: str) -> Curve | None:
        wanted, target = DATA["trials"].get(name, TRIALS_TAKEN), Target.parse(goal)
        studies = [first_feasible(study, wanted) for study in self.studies.get(name, ())]
        if not studies or any(target.column not in study.evaluations.columns for study in studies):
            return None
        self.tell(f"{name}: {target}, {which} for the figures of the paper")
        curve = curve_of(studies, target, self.options)
        if curve is not None and curve.n is not None and curve.n < wanted:
            self.short[name] = curve.n, wanted
        return curve

    def figures(self, sheet: Sheet) -> Iterator[tuple[str, Figure]]:
        """What can be shown of one figure of the paper, with its number; panels of several curves are each a figure."""
        panels: dict[str, Any] = {}     # by the number of their figure
        for letter, panel in zip(ascii_lowercase, sheet.panels):
            lines = []
            for line in panel.lines:
                if (curve := self.curves[line.workload, line.target]) is None:
                    self.missing.setdefault(sheet.number, {})[line.workload] = None
                else:
                    lines.append((line, curve))
            if lines:
                panels.setdefault(sheet.number + letter * sheet.apart, []).append((panel, lines))
        for label, shown in panels.items():
            if (figure := self._draw(sheet, shown)) is None:
                self.empty.append(label)
            else:
                yield label, figure

    def _draw(self, sheet: Sheet, panels: Drawn) -> Figure | None:
        if sheet.kind in (STEPS, NORMALISED):
            shown = []
            for panel, lines in panels:
                targets = {str(curve.target) for _, curve in lines}
                title = f"{panel.title}, {min(targets)}" if len(panels) == 1 == len(targets) else panel.title
                shown.append(CurvePanel(title, [curve for _, curve in lines],
                                        [line.label or str(curve.target) for line, curve in lines], panel.ordered))
            return curve_panels(shown, sheet.title, kind=sheet.kind)
        if sheet.kind == BEST:
            return best_panels([(plain(panel.title), curve) for panel, lines in panels for _, curve in lines],
                               sheet.metaparameter, title=sheet.title)
        [(panel, lines)] = panels
        (line, curve), (steps, epochs) = lines[0], panel.budgets
        target = curve.target
        if sheet.kind == TRIALS:
            found = [(line.label, point.study, curve.target, steps[0]) for line, curve in lines
                     for point in curve.searched if point.global_batch == sheet.batch]
            return scatter(found, second(curve),
                           title=f"{sheet.title}\nB = {sheet.batch:,}, {steps[0]:,} steps, {target}")
        if sheet.kind == SPLIT:
            return split_figure(curve, sheet.metaparameter, self.options, f"{sheet.title}\n{panel.title}, {target}")
        if sheet.kind == BUDGET_TRIALS:
            return budgets_figure(curve, steps=steps[0], epochs=epochs[0],
                                  title=f"{sheet.title}: {panel.title}, {target}")
        budgets = [[Budget(amount, "steps") for amount in steps]]
        if curve.workload.train_examples:
            budgets.append([Budget(amount, "epochs") for amount in epochs])
        return best_under_figure(*(best_under(self.studies[line.workload], target.column, target.minimizes, some,
                                              self.options.confidence) for some in budgets),
                                 title=f"{sheet.title}\n{panel.title}")


# Measured curves beside published ones: findings, tables, figures

def beside_published(curves: Sequence[Curve], name: str, noise_scales: Mapping[JobKey, float] | None = None
                     ) -> Iterator[Part]:
    """Curves beside the publication ``name``, without those of no job in it; findings say why none is compared."""
    reference = Reference(name)
    found, barred = [], []
    shapes: dict[tuple[str, JobKey], NoMatch] = {}
    for curve in curves:
        for published in reference.curves:
            one = against(curve, published)
            if isinstance(one, Fidelity) and one.points:
                found.append(one)
            elif isinstance(one, Fidelity):
                barred.append(PAPERS.find("outside", label=published.label, title=reference.title,
                                          first=published.batches[0], last=published.batches[-1]))
            elif isinstance(one, NoMatch):
                barred.append(PAPERS.find("barred", label=published.label, title=reference.title,
                                          why="; ".join(one.why), target=published.target, base=one.base))
                if one.base is not None:
                    shapes.setdefault((published.label, curve.workload), one)
    orderings = [(one, mark) for one in reference.orderings if (mark := ordering_of(curves, one))]
    said = [*(text for one in found for text in _find_fidelity(one, reference)),
            *(PAPERS.find("ordering", label=one.label, title=reference.title, first=one.perfect[0],
                          second=one.perfect[1], found=mark.found, passed=bool(mark.passed), least=one.at_least)
              for one, mark in orderings),
            *_find_jobs(curves, reference, noise_scales or {}), *{one.said: one for one in barred}.values()]
    if not said:
        has = dict.fromkeys([*(one.label for one in reference.curves), *(job.label for job in reference.jobs)])
        said.append(PAPERS.find("nothing", title=reference.title, has=list(has)))
    yield from said
    yield from (table for one in found for table in _tables(one, reference))
    if orderings and not found:
        yield _marks_table(f"published-{name}-marks", reference, [mark for _, mark in orderings], ())
    yield Figures(lambda: [*(_figure("published", one.curve, one.published, reference) for one in found), *(
        _figure("shape", one.curve, one.published, reference, one.base) for one in shapes.values() if one.base)])


def _find_fidelity(found: Fidelity, reference: Reference) -> Iterator[Finding]:
    label, title = found.published.label, reference.title
    within, told = found.counted("within")
    if told:
        (_, b_crit, _), (covered, known) = found.marks, found.counted("covered")
        more = [PAPERS.say("against_steps", factor=f"{WITHIN_LOG2:g}", within=within, told=told, share=within / told,
                           asked=SHARE_WITHIN),
                PAPERS.say_if("against_b_crit", b_crit.passed is not None, b_crit=_found_of(b_crit),
                              passed=bool(b_crit.passed), factor=f"{B_CRIT_WITHIN:g}"),
                PAPERS.say_if("against_intervals", known, covered=covered, known=known, asked=SHARE_COVERED)]
        failed, unknown = ([PAPERS.words("mark")[mark.name] for mark in found.marks if mark.passed is passed]
                           for passed in (False, None))
        yield PAPERS.find("against", None, more, label=label, title=title,
                          verdict=PAPERS.say("verdict", failed=failed, open=unknown))
    else:
        yield PAPERS.find("too_short", label=label, title=title)
    if found.remarks:
        yield PAPERS.find("remarks", remarks="; ".join(found.remarks))


def _find_jobs(curves: Sequence[Curve], reference: Reference, noise_scales: Mapping[JobKey, float]
               ) -> Iterable[Finding]:
    said: dict[str, Finding] = {}
    for curve in curves:
        for job in [job for job in reference.jobs if job.dataset == curve.workload.dataset]:
            fit, here = curve.regimes.fit, []
            if job.unit == "examples" and fit is not None and is_bounded(fit.b_crit):
                ends = in_brackets(fit.b_crit.low, fit.b_crit.high)
                here.append(f"B_crit {one_ended(fit.b_crit) or number(fit.b_crit.value) + ends} to {curve.target}")
            if job.unit == "examples" and noise_scales.get(curve.workload, math.nan) > 0:
                here.append(f"a noise scale of {number(noise_scales[curve.workload])}")
            one = PAPERS.find("job", title=reference.title, label=job.label, unit=job.unit, here=here,
                              b_crit=" to ".join(map(exact, job.b_crit)),
                              noise=" to ".join(map(exact, job.noise_scale)),
                              workload=f"{curve.workload.dataset}/{curve.workload.model}")
            said.setdefault(one.said, one)
    return said.values()


def _tables(found: Fidelity, reference: Reference) -> tuple[Table, Table]:
    published, target = found.published, found.curve.target
    name = f"published-{reference.name}-{section_name(found.curve.workload, target)}"
    equal: Cells = {"steps_at_equal_trials": lambda point: steps_cell(point.equal, whole)}
    unequal = any(point.equal is not point.measured for point in found.points)
    return PAPERS.table("published", found.points, {
        "global_batch": lambda point: Cell(f"{INTERPOLATED * point.interpolated}{point.global_batch:,}",
                                           point.global_batch),
        "published_steps": lambda point: Cell(number(point.published), point.published, point.low, point.high,
                                              span(point.low, point.high)),
        "steps_to_target": lambda point: steps_cell(point.measured, whole), **(equal if unequal else {}),
        "log2_apart": lambda point: Cell(f"{point.log2_apart:+.2f}" if math.isfinite(point.log2_apart) else
                                         "not met" if math.isinf(point.log2_apart) else "n/a", point.log2_apart),
        "within": lambda point: _yes(point.within), "covered": lambda point: _yes(point.covered)},
        lambda point: point.point.keys, file=name, notes=_notes(found, reference), target=target,
        label=published.label, what=published.target, factor=f"{WITHIN_LOG2:g}"), _marks_table(
            f"{name}-marks", reference, found.marks, found.remarks, target)


def _marks_table(name: str, reference: Reference, marks: Iterable[PassMark], remarks: Sequence[str],
                 target: Target | None = None) -> Table:
    shares = {"steps": f"steps within {WITHIN_LOG2:g} log2", "intervals": "intervals that cover"}
    rows = []                   # a mark: what it is, what is asked
    for mark in marks:
        texts = f"end of perfect scaling: {mark.name}", f"{mark.wanted:g} or more"
        if mark.name in shares:
            texts = shares[mark.name], f"{percent(mark.wanted)} of batches"
        elif mark.name == "b_crit":
            texts = "B_crit over published", f"1/{mark.wanted:g} to {mark.wanted:g}"
        rows.append((mark, *texts))
    return PAPERS.table("published-marks", rows, {
        "mark": lambda row: Cell(row[1], row[1]), "wanted": lambda row: Cell(row[2], row[0].wanted),
        "found": lambda row: Cell(_found_of(row[0]), row[0].found), "passed": lambda row: _yes(row[0].passed)},
        file=name, notes=[PAPERS.say_if("remarks", remarks, remarks="; ".join(remarks))], target=target,
        title=reference.title)


def _found_of(mark: PassMark) -> str:
    if mark.name in ("steps", "intervals", "b_crit") and mark.passed is None:
        return "cannot be judged"
    shown = percent(mark.found) if mark.name in ("steps", "intervals") else ratio(mark.found)
    return f"{mark.bound if mark.name == 'b_crit' else ''} {shown}".strip()


def _notes(found: Fidelity, reference: Reference) -> tuple[str, ...]:
    published, points = found.published, found.points
    uncovered = any(point.within is not None and point.covered is None and math.isinf(point.measured.high)
                    for point in points)
    trials = {point.point.trials for point in points if isinstance(point.point, CurvePoint)} if published.trials else ()
    ends = list(dict.fromkeys((min(trials), max(trials)))) if trials else []
    return (PAPERS.say("published", source=reference.source, file=published.file, obtained=reference.obtained,
                       trials=published.trials or None, estimate=reference.estimate),
            PAPERS.say_if("interpolated", any(point.interpolated for point in points), mark=INTERPOLATED),
            PAPERS.say_if("beyond", found.beyond, batches=found.beyond), PAPERS.say_if("no_cover", uncovered),
            PAPERS.say_if("not_run", any(point.within is None for point in points)),
            PAPERS.say_if("trials_here", ends, here=" to ".join(map(exact, ends)),
                          trials=published.trials if ends != [published.trials] else None))


def _yes(told: bool | None) -> Cell:
    return Cell({None: "n/a", True: "yes", False: "no"}[told], None if told is None else int(told))


def _figure(kind: str, curve: Curve, published: PublishedCurve, reference: Reference, base: int = 0) -> Figure:
    """Two curves; base: to different targets, each over its own steps at this, the smallest batch of both."""
    here, there, label = 1.0, 1.0, "steps to target S"
    if base:
        here = 1 / next(point.steps.value for point in curve.points if point.global_batch == base)
        there, label = 1 / (published.at(base) or (math.nan,))[0], f"steps / steps at B = {base:,}"
    band = PAPERS.say("band", plot=bool(published.trials), confidence=curve.confidence)
    return PAPERS.figure(kind, lambda axes: _draw(axes, curve, published, here, there, label), keys_of(_shown(curve)),
                         name=f"{kind}-{reference.name}-{section_name(curve.workload, curve.target)}",
                         target=curve.target, label=published.label, there=published.target, band=band,
                         obtained=reference.obtained, source=reference.source, base=base)


def _shown(curve: Curve) -> list[CurvePoint | RunCell]:
    return [point for point in curve.points if point.steps.met or point.steps.beyond > 0]


def _draw(axes: Axes, curve: Curve, published: PublishedCurve, here: float, there: float, label: str) -> None:
    points = [(point.global_batch, as_shown(point.steps).scaled(here)) for point in _shown(curve)]
    low, high, steps = (there * values for values in (published.low, published.high, published.steps))
    target = "" if here == there else f", to {published.target}"
    log2_axis(axes, "x", [*published.batches, *(batch for batch, _ in points)])
    first, last = axes.get_xlim()
    power_ticks(axes.xaxis, max(first, 1), last)                # no batch is smaller
    log2_axis(axes, "y", [*low, *high, *(value for _, one in points for value in (one.value, one.beyond))],
              ends_of(one for _, one in points), arrows=arrows(one for _, one in points))
    if here != there:
        axes.yaxis.set_major_formatter(fraction)
    met = [(batch, one.value) for batch, one in points if one.met]
    if here == there and met:
        mark_regimes(axes, curve.regimes, intervals=False)
        (first, most), last = met[0], met[-1][0]
        draw_line(axes, ((first, most), (last, most * first / last)), MUTED, "--", 1.1, label="perfect scaling")
    axes.fill_between(published.batches, low, high, color=ORANGE, alpha=0.25, linewidth=0,
                      label="how far they may be off")
    axes.plot(published.batches, steps, "s-", color=ORANGE, linewidth=1, markersize=3.5, markeredgewidth=0,
              label=f"published: {published.label}{target}")
    draw_line(axes, met, BLUE)
    for batch, one in points:
        mark_estimate(axes, batch, one, BLUE, "o", "here" if here == there else f"here, to {curve.target}")
    label_axes(axes, "global batch B (examples)", label)
