"""In which fields of their plans settings differ, in words."""
from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..analysis.speedup import SpeedupPoint
from ..analysis.steps import RunCell
from ..formatting.numbers import counted, listed
from ..plan.plan import flat
from ..plan.scaling import SCALED_BETAS, half_life_of
from ..plan.settings import DECAYS_PER_STEP, DECOUPLED

# of the problem: what follows from the global batch, or is chosen for it
OF_BATCH = ("global_batch", "base_lr", "peak_lr", "start_lr", "learning_rate", "lr_factor", "warmup",
            "warmup_steps", "decay_steps", "decay_start", "decay_at")
FOLLOW = {"base_lr": ("peak_lr", "start_lr"), "peak_lr": ("start_lr",), "lr_factor": ("peak_lr", "start_lr")}
MOST_VALUES = 5
MOST_LETTERS = 24


def settings_tried(cells: Iterable[RunCell]) -> str:
    """``Settings that differ in ghost_batch (16, 48) and precision (fp32, fp64)``: of the trials within each cell."""
    found: dict[str, list[object]] = {}
    for cell in cells:
        fields = [_fields(setting) for setting in dict.fromkeys(trial.setting for trial in cell.considered)]
        for name in _differing(fields):
            found.setdefault(name, []).extend(one.get(name) for one in fields)
    said = [f"{name} ({_values(found[name])})" for name in _leaders(found)]
    return f"Settings that differ in {listed(said)}" if said else "Settings that no log names"


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
    fields = [_fields(point.cell.setting) for point in points]
    batches = [point.cell.global_batch for point in points]
    follow = {*OF_BATCH, "eval_every", *searched}
    for rule, betas in SCALED_BETAS.items():
        if all(one.get("lr_rule") == rule for one in fields):
            follow |= {*betas, "epsilon"}
    for name in DECAYS_PER_STEP:            # the same half-life in examples
        decays = [one.get(name) for one in fields]
        known = [half_life_of(decay, batch) for decay, batch in zip(decays, batches)
                 if isinstance(decay, float) and 0 < decay < 1]
        if len(known) == len(points) and _alike(known):
            follow.add(name)
    if all(one.get("ghost_batch") == point.cell.global_batch for one, point in zip(fields, points)):
        follow.add("ghost_batch")
    if all(one.get("optimizer") in DECOUPLED and one.get("weight_decay") and one.get("peak_lr") for one in fields):
        # the time scale of decoupled weight decay in examples, B / (rate decay)
        if _alike([batch / (one["peak_lr"] * one["weight_decay"]) for one, batch in zip(fields, batches)]):
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


def _alike(values: Sequence[float]) -> bool:
    return max(values) <= min(values) * (1 + 1e-9)


def _fields(setting: str) -> dict[str, Any]:
    """The fields of a setting by name; see analysis.trials.Trial.setting."""
    record = json.loads(setting)
    fields = {name.removeprefix("metaparameters/"): value for name, value in flat(record["problem"]).items()}
    return {**fields, "eval_every": record["eval_every"]}


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the fields that all have, and not all alike; an entry of a table may be missing."""
    counts = Counter(name for fields in settings for name in fields)        # in order of where each is met first
    return [name for name, count in counts.items() if ("." in name or count == len(settings))
            and len({json.dumps(one.get(name)) for one in settings}) > 1]


def _values(values: Sequence[Any]) -> str:
    numbers = all(type(value) in (int, float) and value == value for value in values)
    values = sorted(set(values)) if numbers else values
    shown = list(dict.fromkeys(map(show_value, values)))
    if len(shown) <= MOST_VALUES:
        return ", ".join(shown)
    return counted(len(shown), "value") + (f", {shown[0]} to {shown[-1]}" if numbers else "")


def show_value(value: object) -> str:
    if value is None or value != value:
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
