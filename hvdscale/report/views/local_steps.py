"""By H, the steps between synchronizations of replicas: regimes, fit, what is lost, in findings, a table, a figure. The
exchanges N = S / H of a run to the target are to H what S is to the batch B, see analysis/README.rst."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ...analysis.curves import Regimes
from ...analysis.intervals import Estimate, geometric_mean, mean_interval, pooled
from ...analysis.report_data import Section
from ...analysis.speedup import divide
from ...analysis.steps import STEPS, RunCell
from ...analysis.studies import best_value, group_by
from ...analysis.trials import EVERY_STEP
from ...formatting.numbers import counted, whole
from ...target import Target
from ..document import Figures, Finding, Part
from ..drawing import MUTED, Axes, draw_line, ends_of, label_axes, log2_axis, mark_estimate
from ..subject import Subject
from ..table import Cell, Table, as_shown, keys_of, metric_name
from ..texts import LOCAL_STEPS, SCALING
from .batches import find_regimes
from .cells import describe_cells, estimate_cell, met_cell, of_searches, ran_at_cell, ratio_cell, tuned_by
from .curves import mark_regimes, style_of


def local_steps(subject: Subject) -> Iterator[Part]:
    curves = [(own, Regimes([cell.sync[1] for cell in own], list(map(exchanges, own)), subject.options))
              for own in by_replicas(subject.synced)]
    for cells, regimes in curves:
        yield from _find_losses(subject, cells, regimes)
    yield _table(subject, subject.goal, curves)
    by_batch = group_by(curves, lambda curve: curve[0][0].global_batch)
    yield Figures(lambda: [
        LOCAL_STEPS.figure("local-steps", partial(_draw, cells, by_batch[batch]), keys_of(cells), target=subject.target,
                           name=f"local-steps-{batch:,}", batch=batch, several=len(by_batch[batch]) > 1,
                           fit=len(by_batch[batch]) == 1, confidence=subject.options.confidence,
                           searched=all(cell.searched for cell in cells), synchronous=cells[0].sync == EVERY_STEP)
        for batch, cells in group_by(subject.synced, lambda cell: cell.global_batch).items() if batch in by_batch])


def by_replicas(cells: Sequence[RunCell]) -> list[list[RunCell]]:
    """Of a section's cells by Trial.sync those of one M at one global batch, by H; first where most H ran."""
    apart = [cell for cell in cells if cell.sync != EVERY_STEP]
    return sorted(group_by(apart, lambda cell: (cell.global_batch, cell.sync[0])).values(), key=lambda own: -len(own))


def exchanges(cell: RunCell) -> Estimate:
    """N; of synchronous training S."""
    return cell.steps.scaled(1 / (cell.sync[1] or 1))


def best_within(cells: Sequence[RunCell], target: Target, confidence: float) -> tuple[int, list[Estimate]]:
    """(the steps that all runs of these cells have run, the best of the target's metric within them: means over seeds).
    """
    steps = int(min((run.last_step for cell in cells for run in cell.runs if run.measured), default=0))
    values = [np.array([best_value(run.trial.metrics[target.column][run.trial.step <= steps], target.minimizes)
                        for run in cell.runs if run.measured]) for cell in cells]
    pool, found = pooled(values), []
    for own in values:
        low, high = mean_interval(own, pool, confidence)
        found.append(Estimate(float(geometric_mean(own)) if len(own) else np.nan, float(low), float(high), len(own)))
    return steps, found


def _synchronous(cells: Sequence[RunCell]) -> dict[int, RunCell]:
    return {cell.global_batch: cell for cell in cells if cell.sync == EVERY_STEP}


def _find_losses(section: Section, cells: Sequence[RunCell], regimes: Regimes) -> Iterator[Finding]:
    """What the largest H that met takes over synchronous training, the regimes, and which H did not meet."""
    batch, every, met = cells[0].global_batch, [cell.sync[1] for cell in cells], [one for one in cells if one.steps.met]
    whose = f"{counted(cells[0].sync[0], 'replica')}, batch {batch:,}"
    beside, find = _synchronous(section.synced).get(batch), partial(LOCAL_STEPS.find, whose=whose)
    if beside is None or not beside.steps.met:
        yield find("no_synchronous", None)
    elif met:
        ratio = divide(met[-1], beside, STEPS, section.options.confidence)
        yield find("over", ratio, every=met[-1].sync[1], ratio=ratio, once=exchanges(met[-1]).value <= 1)
    if len(every) < 2:
        yield find("one_every", None, every=every)
    yield from find_regimes(regimes, every, list(map(exchanges, cells)), [cell.met > 0 for cell in cells], LOCAL_STEPS,
                            whose=whose)
    if unmet := [cell for cell in cells if cell not in met]:
        yield find("unmet", None, target=section.target, every=[cell.sync[1] for cell in unmet],
                   some=[cell.sync[1] for cell in unmet if cell.met])


def _table(section: Section, target: Target, curves: Sequence[tuple[list[RunCell], Regimes]]) -> Table:
    cells, options = section.synced, section.options
    perfect = {id(cell): inside for own, found in curves for cell, inside in zip(own, found.perfect) if cell.steps.met}
    steps, best = best_within(cells, target, options.confidence)
    within = dict(zip(map(id, cells), best))
    tuned = tuned_by(section, cells)
    rates = {(run.trial.plan.get("problem") or {}).get("peak_lr") for cell in cells if id(cell) not in tuned
             for run in cell.runs}

    def over(cell: RunCell) -> Cell:
        beside = _synchronous(cells).get(cell.global_batch)
        return ratio_cell(divide(cell, beside, STEPS, options.confidence), cell, beside) if beside else Cell("unknown")
    notes, warnings = describe_cells(replace(section, pools=cells[0].pools), cells)
    return LOCAL_STEPS.table("local-steps", cells, {
        "global_batch": lambda cell: cell.global_batch, "replicas": lambda cell: cell.sync[0],
        "sync_every": lambda cell: cell.sync[1], SCALING.column("ran_at", "workers"): ran_at_cell,
        SCALING.column("met"): met_cell, "steps_to_target": lambda cell: estimate_cell(cell.steps, cell, whole),
        "over_synchronous": over, "fewest_steps": lambda cell: perfect.get(id(cell), ""),
        "exchanges": lambda cell: estimate_cell(exchanges(cell), cell),
        "examples_to_target": lambda cell: estimate_cell(cell.examples, cell),
        SCALING.column("seconds_to_target"): lambda cell: (
            estimate_cell(cell.seconds, cell) if len(cell.workers) == 1 else Cell("n/a")),
        LOCAL_STEPS.column("best_within", steps=steps, metric=metric_name(target.column)):
            lambda cell: within[id(cell)]}, lambda cell: cell.keys, what=target, searched=of_searches(section, cells),
        diverged=lambda cell: tuple(trial.key for trial in cell.diverged),
        warnings=(LOCAL_STEPS.say("untuned", rates=sorted(filter(None, rates)) if len(rates) > 1 else None)
                  if rates else "", *warnings),
        notes=(LOCAL_STEPS.say("meanings", perfect=options.perfect_within, useful=options.useful_within), *notes))


def _draw(cells: Sequence[RunCell], curves: Sequence[tuple[list[RunCell], Regimes]], axes: Axes) -> None:
    estimates = [as_shown(cell.steps) for cell in cells]
    every, regimes = [cell.sync[1] for cell in curves[0][0]], curves[0][1]
    log2_axis(axes, "x", [cell.sync[1] for cell in cells])
    log2_axis(axes, "y", [value for one in estimates for value in (one.value, one.beyond)], ends_of(estimates))
    if cells[0].sync == EVERY_STEP and cells[0].steps.met:
        axes.axhline(estimates[0].value, color=MUTED, linestyle="--", linewidth=1.2, label="synchronous")
        axes.axhspan(estimates[0].low, estimates[0].high, color=MUTED, alpha=0.12, linewidth=0)
    if len(curves) == 1:
        mark_regimes(axes, regimes, intervals=False, names=("hardly more steps up to H", "largest useful H"))
        if regimes.fit:
            along = [every[0] * (every[-1] / every[0]) ** (at / 60) for at in range(61)]
            draw_line(axes, ((one, regimes.fit.steps(one) * one) for one in along), MUTED, width=0.9, label="fit")
    for at, (own, _) in enumerate(curves):
        (color, marker), aside = style_of(at, len(curves)), 1.08 ** at
        draw_line(axes, ((cell.sync[1] * aside, cell.steps.value) for cell in own if cell.steps.met), color)
        for cell in own:
            mark_estimate(axes, cell.sync[1], as_shown(cell.steps), color, marker, f"{cell.sync[0]} replicas",
                          aside=aside)
    label_axes(axes, "steps between synchronizations H", "steps to target S")
