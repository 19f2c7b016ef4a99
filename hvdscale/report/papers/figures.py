"""Chapters beside published results, and all figures of a paper that logs have the data for.

Curves are computed workload by workload, so that a study's columns are read while they are kept.
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from ...analysis.best_points import first_feasible
from ...analysis.budgets import Budget, best_under
from ...analysis.curves import Curve, curve_of
from ...analysis.grouping import group_by
from ...analysis.noise import best_known
from ...analysis.report_data import Options
from ...analysis.studies import Study
from ...analysis.trials import JobKey
from ...formatting.screen import Tell, quiet
from ...plan.settings import tomllib
from ...target import Target
from ..document import Figures, Part
from ..drawing import Figure
from ..request import PAPER
from ..subject import Whole
from ..texts import PAPERS, SOURCES
from ..views.budgets import best_under_figure
from ..views.curves import NORMALISED, STEPS, CurvePanel, curve_panels, plain
from ..views.study_figures import best_panels, budgets_figure, scatter, second, split_figure
from .compare import beside_published

LETTERS = "abcdefghijklmnopqrstuvwxyz"
# kinds of figures, beside STEPS and NORMALISED
SPLIT, BEST, TRIALS, BUDGET_TRIALS, BEST_UNDER = "split", "best", "trials", "budget-trials", "best-under"
TRIALS_TAKEN = 100          # feasible ones, the first by id, of each study ...
TAKEN = {"lm1b/lstm/nesterov_momentum": 50, "common_crawl/transformer_base/nesterov_momentum": 50,
         "lm1b/transformer_shallow/sgd": 50}                    # ... but of these
SAME_MODEL = {"simple_cnn": "simple_cnn_base", "transformer": "transformer_base"}
SAME_OPTIMIZER = {"nesterov": "nesterov_momentum"}
SUBSETS = {"mnist": (6875, 13750, 27500, 55000)}
FOLDERS = {"imagenet_half_images": "imagenet_subsets", "imagenet_half_classes": "imagenet_subsets",
           **{f"mnist_{size}": "mnist_subsets" for size in SUBSETS["mnist"]}}


@dataclass(frozen=True)
class Line:
    """One curve: a workload and its target, and what it is called in its panel."""

    workload: str
    target: str
    label: str = ""


@dataclass(frozen=True)
class Panel:
    """The curves of one panel; ``ordered``: easy to strict, small to large; ``budgets``: of steps and of epochs."""

    title: str
    lines: tuple[Line, ...]
    ordered: bool = False
    budgets: tuple[Sequence[float], Sequence[float]] = ((), ())


@dataclass(frozen=True)
class Sheet:
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
        return self.kind == BEST_UNDER or max(len(panel.lines) for panel in self.panels) > 1 and self.kind != TRIALS


def _read_sheets() -> tuple[Sheet, ...]:
    """The figures of shallue2019.toml; ``like``: one has the panels of another, by its number."""
    text = (resources.files(__package__) / f"{PAPER}.toml").read_text(encoding="utf-8")
    sheets: dict[str, Sheet] = {}
    for entry in tomllib.loads(text)["figure"]:
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
    dataset, model = workload.dataset, SAME_MODEL.get(workload.model, workload.model)
    optimizer = SAME_OPTIMIZER.get(workload.optimizer, workload.optimizer)
    datasets = [f"{FOLDERS[dataset]}/{dataset}" if dataset in FOLDERS else dataset]
    if workload.train_examples in SUBSETS.get(dataset, ()):
        subset = f"{dataset}_{workload.train_examples}"
        if workload.train_examples == max(SUBSETS[dataset]):
            datasets += [f"{FOLDERS[subset]}/{subset}"]
        else:
            datasets = [f"{FOLDERS[subset]}/{subset}"]
    if datasets[0] in ("mnist", "fashion_mnist"):
        datasets.append(f"solution_quality/{datasets[0]}")
    return tuple(f"{one}/{model}/{optimizer}" for one in datasets)


def chapters(whole: Whole) -> Iterator[tuple[str, Iterable[Part], str]]:
    """The title and parts of each publication and paper that was asked for."""
    curves = [*(subject.curve for subject in whole.subjects),
              *(section.batches for section in whole.repeats if section.batches)]
    noise: dict[JobKey, float] = {}
    for workload, subject in whole.first.items():       # at the batch at which it is known best
        best = best_known([one for one in subject.noise if 0 < one[1].whole.noise_scale < math.inf])
        if best:
            noise[workload] = best[1].whole.noise_scale
    for name in whole.asked.compare:
        yield f"Beside published results: {name}", beside_published(curves, name, noise), ""
    if whole.asked.paper:
        yield f"The figures of {PAPER}", figures(whole.studies, whole.asked, whole.tell), ""


def target_of(workload: JobKey) -> tuple[Target, ...]:
    """The first target that the paper has for a workload; () where it has none."""
    names = names_of(workload)
    found = [line.target for sheet in FIGURES for panel in sheet.panels for line in panel.lines
             if line.workload in names]
    return tuple(map(Target.parse, found[:1]))


def figures(studies: Sequence[Study], options: Options = Options(), tell: Tell = quiet) -> Iterator[Part]:
    """Every figure of the paper that these studies have the data for, in its order, and those that they lack."""
    found, figures = _Found(studies, options, tell), []
    for at, sheet in enumerate(FIGURES, 1):
        tell(f"figure {sheet.number} of the paper, {at} of {len(FIGURES)}")
        figures += [replace(figure, name=f"{PAPER}-figure-{number}", title=f"Figure {number}. {figure.title}",
                            source=f"{SOURCES['SHALLUE']}, figure {number}")
                    for number, figure in found.figures(sheet)]
    for number, names in found.missing.items():
        yield PAPERS.find("figure_missing", number=number, names=list(names))
    for name, (n, wanted) in sorted(found.short.items()):
        yield PAPERS.find("few_trials", name=name, n=n, wanted=wanted)
    for number in found.empty:
        yield PAPERS.find("figure_empty", number=number)
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
        wanted, target = TAKEN.get(name, TRIALS_TAKEN), Target.parse(goal)
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
        for letter, panel in zip(LETTERS, sheet.panels):
            lines = []
            for line in panel.lines:
                curve = self.curves[line.workload, line.target]
                if curve is None:
                    self.missing.setdefault(sheet.number, {})[line.workload] = None
                else:
                    lines.append((line, curve))
            if lines:
                panels.setdefault(sheet.number + letter * sheet.apart, []).append((panel, lines))
        for number, shown in panels.items():
            figure = self._steps(sheet, shown) if sheet.kind in (STEPS, NORMALISED) else self._draw(sheet, shown)
            if figure is None:
                self.empty.append(number)
            else:
                yield number, figure

    def _steps(self, sheet: Sheet, panels: Drawn) -> Figure | None:
        found = []
        for panel, lines in panels:
            targets = {str(curve.target) for _, curve in lines}
            title = f"{panel.title}, {min(targets)}" if len(panels) == 1 == len(targets) else panel.title
            found.append(CurvePanel(title, [curve for _, curve in lines],
                                    [line.label or str(curve.target) for line, curve in lines], panel.ordered))
        return curve_panels(found, sheet.title, kind=sheet.kind)

    def _draw(self, sheet: Sheet, panels: Drawn) -> Figure | None:
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
