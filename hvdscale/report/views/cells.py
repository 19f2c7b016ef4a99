"""Of a cell of runs at one worker count and batch: what a table shows, with its notes and warnings; and in which fields
of their plans the settings of cells differ."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

from ...analysis.intervals import OWN_FROM, Estimate
from ...analysis.report_data import Section, stand_out
from ...analysis.search import Search
from ...analysis.speedup import SpeedupPoint
from ...analysis.steps import SPEED, RunCell
from ...formatting.numbers import counted, listed, number, ratio, span, spread, whole
from ...plan.scaling import SCALED_BETAS
from ...plan.settings import DECAYS_PER_STEP, DECOUPLED, flat
from ..table import Cell, Table, Write, no_cell, steps_cell
from ..texts import SCALING, SEARCH, Cells
from .searches import tuned_at_each

ONE_RUN = "*"       # marks a point with one run
CROWDED = "#"       # marks a worker count at which a host had too few free cores
# of the problem: what follows from the global batch, or is chosen for it
OF_BATCH = ("global_batch", "base_lr", "peak_lr", "start_lr", "learning_rate", "lr_factor", "warmup",
            "warmup_steps", "decay_steps", "decay_start", "decay_at")
FOLLOW = {"base_lr": ("peak_lr", "start_lr"), "peak_lr": ("start_lr",), "lr_factor": ("peak_lr", "start_lr")}
MOST_VALUES = 5
MOST_LETTERS = 24


def mark_of(cell: RunCell) -> str:
    return CROWDED if cell.oversubscribed else ""


def of_searches(section: Section, cells: Sequence[RunCell]) -> str:
    """What the steps are where those of each cell are the fewest of a search; empty where they are not."""
    cells = [cell for cell in cells if cell.runs]
    searched = section.target and cells and all(cell.searched for cell in cells)
    return f" ({SEARCH.say('best_of_each', confidence=section.options.confidence)})" if searched else ""


def describe_cells(section: Section, cells: Sequence[RunCell], times: bool = True) -> tuple[list[str], list[str]]:
    """(how to read a table of these cells, first what intervals claim and are based on; warnings)."""
    notes, warnings = _describe_spread(section, [cell for cell in cells if not cell.searched], times)
    tuned = tuned_by(section, cells)
    searches = [search for found in tuned.values() for search in found]
    tried = [cell for cell in cells if cell.settings > 1 and id(cell) not in tuned]
    passes = {run.trial.execution.get("untimed_passes") or 0 for cell in cells for run in cell.runs if times}
    unwarmed = any(cell.examples_per_second.runs for cell in cells) and passes == {0}
    notes += [tuned_at_each(searches, section.options.confidence) if searches else "",
              SCALING.say_if("warmup", any(passes), passes=spread(passes))]
    if tried:
        found: dict[str, list[object]] = {}         # values of what differs between trials within a cell
        for cell in tried:
            fields = [_fields(setting) for setting in dict.fromkeys(trial.setting for trial in cell.considered)]
            for name in _differing(fields):
                found.setdefault(name, []).extend(field.get(name) for field in fields)
        said = [f"{name} ({_values(found[name])})" for name in _leaders(found)]
        warnings.append(SCALING.say("settings", named=said, target=section.target, batches=[
            f"{cell.global_batch:,} ({cell.settings:,})" for cell in tried]))
    warnings += [*(crowded_warnings(cells) if times else ()), SCALING.say_if("no_warmup", unwarmed)]
    return notes, warnings


def _describe_spread(section: Section, cells: Sequence[RunCell], times: bool) -> tuple[list[str], list[str]]:
    """(how to read the intervals of these cells of repeats; warnings)."""
    repeats, known = {len(cell.samples.seeds) for cell in cells} - {0, 1}, section.pools.of
    degrees = {name: max(1, int(known(name).freedom)) for name in ("steps", "seconds", SPEED) if known(name).freedom
               and (section.target or name == SPEED) and (times or name == "steps")}
    notes, warnings, pooled = [], [], repeats and degrees and min(repeats) < OWN_FROM
    if repeats and degrees:
        (kind, count), *rest = degrees.items()          # 4 degrees of freedom for steps and 6 for seconds
        of_each = listed([kind, *(f"{other} for {name}" for name, other in rest)]).replace("_", " ")
        several = f" for {of_each}" if len({*degrees.values()}) > 1 else ""
        notes.append(SCALING.say(
            "intervals", confidence=section.options.confidence, own=not pooled,
            freedom=f"{counted(count, 'degree')} of freedom{several}",
            own_from=OWN_FROM if max(repeats) >= OWN_FROM else None, hours=times and known(SPEED).apart > 0))
    if pooled:
        at = [float(known("steps").at(cell.global_batch).deviation) for cell in cells]
        notes += [SCALING.say_if("spread_grows", known("steps").growth > 0, least=min(at), most=max(at)),
                  SCALING.say_if("few_repeats", min(degrees.values()) <= 2)]
    some = any(0 < cell.met < len(cell.samples.seeds) for cell in cells)
    notes.append(SCALING.say_if("some_unmet", some and section.target))
    met = [run for cell in cells for run in cell.runs if run.met]
    first = sum(math.isnan(run.steps_before) for run in met)
    alone = any(len(cell.samples.seeds) == 1 for cell in cells)
    warnings += [SCALING.say_if("one_run", alone, mark=ONE_RUN, target=section.target),
                 SCALING.say_if("first_evaluation", first, first=first, runs=len(met))]
    for name, what in (("steps", "steps"), (SPEED, "examples per second")) if pooled else ():
        if (times or name != SPEED) and (apart := stand_out(cells, name)):      # so large that pooling it misleads
            warnings.append(SCALING.say("stands_out", what=what, where=[
                f"W = {listed(cell.workers)}, B = {cell.global_batch:,}" for cell in apart]))
    return notes, warnings


def tuned_by(section: Section, cells: Sequence[RunCell]) -> dict[int, list[Search]]:
    """The searches behind cells of which every setting was one drawn by them, by the cell's id."""
    found = {}
    for cell in cells if section.target else ():
        behind = [search for search in section.searches if search.global_batch == cell.global_batch]
        drawn = {draw.trial.setting for search in behind for draw in search.draws if draw.trial}
        if behind and all(trial.setting in drawn for trial in cell.considered):
            found[id(cell)] = behind
    return found


def crowded_warnings(cells: Sequence[RunCell]) -> list[str]:
    considered = [trial for cell in cells for trial in cell.considered]
    crowded = [trial for trial in considered if trial.crowded]
    lacked = [trial for trial in crowded if trial.lacked_cores]
    slowed = [trial for trial in considered if any(trial.measured.get("slowed_by") or ())]
    counts = sorted({(trial.execution["local_workers"], trial.execution["cores"]) for trial in lacked})
    workers = sorted({one.workers for one in crowded})
    by = dict.fromkeys(why for trial in slowed for rank in trial.measured["slowed_by"] for why in rank)
    return [SCALING.say_if("crowded", lacked, mark=CROWDED, counts=[f"{n} on {cores}" for n, cores in counts],
                           shared=any(trial.workers < trial.execution["local_workers"] for trial in lacked)),
            SCALING.say_if("busy", len(lacked) < len(crowded), mark=CROWDED, workers=workers,
                           most=max(workers, default=0), share=max((one.without_core for one in crowded), default=0)),
            SCALING.say_if("slowed", slowed, workers=sorted({one.workers for one in slowed}), by=" and ".join(by),
                           clock=min((min(trial.measured["clock"]) for trial in slowed), default=0))]


def ran_at_cell(cell: RunCell) -> Cell:
    every = ",".join(map(str, cell.workers))
    return Cell(every if len(every) < 12 else f"{cell.workers[0]}-{cell.workers[-1]}", every)


def runs_cell(cell: RunCell, lost: bool = True) -> Cell:
    seeds = len(cell.samples.seeds)
    return Cell(f"{seeds}{ONE_RUN * (seeds == 1 and not cell.searched)}", seeds,
                below=f"{len(cell.diverged)} div." if lost and cell.diverged else "")


def met_cell(cell: RunCell) -> Cell:
    if cell.searched:
        met = sum(run.met for run in cell.draws)
        return Cell(f"{met}/{len(cell.draws)}", met)
    runs = runs_cell(cell)
    return Cell(f"{cell.met}/{runs.shown}", cell.met, below=runs.below)


def estimate_cell(estimate: Estimate, cell: RunCell, write: Write = number) -> Cell:
    if not cell.runs:
        return no_cell("diverged")
    if math.isnan(estimate.value):
        return Cell("n/a", estimate.value, estimate.low, estimate.high, "not measured")
    found = steps_cell(estimate, write)
    some = math.isinf(estimate.value) and cell.met          # of the seeds
    return replace(found, below=span(estimate.low, estimate.high, write)) if some else found


def ratio_cell(value: Estimate, cell: RunCell, baseline: RunCell) -> Cell:
    shown = ratio(value.value)
    if math.isnan(value.value):
        why = {"diverged": not cell.runs, "not met": math.isinf(cell.steps.value),
               "no baseline": cell is not baseline and not baseline.steps.met, "n/a": True}
        shown = next(word for word, holds in why.items() if holds)
    return Cell(shown, value.value, value.low, value.high, span(value.low, value.high, ratio))


COLUMNS: dict[str, Callable[[RunCell], Any]] = {        # of cells, by key
    "workers": lambda cell: Cell(f"{cell.workers[0]}{mark_of(cell)}", cell.workers[0]), "ran_at": ran_at_cell,
    "global_batch": lambda cell: Cell(cell.batches.in_brief(), cell.global_batch), "met": met_cell, "runs": runs_cell,
    "timed_steps": lambda cell: Cell(spread(ends := {run.last_step for run in cell.runs}), max(ends, default=0)),
    "steps_to_target": lambda cell: estimate_cell(cell.steps, cell, whole),
    "examples_to_target": lambda cell: estimate_cell(cell.examples, cell),
    "tokens_to_target": lambda cell: estimate_cell(cell.examples.scaled(cell.tokens_per_example), cell),
    "seconds_to_target": lambda cell: estimate_cell(cell.seconds, cell),
    "worker_seconds": lambda cell: estimate_cell(cell.seconds.scaled(cell.workers[0]), cell),
    "examples_per_second": attrgetter("examples_per_second"), "step_seconds": attrgetter("step_seconds")}


def table_of_cells(name: str, rows: Sequence[Any], keys: str, more: Cells | None = None, *,
                   of: Callable[[Any], RunCell] = lambda row: row, section: Section | None = None, times: bool = True,
                   notes: Iterable[str] = (), warnings: Iterable[str] = (), **words: Any) -> Table:
    """A table of cells, of which ``of`` gives that of a row: the columns of COLUMNS by these keys, tokens if any were
    counted, then others; of a ``section`` it says how to read its cells, see describe_cells."""
    cells = list(map(of, rows))
    tokens = any(not math.isnan(cell.tokens_per_example) for cell in cells)
    keyed = [key for key in keys.split() if key != "tokens_to_target" or tokens]
    columns: Cells = {SCALING.column(key, "workers") if key == "ran_at" else key:
                      partial(lambda key, row: COLUMNS[key](of(row)), key) for key in keyed}
    if section:
        said = describe_cells(section, cells, times)
        notes, warnings = (*notes, *said[0]), (*warnings, *said[1])
        words = {"what": section.target or "throughput", **words}
    return SCALING.table(name, rows, columns | (more or {}), lambda row: of(row).keys, notes=notes, warnings=warnings,
                         diverged=lambda row: tuple(trial.key for trial in of(row).diverged), **words)


def _leaders(names: Iterable[str]) -> list[str]:
    found = list(names)
    followers = {follower for name in found for follower in FOLLOW.get(name, ())}
    return [name for name in found if name not in followers]


def settings_of(settings: Iterable[str]) -> dict[str, dict[str, object]]:
    """What distinguishes settings, apart from their batch: name and value of each field, by setting."""
    fields = {setting: _fields(setting) for setting in dict.fromkeys(settings)}
    names = [name for name in _leaders(_differing(list(fields.values()))) if "_batch" not in name]
    return {setting: {name: one.get(name) for name in names[:MOST_VALUES]} for setting, one in fields.items()}


def problems_of_points(points: Sequence[SpeedupPoint], searched: Iterable[str] = ()) -> list[str]:
    """What of the points' problems differs and follows neither from the batch nor from names ``searched`` at every
    point: ``precision is fp32 at 1 worker, fp64 at 3``."""
    gpus = [sorted({run.trial.gpu for run in point.cell.runs} - {""}) for point in points]
    fields = [_fields(point.cell.setting) | ({"device": listed(gpu)} if gpu else {})
              for point, gpu in zip(points, gpus)]
    batches = [point.cell.global_batch for point in points]
    follow = {*OF_BATCH, "eval_every", *searched}
    for rule, betas in SCALED_BETAS.items():
        if all(field.get("lr_rule") == rule for field in fields):
            follow |= {*betas, "epsilon"}
    for name in DECAYS_PER_STEP:            # the same half-life in examples
        known = [batch / -math.log(decay) for decay, batch in zip([one.get(name) for one in fields], batches)
                 if isinstance(decay, float) and 0 < decay < 1]
        if len(known) == len(points) and math.isclose(min(known), max(known)):
            follow.add(name)
    if all(one.get("ghost_batch") == point.cell.global_batch for one, point in zip(fields, points)):
        follow.add("ghost_batch")
    if all(one.get("optimizer") in DECOUPLED and one.get("weight_decay") and one.get("peak_lr") for one in fields):
        # the time scale of decoupled weight decay in examples, B / (rate decay)
        scales = [batch / (one["peak_lr"] * one["weight_decay"]) for one, batch in zip(fields, batches)]
        if math.isclose(min(scales), max(scales)):
            follow.add("weight_decay")
    said = []
    for name in _differing(fields):
        if name not in follow:
            workers: dict[str, list[int]] = {}
            for point, one in zip(points, fields):
                workers.setdefault(show_value(one.get(name)), []).append(point.workers)
            (value, first), *rest = workers.items()
            noun = "worker" if first == [1] else "workers"
            said.append(", ".join([f"{name} is {value} at {listed(first)} {noun}",
                                   *(f"{value} at {listed(where)}" for value, where in rest)]))
    return said


def _fields(setting: str) -> dict[str, Any]:
    """The fields of a setting by name; see analysis.trials.Trial.setting."""
    record = json.loads(setting)
    fields = {name.removeprefix("metaparameters/"): value for name, value in flat(record["problem"]).items()}
    return {**fields, "eval_every": record["eval_every"]}


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the fields that all have, and not all alike; an entry of a table may be missing."""
    counts = Counter(name for fields in settings for name in fields)        # in order of where each is met first
    return [name for name, count in counts.items() if ("." in name or count == len(settings))
            and len({json.dumps(setting.get(name)) for setting in settings}) > 1]


def _values(values: Sequence[Any]) -> str:
    numbers = all(type(value) in (int, float) and not math.isnan(value) for value in values)
    values = sorted(set(values)) if numbers else values
    shown = list(dict.fromkeys(map(show_value, values)))
    if len(shown) <= MOST_VALUES:
        return ", ".join(shown)
    return counted(len(shown), "value") + (f", {shown[0]} to {shown[-1]}" if numbers else "")


def show_value(value: object) -> str:
    if value is None or isinstance(value, float) and math.isnan(value):
        return "none"
    if isinstance(value, float):
        return f"{value:g}"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= MOST_LETTERS else text[:MOST_LETTERS - 3] + "..."


def how_they_differ(one: str, other: str) -> str:
    """``peak_lr 0.1, then 0.2`` of two settings, without what follows from other fields; empty: they are equal."""
    fields = [_fields(setting) for setting in (one, other)]
    names = dict.fromkeys(name for own in fields for name in own)
    found = [name for name in names if json.dumps(fields[0].get(name)) != json.dumps(fields[1].get(name))]
    said = [f"{name} {', then '.join(show_value(own.get(name)) for own in fields)}" for name in _leaders(found)]
    return listed(said[:MOST_VALUES] + ([f"{len(said) - MOST_VALUES} more"] if len(said) > MOST_VALUES else []))
