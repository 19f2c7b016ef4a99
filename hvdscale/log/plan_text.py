"""A trial's plan as a log has it: JSON text, and what its readers may count on.

    plan = read_plan(text)          {} of a text that is no JSON object: a log from elsewhere has none
    plan["sweep"]["space"]          where the part is there, its entries have the types they are written with

Where they have not, a LogError says which entry; whoever calls adds the log and the trial (see ``plan_at``).
"""

import contextlib
import json
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..errors import HvdscaleError, LogError
from ..target import Target
from .files import first_line

DEEPEST = 40                    # of what lies within each other; a plan has four or five
MOST_DRAWS = 1_000_000          # of a study
MOST = 2 ** 53                  # of a whole number
LONGEST_VALUE = 60              # characters of one in a message


class Rule(NamedTuple):
    """What an entry may be: whether a value is of that kind, where what it raises says no; in words; or null."""

    holds: Callable[[Any], Any]
    words: str
    or_null: bool = False


def is_whole(value: Any, least: int = -MOST) -> bool:
    """Whether it is a whole number from ``least`` to MOST, and no flag."""
    return type(value) is int and least <= value <= MOST


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) < 1e300


def _pairs(value: Any) -> bool:
    if not isinstance(value, list) or not all(isinstance(one, list) and len(one) == 2 for one in value):
        return False
    starts = [start for start, _ in value]
    return (all(map(is_whole, starts)) and starts[:1] in ([], [0]) and all(a < b for a, b in zip(starts, starts[1:]))
            and all(_number(number) and number > 0 for _, number in value))


NUMBER = Rule(_number, "a finite number")
WHOLE = Rule(is_whole, "a whole number")
COUNT = Rule(lambda value: is_whole(value, 0), "a whole number, 0 or more")
TEXT = Rule(lambda value: isinstance(value, str), "a text")
FLAG = Rule(lambda value: isinstance(value, bool), "true or false")
OBJECT = Rule(lambda value: isinstance(value, dict), "an object")
STEPS = Rule(lambda value: isinstance(value, list) and all(map(is_whole, value)), "a list of whole numbers")
GOAL = Rule(lambda value: value == "" or Target.parse(value), "a target, such as val/error<0.01")
GOALS = Rule(lambda value: isinstance(value, list) and all(map(Target.parse, value)), "a list of targets")
BATCHES = Rule(lambda value: value != [] and _pairs(value) and all(is_whole(batch) for _, batch in value),
               "a list of (first step, batch) pairs, in order from step 0")
FACTORS = Rule(_pairs, "a list of (first step, factor) pairs, in order from step 0")
REPLICAS = Rule(lambda value: isinstance(value, dict) and all(is_whole(value.get(name), 1) for name in (
    "replicas", "sync_every")), "an object with whole numbers above 0 as replicas and sync_every")
NUMBER_OR_NULL, COUNT_OR_NULL, OBJECT_OR_NULL = (rule._replace(or_null=True) for rule in (NUMBER, COUNT, OBJECT))

OF_SEARCH = ("sweep", "archive", "search")      # parts, any of which says that a trial is a draw of metaparameters
PARTS = ("problem", "measurement", "execution", "job", "asked", "sweep", "branch")
ENTRIES: dict[str, dict[str, Rule]] = {
    "problem": {
        **dict.fromkeys(("peak_lr", "start_lr", "decay_factor", "end_lr_factor"), NUMBER),
        **dict.fromkeys(("warmup_steps", "decay_steps"), COUNT), **dict.fromkeys(("warmup", "decay"), TEXT),
        "decay_at": STEPS, "seed": WHOLE._replace(or_null=True), "lr_rule": TEXT._replace(or_null=True),
        **dict.fromkeys(("train_examples", "global_batch", "ghost_batch", "base_batch", "decay_start"), COUNT_OR_NULL),
        **dict.fromkeys(("base_lr", "lr_factor", "momentum", "weight_decay", "label_smoothing"), NUMBER_OR_NULL),
        "batch_schedule": BATCHES._replace(or_null=True), "batch_lr_factors": FACTORS._replace(or_null=True),
        **dict.fromkeys(("batch_updates", "plateau"), OBJECT_OR_NULL), "local_steps": REPLICAS._replace(or_null=True)},
    "measurement": {
        "target": GOAL._replace(or_null=True), "keep_going": FLAG._replace(or_null=True),
        **dict.fromkeys(("eval_every", "train_tokens", "fixed_examples", "budget_steps"), COUNT_OR_NULL),
        **dict.fromkeys(("eval_every_examples", "budget_seconds"), NUMBER_OR_NULL)},
    "execution": {
        **dict.fromkeys(("local_workers", "cores"), COUNT),
        **dict.fromkeys(("workers", "local_batch", "accumulate", "untimed_passes", "threads"), COUNT_OR_NULL)},
    "job": dict.fromkeys(("source", "defaults", "model", "data", "accepted"), OBJECT),
    "asked": {},
}
SWEEP: dict[str, Rule] = {
    "study": TEXT, "objective": TEXT, "targets": GOALS, "point": OBJECT, "seed": WHOLE, "repeat": COUNT,
    **dict.fromkeys(("draw", "trials", "max_draws"), Rule(lambda value: is_whole(value, 0) and value <= MOST_DRAWS,
                                                          f"a whole number from 0 to {MOST_DRAWS:,}")),
    "prune_keep": COUNT_OR_NULL, "space": Rule(lambda value: isinstance(value, list), "a list of parameters")}
BRANCH: dict[str, Rule] = {
    **dict.fromkeys(("base", "rule", "metric", "tolerance"), TEXT), "rate": NUMBER,
    **dict.fromkeys(("step", "examples", "order"), COUNT),
    **dict.fromkeys(("base_batch", "factor", "length"), Rule(lambda value: is_whole(value, 1),
                                                             "a whole number, 1 or more"))}


@lru_cache(maxsize=512)
def read_plan(text: str, must_be_json: bool = False) -> dict[str, Any]:
    """The plan that a text holds, not to be changed; {} of one that is no JSON object, or LogError where it must be.
    LogError, naming the entry, where one is not of the type that it is written with."""
    try:
        plan, wrong = json.loads(text), f"plan is JSON, but no object: {text[:40]!r}"
    except (ValueError, RecursionError) as error:
        plan, wrong = None, f"plan is not JSON: {first_line(error)}"
    if not isinstance(plan, dict):
        if must_be_json:
            raise LogError(wrong)
        return {}
    if is_deeper(plan, DEEPEST):
        raise LogError(f"its plan is nested deeper than {DEEPEST} times")
    for part in PARTS:
        value = plan.get(part)
        if value is not None and not isinstance(value, dict):
            raise LogError(f"its plan has {format_value(value)} as {part!r}, where an object belongs")
    for part, rules in ENTRIES.items():
        _refuse_wrong(part, plan.get(part) or {}, rules)
    if sweep := plan.get("sweep"):
        _refuse_wrong("sweep", sweep, SWEEP, needed=True)
        if sweep["objective"] != "steps" and not isinstance(sweep.get("minimizes"), bool):
            raise LogError(f"its plan does not say whether the sweep's objective {format_value(sweep['objective'])} is "
                           "to be small: sweep.minimizes is true or false")
        for parameter in sweep["space"]:
            _check_parameter(parameter, sweep["point"])
        floats = {name: value for name, value in sweep["point"].items() if isinstance(value, float)}
        _refuse_wrong("sweep.point", floats, dict.fromkeys(floats, NUMBER))
    if plan.get("branch"):
        _refuse_wrong("branch", plan["branch"], BRANCH, needed=True)
    return plan


def plan_at(path: str, trial: int, text: str) -> dict[str, Any]:
    """``read_plan``, its errors naming the log and the trial."""
    try:
        return read_plan(text)
    except LogError as error:
        raise LogError(f"{path}: trial {trial}: {error}; 'hvdscale-log show {path} --trial {trial} --plan' shows it"
                       ) from error


def _refuse_wrong(part: str, entries: Mapping[str, Any], rules: Mapping[str, Rule], needed: bool = False) -> None:
    """LogError for entries that break their rule, and where ``needed`` for those that are missing."""
    for name in rules if needed else ():
        if name not in entries:
            raise LogError(f"its plan has a {part} without its {name!r}")
    for name, value in entries.items():
        rule = rules.get(name)
        if rule is None or value is None and rule.or_null:
            continue
        holds = False
        with contextlib.suppress(TypeError, HvdscaleError):
            holds = rule.holds(value)
        if not holds:
            or_null = ", or null" if rule.or_null else ""
            raise LogError(f"its plan has {format_value(value)} as {part}.{name}, where {rule.words}{or_null} belongs")


def _check_parameter(parameter: Any, point: Mapping[str, Any]) -> None:
    """One dimension of the space, and the point drawn in it."""
    def wrong(what: str) -> LogError:
        return LogError(f"its plan has {format_value(parameter)} in sweep.space, {what}")
    if not isinstance(parameter, dict) or not isinstance(parameter.get("name"), str):
        raise wrong("which is no parameter with a name")
    value = point.get(parameter["name"])
    if parameter.get("type") == "discrete":
        values = parameter.get("values")
        if not isinstance(values, list) or not values or any(isinstance(one, (dict, list)) for one in values):
            raise wrong("which has no list of values")
        if any(isinstance(one, float) and not _number(one) for one in values):
            raise wrong("whose values are not all finite")
        if parameter["name"] in point and value not in values:
            raise wrong(f"and {format_value(value)} as its value, which is none of these")
        return
    if set(parameter) != {"name", "type", "scale", "low", "high"} or parameter["type"] not in ("double", "integer"):
        raise wrong("which is no parameter with a type, a scale, low and high")
    low, high, scale = (parameter[name] for name in ("low", "high", "scale"))
    if not (_number(low) and _number(high) and low <= high):
        raise wrong("whose bounds are not two numbers in order")
    if scale not in ("linear", "log", "reverse_log") or scale == "log" and low <= 0 or (
            scale == "reverse_log" and high >= 1):
        raise wrong("which has no scale that holds its bounds")
    if parameter["name"] in point and not _number(value):
        raise wrong(f"and {format_value(value)} as its value, where a finite number belongs")


def is_deeper(value: dict[str, Any] | list[Any], most: int) -> bool:
    """Whether lists and objects lie in each other deeper than ``most`` times."""
    level = [value]
    for _ in range(most):
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)
                 if isinstance(inner, (dict, list))]
        if not level:
            break
    return bool(level)


def format_value(value: object) -> str:
    """A value as JSON for messages, cut off where it is long."""
    text = json.dumps(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


def count_nans(metrics: Mapping[str, np.ndarray], measurement: Mapping[str, Any]) -> dict[str, int]:
    """At how many of a trial's evaluations a metric was NaN, by ``split/metric``; those that never were are left out.

    metrics      ``split/metric`` -> the trial's column of /evaluations, NaN where a split was not evaluated, too
    measurement  that part of its plan: eval_splits says which splits each evaluation measures. A test split without
                 examples shows as one without a finite value; a target is never measured on such a one
    """
    named = measurement.get("eval_splits") or ()
    target = measurement.get("target")
    known = {"train", "val", *([Target.parse(target).split] if named and target else [])}
    known |= {name.partition("/")[0] for name, values in metrics.items() if np.isfinite(values).any()}
    counts = {name: int(np.isnan(values).sum()) for name, values in metrics.items()
              if name.partition("/")[0] in known.intersection(named)}
    return {name: count for name, count in counts.items() if count}
