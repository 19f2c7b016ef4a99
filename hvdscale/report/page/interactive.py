"""What the page's script needs to redraw figures as a slider moves over the target: values by stop, and the trials.

    explorer = explorer_of(explore(studies, target), slug="mnist-...")
    json.dumps(explorer.data)
"""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...analysis.intervals import Estimate
from ...analysis.target_slider import Explored
from ...analysis.worker_plan import Value, WorkerPlan
from ...formatting.numbers import counted
from ...log.schema import Status
from ..columns import POLLUX, SHALLUE
from ..drawing import Captioned, shade
from ..plan.figures import EAGER
from ..plan.words import CROWDED, ROLES, picks_said
from ..scaling.figures import crowded_said
from ..table import TrialKeys, keys_of

Values = list[float | None]     # as JSON can hold them; None: none, or not finite
MOST_DOTS = 20_000      # trials in the scatter of one page; of more, each so-many-th beside those that ever lead
DIGITS = 5              # of measured values and metaparameters
PRUNED = len(Status)    # the status of a trial that its search has stopped, in the data of the page
COMPLEMENTS = ("momentum", "beta1", "beta2")        # shown as their distance from 1


@dataclass(frozen=True, eq=False)
class Live(Captioned):
    """A figure that the script draws: its caption and provenance are there without it."""

    stands_for: str = ""            # the still figure that it takes the place of


@dataclass(frozen=True, eq=False)
class Explorer:
    """The slider of a page, its figures, and the data that they are drawn from."""

    title: str
    figures: tuple[Live, ...]
    colors: list[str]               # of the studies
    data: dict[str, object]


def explorer_of(explored: Explored | None, searched: bool, confidence: float) -> Explorer | None:
    """The interactive part of a page; None where there is nothing that a slider could move.

    searched   whether the studies' trials are draws of a search: then the scatter shows where they lie
    """
    if explored is None or len(explored.stops) < 2:
        return None
    colors = [shade(at, len(explored.studies)) for at in range(len(explored.studies))]
    figures, data = [], {
        "column": explored.target.column, "comparison": explored.target.comparison, "start": explored.start,
        "stops": [stop.value for stop in explored.stops], "labels": [str(stop) for stop in explored.stops],
        "batches": [study.global_batch for study in explored.studies], "colors": colors}
    trials, metaparameters, places = _trials(explored, _kept(explored))
    data["trials"] = {**trials, "metaparameters": metaparameters}
    data["fewest"] = [[places[at].get(trial, -1) for at, trial in enumerate(row)] for row in explored.fewest]
    if len(explored.studies) > 1:
        data["steps"] = [[_ends(estimate) for estimate in row] for row in explored.steps]
        figures.append(_live_steps(explored, confidence))
    times, plans = _times(explored), _plans(explored)
    if times:
        data["times"] = times
        figures.append(_live_times(explored, confidence))
    if plans:
        data["plan"] = plans
        figures.append(_live_costs(explored))
    shown = len(trials["id"])
    if searched and shown > 1 and _varied(metaparameters):
        data["scatter"] = _axes(metaparameters)
        figures.append(_live_scatter(explored, shown))
    return Explorer(f"Move the target: {explored.target.column}", tuple(figures), colors, data) if figures else None


def _kept(explored: Explored) -> list[np.ndarray]:
    """Of each study the trials that the page has, as indices."""
    total = sum(len(study) for study in explored.studies)
    every = max(1, math.ceil(total / MOST_DOTS))
    kept = []
    for at, study in enumerate(explored.studies):
        leads = {row[at] for row in explored.fewest} - {-1}
        kept.append(np.array(sorted({*range(0, len(study), every), *leads}), int))
    return kept


def _trials(explored: Explored, kept: Sequence[np.ndarray]
            ) -> tuple[dict[str, Sequence[object]], dict[str, Values], list[dict[int, int]]]:
    """(columns of the trials, their metaparameters, of each study {index of a trial: place in the columns})."""
    logs: dict[str, int] = {}
    columns: dict[str, Values] = {name: [] for name in ("log", "id", "study", "status", "seed", "best", "at")}
    names = sorted({name for study in explored.studies for name in study.metaparameters})
    values: dict[str, Values] = {name: [] for name in names}
    places = []
    for at, (study, best, rows) in enumerate(zip(explored.studies, explored.best, kept)):
        places.append({int(row): len(columns["id"]) + place for place, row in enumerate(rows)})
        keys = [study.key(row) for row in rows]
        columns["log"] += [logs.setdefault(log, len(logs)) for log, _ in keys]
        columns["id"] += [number for _, number in keys]
        columns["study"] += [at] * len(rows)
        columns["status"] += np.where(study.pruned, PRUNED, study.status)[rows].tolist()
        columns["seed"] += study.seed[rows].tolist()
        columns["best"] += _rounded(best.value[rows])
        columns["at"] += _rounded(best.step[rows])
        for name in names:
            values[name] += _rounded(study.metaparameters[name][rows]) if name in study.metaparameters else [
                None] * len(rows)
    known = {name: found for name, found in values.items() if any(value is not None for value in found)}
    return {**columns, "logs": list(logs)}, known, places


def _times(explored: Explored) -> dict[str, object] | None:
    """Where more than one worker count was timed: each cell with its batch, and by stop its seconds to target."""
    order = sorted({(cell.workers[0], cell.global_batch) for row in explored.cells for cell in row
                    if cell.seconds.value == cell.seconds.value})
    if len({workers for workers, _ in order}) < 2:
        return None
    rows = []
    for row in explored.cells:
        found = {(cell.workers[0], cell.global_batch): cell for cell in row}
        rows.append([_ends(found[key].seconds) if key in found else [None] * 4 for key in order])
    crowded = {(cell.workers[0], cell.global_batch) for row in explored.cells for cell in row if cell.oversubscribed}
    return {"workers": [workers for workers, _ in order], "batches": [batch for _, batch in order], "seconds": rows,
            "crowded": [int(key in crowded) for key in order]}


def _plans(explored: Explored) -> dict[str, object] | None:
    """By stop: what is recommended in words, the options, and which of them are marked; None where no plan has two."""
    known = [plan for plan in explored.plans if plan is not None and len(plan.eligible) > 1]
    if not known:
        return None
    counts = sorted({option.workers for plan in known for option in plan.options})
    return {"workers": counts, "said": [picks_said(plan) if plan else [] for plan in explored.plans],
            "options": [_options(plan, counts) for plan in explored.plans],
            "roles": [{name: counts.index(getattr(plan, name).workers) for name in ROLES if getattr(plan, name, None)}
                      for plan in explored.plans]}


def _options(plan: WorkerPlan | None, counts: list[int]) -> list[list[object] | None]:
    """By worker count: global batch, seconds, cost, each a value with its ends, how it is known, and whether its
    runs crowded their host."""
    found: dict[int, list[object]] = {
        option.workers: [option.global_batch, _ends(option.seconds), _ends(option.cost), option.mark,
                         int(plan.is_crowded(option))] for option in plan.options} if plan is not None else {}
    return [found.get(count) for count in counts]


def _axes(metaparameters: Mapping[str, Values]) -> list[dict[str, object]]:
    """The metaparameters that differ between trials, the learning rate first: name, title, and how it is shown."""
    names = _varied(metaparameters)
    order = sorted(names, key=lambda name: (name != "learning_rate", name not in COMPLEMENTS, name))
    return [{"name": name, "complement": name in COMPLEMENTS,
             "title": ("1 - " if name in COMPLEMENTS else "") + name.replace("_", " ")} for name in order]


def _varied(metaparameters: Mapping[str, Values]) -> list[str]:
    return [name for name, values in metaparameters.items() if len({*values} - {None}) > 1]


def _ends(estimate: Estimate | Value) -> Values:
    beyond = getattr(estimate, "beyond", math.nan)
    return _rounded(np.array([estimate.value, estimate.low, estimate.high, beyond], float))


def _rounded(values: np.ndarray) -> Values:
    return [None if not math.isfinite(value) else int(value) if value == int(value) and abs(value) < 1e15
            else float(f"{value:.{DIGITS}g}") for value in np.asarray(values, float).tolist()]


def _live_steps(explored: Explored, confidence: float) -> Live:
    interval = any(estimate.low == estimate.low for row in explored.steps for estimate in row)
    return Live(
        "live-steps", "Steps to target",
        "Steps to the target of the slider against the global batch, both axes in powers of 2; along the dashed line "
        "the batch doubles and the steps halve. " + (f"Bars are {confidence:.0%} intervals. " if interval else "")
        + "An open triangle: not met, more steps than this. A batch of which no trial met it and no bound is known has "
        "no point.",
        "S at the first evaluation that meets the target; perfect scaling: S1 B1 / B from the smallest batch that met "
        "it", SHALLUE, _leading(explored), "steps-batch")


def _live_times(explored: Explored, confidence: float) -> Live:
    cells = [cell for row in explored.cells for cell in row]
    return Live(
        "live-times", "Time to target",
        "Seconds to the target of the slider against workers, evaluation left out, as measured; along the dashed line "
        "the workers double and the time halves. "
        f"Bars are {confidence:.0%} intervals.{crowded_said(cells)}",
        "T = S B / x: train_seconds at the first evaluation that meets the target, geometric mean over seeds; ideal: "
        "T1 W1 / W from the fewest workers that met it", "",
        tuple(dict.fromkeys(key for cell in cells for key in keys_of(cell))))


def _live_costs(explored: Explored) -> Live:
    return Live(
        "live-costs", "Cost and time",
        "What each worker count costs, in worker-hours, for its time to the target of the slider, at the batch where "
        "it is fastest. A number is the worker count; named are the fastest, the cheapest, and the knee, which has the "
        "least cost times time. Worker counts "
        f"that crowded a host are left out, or marked {CROWDED} where too few others were timed.",
        f"cost = W T, T = S t: steps to target times seconds a step; knee: least cost x time, {EAGER}", POLLUX,
        tuple(dict.fromkeys(key for plan in explored.plans if plan is not None for option in plan.options
                            for key in option.trials)))


def _live_scatter(explored: Explored, shown: int) -> Live:
    total = sum(len(study) for study in explored.studies)
    part = f" {counted(shown, 'trial')} of {total:,} are drawn: the file would grow too large." if shown < total else ""
    return Live(
        "live-scatter", "Where the trials lie",
        "Each trial at its metaparameters. Filled: it met the target of the slider within its budget; open: it did "
        "not; a cross: it diverged (INFEASIBLE); an open square: its search stopped it before; a star: the fewest "
        f"steps of its batch. Named below are the trials that are starred.{part}",
        "met: the best value of the metric at any evaluation of the trial meets the target", SHALLUE,
        _leading(explored))


def _leading(explored: Explored) -> TrialKeys:
    """The trials with the fewest steps, of every stop and batch."""
    return tuple(dict.fromkeys(explored.studies[at].key(trial) for row in explored.fewest
                               for at, trial in enumerate(row) if trial >= 0))
