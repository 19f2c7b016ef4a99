"""All kinds of figures of any workload's curves, each worked out when it is asked for.

    workload_figures(curves)            of one workload, to one target each, the main one first
    family_figures(curves)              of several workloads
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ...analysis.base_rates import both_readings
from ...analysis.best_points import EFFECTIVE, LEARNING_RATE, MOMENTUM, best_of_trials, choices, is_varied, split_by
from ...analysis.budgets import Budget, best_under
from ...analysis.curves import Curve, curve_of
from ...analysis.grouping import group_by
from ...analysis.report_data import Options
from ...analysis.trials import JobKey
from ...formatting.numbers import round_number
from ...target import Target
from ..document import Figures, section_name, slug
from ..drawing import Figure
from ..subject import Whole
from .budgets import base_rate_figure, best_under_figure
from .curves import EXAMPLES, NORMALISED, STEPS, curves_figure, heading, plain, targets_figure
from .metaparameters import best_figure, best_of_figure, budgets_figure, trials_figure

ATTRIBUTES = {"model": "Models", "optimizer": "Optimizers", "dataset": "Data sets",
              "train_examples": "Sizes of the data set"}
EARLIER = (64, 16, 4, 1)        # the largest budget of steps and of epochs that every batch has, over these


def workload_figures(curves: Sequence[Curve], options: Options = Options(), shared: bool = True,
                     budgets: Sequence[Budget] = ()) -> Iterator[Figure]:
    """Every kind of figure that the curves of one workload have the data for: one curve a target, the main one first.

    shared    also those that are the same whichever target of its metric is the main one
    budgets   that were asked for; without any in steps, and any in epochs, round ones that every batch bears
    """
    return filter(None, _of_workload(curves, options, shared, budgets))


def _of_workload(curves: Sequence[Curve], options: Options, shared: bool, asked: Sequence[Budget]
                 ) -> Iterator[Figure | None]:
    main = curves[0]
    yield curves_figure([main])
    yield curves_figure([main], kind=EXAMPLES)
    yield targets_figure(curves)
    studies, column, minimizes = [point.study for point in main.searched], main.target.column, main.target.minimizes
    for name in choices(studies):
        yield split_figure(main, name, options)
    for what in (LEARNING_RATE, MOMENTUM, EFFECTIVE):
        if what != MOMENTUM or is_varied(studies, MOMENTUM):
            yield best_figure(main, what)
    yield trials_figure(main)
    of_unit = group_by(sorted(asked), lambda budget: budget.unit)
    steps, epochs = (of_unit[unit][-1].amount if unit in of_unit else None for unit in ("steps", "epochs"))
    yield budgets_figure(main, steps=steps, epochs=epochs)
    yield best_of_figure([best_of_trials(study, main.target, options.confidence) for study in studies])
    if shared:
        maps = both_readings(studies, column, minimizes)
        groups = {one.budget.unit: _earlier(one.budget) for one in maps[::-1] if one and one.budget}
        groups |= {unit: of_unit[unit] for unit in dict.fromkeys(budget.unit for budget in asked)}
        yield best_under_figure(*(best_under(studies, column, minimizes, budgets, options.confidence)
                                  for budgets in groups.values()))
        yield base_rate_figure(*maps)


def _earlier(budget: Budget) -> list[Budget]:
    """Round budgets up to this one, of whole steps."""
    least = 1.0 if budget.unit == "steps" else 0.0
    amounts = [max(least, round_number(budget.amount / share)) for share in EARLIER if share > 1]
    return [Budget(amount, budget.unit) for amount in dict.fromkeys((*amounts, budget.amount))
            if amount <= budget.amount]


def split_figure(curve: Curve, by: str, options: Options, title: str = "") -> Figure | None:
    """The curve once for each value of a metaparameter that was a choice."""
    word = by.replace("_", " ")
    found = {f"{word} {value:g}": curve_of(part, curve.target, options)
             for value, part in split_by([point.study for point in curve.searched], by).items()}
    curves = {label: one for label, one in found.items() if one is not None}
    return curves_figure(list(curves.values()), labels=list(curves), ordered=True, name=f"{STEPS}-batch-{slug(by)}",
                         title=title or f"Steps to {curve.target} by {word}\n{heading(curve.workload)}")


def families(whole: Whole) -> Iterator[tuple[str, list[Figures], str]]:
    """The chapter of workloads that differ in one thing."""
    curves = [subject.curve for subject in whole.first.values()]
    if len(curves) > 1:
        yield "Workloads beside each other", [Figures(lambda: family_figures(curves))], ""


def family_figures(curves: Sequence[Curve]) -> Iterator[Figure]:
    """Curves of several workloads that differ in one thing, each family raw and normalised.

    Data sets are compared each to its own target, so only normalised; all else to one target.
    """
    return filter(None, _of_families(curves))


def _of_families(curves: Sequence[Curve]) -> Iterator[Figure | None]:
    for attribute, title in ATTRIBUTES.items():
        for alike, family in group_by(curves, lambda curve: _all_but(curve, attribute)).items():
            if len({getattr(curve.workload, attribute) for curve in family}) < 2:
                continue
            name, of_data = f"{attribute.replace('_', '-')}s-{section_name(*alike)}", attribute == "dataset"
            family = sorted(family, key=lambda curve: getattr(curve.workload, attribute))
            said = f"{title}: " + ("each to its target" if of_data else plain(family[0].target))
            for kind in (NORMALISED, EXAMPLES) if of_data else (STEPS, NORMALISED):
                yield curves_figure(family, kind=kind, title=said + ("" if kind == STEPS else ", normalised"),
                                    name=f"{name}-{kind}", ordered=attribute == "train_examples")


def _all_but(curve: Curve, attribute: str) -> tuple[JobKey, Target | None]:
    blank: dict[str, dict[str, Any]] = {
        "dataset": {"dataset": "", "train_examples": 0}, "train_examples": {"train_examples": 0},
        "model": {"model": "", "model_args": ""}, "optimizer": {"optimizer": ""}}
    return replace(curve.workload, **blank[attribute]), None if attribute == "dataset" else curve.target
