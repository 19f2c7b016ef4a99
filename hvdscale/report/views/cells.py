"""Of a cell of runs at one worker count and batch: what a table shows, with its notes and warnings."""
from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

from ...analysis.intervals import OWN_FROM, Estimate
from ...analysis.pooled_variance import stand_out
from ...analysis.report_data import Section
from ...analysis.search import Search
from ...analysis.steps import SPEED, RunCell
from ...formatting.numbers import counted, listed, number, ratio, span, spread, whole
from ..differences import settings_tried
from ..table import Cell, Table, Write, no_cell, steps_cell
from ..texts import SCALING, SEARCH, Cells
from .searches import tuned_at_each

ONE_RUN = "*"       # marks a point with one run
CROWDED = "#"       # marks a worker count at which a host had too few free cores


def mark_of(cell: RunCell) -> str:
    return CROWDED if cell.oversubscribed else ""


def of_searches(section: Section, cells: Sequence[RunCell]) -> str:
    """What the steps are where those of each cell are the fewest of a search; empty where they are not."""
    cells = [cell for cell in cells if cell.runs]
    searched = section.target and cells and all(cell.searched for cell in cells)
    return f" ({SEARCH.say('best_of_each', confidence=section.options.confidence)})" if searched else ""


def describe_cells(section: Section, cells: Sequence[RunCell], times: bool = True
                   ) -> tuple[Sequence[str], Sequence[str]]:
    """(how to read a table of these cells, first what intervals claim and are based on; warnings)."""
    notes, warnings = _describe_spread(section, [cell for cell in cells if not cell.searched], times)
    tuned = tuned_by(section, cells)
    searches = [search for found in tuned.values() for search in found]
    tried = [cell for cell in cells if cell.settings > 1 and id(cell) not in tuned]
    passes = {run.trial.execution.get("untimed_passes") or 0 for cell in cells for run in cell.runs if times}
    unwarmed = any(cell.examples_per_second.runs for cell in cells) and passes == {0}
    return (*notes, tuned_at_each(searches, section.options.confidence) if searches else "",
            SCALING.say_if("warmup", any(passes), passes=spread(passes))), (
        *warnings, SCALING.say("settings", settings=settings_tried(tried), target=section.target, batches=[
            f"{cell.global_batch:,} ({cell.settings:,})" for cell in tried]) if tried else "",
        *(crowded_warnings(cells) if times else ()), SCALING.say_if("no_warmup", unwarmed))


def _describe_spread(section: Section, cells: Sequence[RunCell], times: bool) -> tuple[list[str], list[str]]:
    """The same of the intervals of cells of repeats."""
    repeats, known = {len(cell.samples.seeds) for cell in cells} - {0, 1}, section.pools.of
    degrees = {name: max(1, int(known(name).freedom)) for name in ("steps", "seconds", SPEED) if known(name).freedom
               and (section.target or name == SPEED) and (times or name == "steps")}
    notes, warnings, pooled = [], [], repeats and degrees and min(repeats) < OWN_FROM
    if repeats and degrees:
        notes.append(SCALING.say(
            "intervals", confidence=section.options.confidence, own=not pooled, freedom=_degrees_of_freedom(degrees),
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


def _degrees_of_freedom(degrees: Mapping[str, int]) -> str:
    """``6 degrees of freedom``, ``4 degrees of freedom for steps and 6 for seconds``."""
    (first, count), *rest = degrees.items()
    said = listed([first, *(f"{other} for {name}" for name, other in rest)]).replace("_", " ")
    return f"{counted(count, 'degree')} of freedom{f' for {said}' if len({*degrees.values()}) > 1 else ''}"


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
    return [
        SCALING.say_if("crowded", lacked, mark=CROWDED, counts=[f"{n} on {cores}" for n, cores in counts],
                       shared=any(trial.workers < trial.execution["local_workers"] for trial in lacked)),
        SCALING.say_if("busy", len(lacked) < len(crowded), mark=CROWDED, workers=workers, most=max(workers, default=0),
                       share=max((one.without_core for one in crowded), default=0)),
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
        shown = ("diverged" if not cell.runs else "not met" if math.isinf(cell.steps.value) else
                 "no baseline" if cell is not baseline and not baseline.steps.met else "n/a")
    return Cell(shown, value.value, value.low, value.high, span(value.low, value.high, ratio))


COLUMNS: dict[str, Callable[[RunCell], Any]] = {        # of cells, by key
    "workers": lambda cell: Cell(f"{cell.workers[0]}{mark_of(cell)}", cell.workers[0]), "ran_at": ran_at_cell,
    "global_batch": lambda cell: Cell(cell.batches.in_brief(), cell.global_batch),
    "met": met_cell, "runs": runs_cell,
    "timed_steps": lambda cell: Cell(spread(ends := {run.last_step for run in cell.runs}), max(ends, default=0)),
    "steps_to_target": lambda cell: estimate_cell(cell.steps, cell, whole),
    "examples_to_target": lambda cell: estimate_cell(cell.examples, cell),
    "tokens_to_target": lambda cell: estimate_cell(cell.tokens, cell),
    "seconds_to_target": lambda cell: estimate_cell(cell.seconds, cell),
    "worker_seconds": lambda cell: estimate_cell(cell.seconds.scaled(cell.workers[0]), cell),
    "examples_per_second": attrgetter("examples_per_second"), "step_seconds": attrgetter("step_seconds")}


def table_of_cells(name: str, rows: Sequence[Any], keys: str, more: Cells | None = None, *,
                   of: Callable[[Any], RunCell] = lambda row: row, section: Section | None = None, times: bool = True,
                   notes: Iterable[str] = (), warnings: Iterable[str] = (), **words: Any) -> Table:
    """A table of cells, of which ``of`` gives that of a row: the columns of COLUMNS by these keys, tokens if any were
    counted, then others; of a ``section`` it says how to read its cells, see describe_cells."""
    cells = list(map(of, rows))
    keyed = [key for key in keys.split() if key != "tokens_to_target" or any(cell.tokens.runs for cell in cells)]
    columns: Cells = {SCALING.column(key, "workers") if key == "ran_at" else key:
                      partial(lambda key, row: COLUMNS[key](of(row)), key) for key in keyed}
    if section:
        said = describe_cells(section, cells, times)
        notes, warnings = (*notes, *said[0]), (*warnings, *said[1])
        words = {"what": section.target or "throughput", **words}
    return SCALING.table(name, rows, columns | (more or {}), lambda row: of(row).keys, notes=notes, warnings=warnings,
                         diverged=lambda row: tuple(trial.key for trial in of(row).diverged), **words)
