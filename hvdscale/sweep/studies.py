"""Settle a sweep's studies for its data: budget and evaluations in steps, the space at that budget, the drawn points.

A study's points are drawn once and stored with all common settings; different settings are a different study. The
sweep is stored, too, so that another one is not resumed under its name.

    OUT/points/nesterov-b256.json       {"budget_steps": 2000, ..., "points": [{"lr": 0.1, ...}, ...]}
    OUT/sweep.json                      the sweep file as last settled, and its job
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import LogError, PlanError, UsageError
from ..log.files import first_line
from ..plan.job import changes_of, note_version, refuse_changes
from ..plan.plan import Plan, differences
from ..plan.search_space import Parameter, draws, layer_of
from ..plan.settings import Settings, key_of
from ..plan.settle import (Place, count_in_examples, settle, settle_batches, settle_budget, settle_evaluations,
                           with_averaged)
from ..plan.shards import Stream, stream_key
from ..system.files import write_whole, writing
from ..system.inputs import input_text
from ..workload import Data, Workload
from .file import COUNTS, StudySpec, Sweep
from .ledger import FIRST_REPEAT
from .settings import FREE_SETTINGS, takes

RECORD = "sweep.json"
UNTIMED = {"untimed_passes": 0}     # a search counts steps; a pass before each trial would be for nothing


@dataclass(frozen=True)
class Study:
    """A study as settled: with everything that depends on the size of the data."""

    sweep: Sweep
    spec: StudySpec
    budget_steps: int               # 0: the budget is in seconds
    budget_examples: int
    eval_every: int                 # steps between evaluations, on one relative grid at all batch sizes
    minimizes: bool                 # whether smaller values of the objective are better
    space: tuple[Parameter, ...]
    points: tuple[Mapping, ...]     # of each draw, by key

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def target(self) -> str | None:
        """The target that ranks its trials; None: another objective does."""
        return str(self.sweep.targets[-1]) if self.sweep.by_steps else None

    def draw_of(self, number: int) -> tuple[int, int]:
        """The draw and the repeat of a trial's number; repeat 0: the search itself."""
        return divmod(number - FIRST_REPEAT, 100) if number >= FIRST_REPEAT else (number, 0)

    def layers(self, number: int, checkpoint: str) -> list[dict]:
        sweep, (draw, _) = self.sweep, self.draw_of(number)
        in_steps = sweep.evaluations or "global_batch" in self.spec.layer      # else as set, over a changing batch
        return [UNTIMED, dict(self.spec.layer), {
            "seed": sweep.seed + number, "target": str(sweep.targets[-1]) if sweep.targets else "none",
            "keep_going": not sweep.by_steps, **({"eval_every": self.eval_every} if in_steps else {}),
            "checkpoint": checkpoint, **layer_of(self.points[draw])}]

    def record(self, number: int) -> dict:
        sweep, (draw, repeat) = self.sweep, self.draw_of(number)
        return {"study": self.name, "draw": draw, "repeat": repeat, "point": dict(self.points[draw]),
                "space": [parameter.record() for parameter in self.space], "trials": self.spec.trials,
                "max_draws": self.spec.max_draws, "objective": sweep.objective, "minimizes": self.minimizes,
                "targets": [str(target) for target in sweep.targets], "prune_keep": sweep.keep, "seed": sweep.seed}


def settle_study(sweep: Sweep, spec: StudySpec, workload: Workload, data: Data, out: str | None) -> Study:
    """The settled study with points drawn, or those stored under ``out``; raises UsageError or LogError."""
    train_examples = len(data.train)
    settings = count_in_examples(Settings.build(workload.defaults, spec.layer), workload.name, train_examples,
                                 data.train_tokens)
    split, _, metric = sweep.objective.partition("/")           # or steps, of no metric
    metrics = with_averaged(workload.metrics, settings.average)
    if metric and metric not in metrics:
        raise PlanError(f"objective = {sweep.objective!r}: the workload measures {', '.join(metrics)}; "
                        f"{metric!r} is none of these")
    if metric and split not in settings.eval_splits:
        raise PlanError(f"objective = {sweep.objective!r}: trials are evaluated on {settings.eval_splits} alone; add "
                        f"{split} to eval_splits in [settings]")
    if spec.global_batch > train_examples:
        raise PlanError(f"batch_sizes: {spec.global_batch} is larger than the training set of {train_examples} "
                        "examples; leave it out")
    batches, _ = settle_batches(settings, 1, train_examples)
    stream = Stream(train_examples, batches, settings.seed, settings.last_batch)
    budget_steps = settle_budget(settings, stream)
    every = (max(1, round(budget_steps / sweep.evaluations)) if sweep.evaluations
             else settle_evaluations(settings, stream)["eval_every"])
    space = spec.space(budget_steps)
    facts = {"train_examples": train_examples, "budget_steps": budget_steps, "eval_every": every,
             **{name: value for name, value in spec.layer.items() if key_of(name) not in FREE_SETTINGS},
             **{f"space.{parameter.name}": parameter.record() for parameter in space}}
    drawn = draws(space, spec.max_draws, stream_key(sweep.seed, f"draws/{spec.name}"))
    if out is not None:
        _keep(os.path.join(out, "points", f"{spec.name}.json"), json.loads(json.dumps(facts)), drawn)
    return Study(sweep, spec, budget_steps, stream.examples_before(budget_steps), every,
                 metrics.get(metric, "min") == "min", space, tuple(drawn))


def plan_of(study: Study, number: int, workload: Workload, data: Data) -> Plan:
    """The plan of a trial on one worker; raises UsageError naming study and draw for an invalid point."""
    try:
        settings = Settings.build(workload.defaults, *study.layers(number, "none"))
        return settle(settings, workload, len(data.train), len(data.val), Place(), data.train_tokens)
    except UsageError as error:
        point = ", ".join(f"{name} = {value}" for name, value in study.points[study.draw_of(number)[0]].items())
        raise type(error)(f"{study.name}, draw {number} ({point}): {error}") from None


def _keep(path: str, facts: dict, drawn: list[dict]) -> None:
    """Store the study; raises UsageError if the file is of another one, LogError if it cannot be read."""
    known = read_record(path)
    points = known.pop("points", [])
    if known and (differ := differences(known, facts)):
        raise UsageError(f"{path}: {'; '.join(differ.values())}. What was searched so far would not be of one study; "
                         "put it back, or give another --out")
    if points[:len(drawn)] != drawn[:len(points)]:
        raise LogError(f"{path}: this machine draws other points than those kept there, so the search cannot be "
                       "continued on it; give another --out")
    if len(points) < len(drawn):
        write_file(path, json.dumps({**facts, "points": drawn}, indent=1))


def keep_record(out: str, sweep: Sweep, job: dict, accept: bool) -> tuple[dict[str, str], list[str]]:
    """Write OUT/sweep.json; returns the earlier jobs that count as this one, and notes. Raises UsageError if another
    sweep is there, or one of another job, unless it is to be accepted; LogError if the file cannot be read."""
    known = refuse_other(out, sweep)
    then, path = known.get("job") or {}, os.path.join(out, RECORD)
    accepted = refuse_changes(then, job, accept, path, "Put it back, or give another --out")
    record = json.loads(json.dumps({**sweep.record, "job": {**then, **job, "accepted": accepted}}))
    if known != record:
        write_file(path, json.dumps(record, indent=1))
    return accepted, [*note_version(then, job), *map("accepted: {}".format, changes_of(then, job))]


def refuse_other(out: str, sweep: Sweep) -> dict:
    """The record in OUT, {} if there is none; raises UsageError if it is of another sweep."""
    path = os.path.join(out, RECORD)
    known = read_record(path)
    try:
        if known:
            check_same(known, sweep)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    return known


def check_same(recorded: dict, sweep: Sweep) -> None:
    """Raise UsageError naming the keys in which the sweep differs from the recorded one. A sweep may be resumed with
    other batch sizes, optimizers, numbers of trials, draws, repeats or workers, and with other settings that change no
    update."""
    then, now = {key: value for key, value in recorded.items() if key != "job"}, json.loads(json.dumps(sweep.record))
    common = {name: set(then.get(name, ())) & set(now[name]) for name in ("batch_sizes", "optimizers")}
    differ = [said for key, said in differences(then, now).items() if not _may_differ(key, common)]
    if differ:
        raise UsageError(f"{'; '.join(differ)}. What was searched so far would not be of one sweep; put it back, or "
                         "give another folder")


def _may_differ(key: str, common: dict[str, set]) -> bool:
    table, _, name = key.partition(".")
    if table == "batch":
        number, _, own = name.partition(".")
        return int(number) not in common["batch_sizes"] or _may_differ(own, common)
    name = name.rpartition(".")[0] if table == "space" else name
    if table in ("settings", "space") and not any(takes(optimizer, name) for optimizer in common["optimizers"]):
        return True
    return table in (*COUNTS, "batch_sizes", "optimizers", "repeats", "workers_per_trial") or (
        table == "settings" and key_of(name) in FREE_SETTINGS)


def write_file(path: str, text: str) -> None:
    """Write a file atomically, with its folder; raises LogError if it cannot be written."""
    with writing(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_whole(path, text)


def read_record(path: str) -> dict:
    """A JSON object written by ``write_file``, {} if there is none; raises LogError if it cannot be read."""
    try:
        return dict(json.loads(input_text(path)))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise LogError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (RecursionError, TypeError, ValueError) as error:
        raise LogError(f"{path}: is empty, cut off or no JSON object ({first_line(error)}); remove it, and the same "
                       "command with the same sweep file writes it again") from error
