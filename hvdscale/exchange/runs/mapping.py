"""How runs are read as trials: a mapping, guessed from the runs, or written by the user in TOML.

    mapping = guess(runs)                       what names, parameters and known programs say
    mapping = read_mapping("runs.toml", mapping)     what the file says, else what was guessed
    mapping.as_toml()                           the file that says so

A setting of a run, such as its batch, is a constant, a parameter of the run, a pattern that is searched in its path, or
a constant for each part of a path: ``batch = 1024``, ``batch = {parameter = "batch_size"}``,
``batch = {pattern = 'b(\\d+)'}``, ``batch = {"sweet-sun-1" = 16, "dark-moon-2" = 32}``. Other parameters may multiply
one: ``workers = {parameter = "devices", times = ["num_nodes"]}``.
"""
from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from ...errors import UsageError
from ...formatting.toml import key_as_toml, value_as_toml
from ...log.directions import better
from ...log.schema import DIRECTIONS
from ...plan.settings import read_toml
from ...plan.values import did_you_mean
from ...target import SPLITS, logged_name, metric_faults
from .names import (ACCUMULATION, EPOCH_NAMES, EPOCHS, EXAMPLES, GLOBAL, KNOWN, LENGTHS, LOADERS, LOSSES, NODES,
                    PER_NODE, PER_WORKER, PLAIN, POINTS, RATES, REPORTS, STEP_NAMES, STEP_TIMES, TIMED, TIMES, TOKENS,
                    WORKERS, programs)
from .names import SETTINGS as NAMED_SETTINGS
from .run import WITHIN, FoundRun, is_number, value_of

UNITS = ("steps", "epochs", "examples", "tokens")
TIME_UNITS = {"s": 1.0, "ms": 1e-3, "minutes": 60.0, "hours": 3600.0, "days": 86400.0}
KEEPS = ("first", "last")
LOSS, RATE = "loss", "lr"           # tags that are columns of /steps
UNKNOWN = "unknown"
LEFT_OUT = "left out: "
SETTINGS = ("batch", "workers", "nodes", "accumulation", "seed", "dataset", "model", "optimizer")
GLOBAL_BATCH, WORKER_BATCH = PERS = ("global", "worker")            # what a batch is of
OLDER = {"step": GLOBAL_BATCH}      # an older word for it
WAYS = {way: name for name, way in DIRECTIONS.items()}           # min and max by the log's words
MOST_METRICS = 1000             # columns of metrics that a log takes
STAMP = 1e8                     # seconds from which a clock counts since 1970

_PATTERNS = {"batch": r"(?:^|[^a-zA-Z])(?:(?:global[-_]?)?batch(?:[-_]?size)?|gbs?|bsz?|b)[-_=]?(\d+)",
             "workers": r"(?:(?:^|[^a-zA-Z])(?:workers|gpus?|w)[-_=]?|(?<!\d)(?=\d+[-_]?(?:gpus?|workers)))(\d+)",
             "nodes": r"(?:^|[^a-zA-Z])(?:nodes?)[-_=]?(\d+)",
             "seed": r"(?:^|[^a-zA-Z])(?:seed|repeat|rep|s|r)[-_=]?(\d+)"}
_POINT = r"(?:^|[^a-zA-Z])(?:{})[-_=]?(\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+)"    # in a run's path: lr0.1, wd=1e-4
_SPLITS = {"train": "train", "training": "train", "tr": "train", "val": "val", "valid": "val", "validation": "val",
           "eval": "val", "evaluation": "val", "dev": "val", "heldout": "val", "test": "test", "testing": "test"}
_PARTS = re.compile(r"([/_ .]+)")
_OF_EVALUATION = re.compile(            # of a validation set, by MMEngine, Detectron2, Ultralytics and their kin
    r"(?:metrics|accuracy|bbox|segm|keypoints|coco|pascal_voc|sem_seg|panoptic_seg)/.+|"
    r"(?:(?:bbox|segm|proposal)_)?m?AP(?:\W?\d.*)?|"
    r"(?:(?:bbox|segm)_)mAP_.*|mIoU|aAcc|mAcc|mDice|zero_?shot.+|NDS|PQ")
_OF_RUN = re.compile(r"(?:steps?|iter|epochs?|lr|learning_rate|mfu|tps|t?flops|wps|wpb|ups|bsz|wall|memory|mem|gpu_mem|"
                     r"max_mem|grad_?norm|gnorm|num_updates|loss_scale|eta|n_parameters|runtime|throughput)"
                     r"(?:[/_ .]|$).*|.*(?:time|seconds|per_second|per_sec|_sec|_per_s)", re.I)
_WORD = re.compile(r"[^A-Za-z]+|(?<=[a-z])(?=[A-Z])")
_OF_CLOCK = {*("total train training elapsed wall run relative cumulative since start clock time walltime runtime "
               "duration in fit").split()}
_UNIT_NAMES = {name: unit for unit, names in {
    "s": "s sec secs second seconds", "ms": "ms milliseconds", "minutes": "m min mins minute minutes",
    "hours": "h hr hrs hour hours", "days": "d day days"}.items() for name in names.split()}


@dataclass(frozen=True)
class Source:
    """Where a setting of a run comes from; one of the first three is given.

    value   a constant, or constants by a part of the run's path
    times   parameters that multiply the parameter, as far as they are counts;  over: one that divides it
    nominal examples to which passes of smaller batches are accumulated, or the parameter of these
    """

    value: Any = None
    parameter: str | None = None
    pattern: str | None = None
    times: tuple[str, ...] = ()
    over: str = ""
    nominal: str | int = 0

    def of(self, run: FoundRun) -> Any:
        """The setting of a run; None where the run does not have it."""
        if self.parameter is not None:
            value = run.parameters.get(self.parameter)
            whole = int(value) if isinstance(value, float) and value.is_integer() else value
            return self._scaled(whole, run) if self.times or self.over or self.nominal else whole
        if self.pattern is not None:
            found = re.findall(self.pattern, run.path)
            return value_of(found[-1]) if found else None
        if isinstance(self.value, dict):
            return self.value.get(max((part for part in self.value if part in run.path), key=len, default=None))
        return self.value

    def _scaled(self, value: Any, run: FoundRun) -> int | None:
        count, over = count_of(value), count_of(run.parameters.get(self.over)) or 1
        if count is None:
            return None
        for name in self.times:
            count *= count_of(run.parameters.get(name)) or 1
        nominal = self.nominal if isinstance(self.nominal, int) else count_of(run.parameters.get(self.nominal)) or 0
        return count * max(1, round(nominal / count)) // over if over == 1 or count % over == 0 else None

    def as_toml(self) -> str:
        if self.parameter is not None:
            given = {"parameter": self.parameter, "times": list(self.times), "over": self.over, "nominal": self.nominal}
            return value_as_toml({name: value for name, value in given.items() if value})
        return value_as_toml(self.value if self.pattern is None else {"pattern": self.pattern})


def count_of(value: Any) -> int | None:
    """A count from 1, be it a number or the length of a list such as ``[0, 1]``; None for anything else."""
    if isinstance(value, str) and re.fullmatch(r"\[\d+(?:, ?\d+)*\]|\d+(?:, ?\d+)+", value.strip()):
        return value.count(",") + 1
    if is_number(value) and 1 <= value < 2**53 and value == int(value):
        return int(value)
    return None


@dataclass(frozen=True)
class Metric:
    """A column ``split/metric`` and which way it gets better: "min", "max" or "" (not known)."""

    column: str
    way: str


@dataclass(frozen=True)
class RunMapping:
    """How runs are read; the fields up to ``steps`` are the keys of the file.

    evidence    why batch and workers were taken as they are
    """

    settings: Mapping[str, Source] = field(default_factory=dict)
    batch_per: str = GLOBAL_BATCH           # or WORKER_BATCH: times the workers and the accumulation
    step: str | int = ""                    # the tag of steps, or those of every run in a table of their ends
    step_unit: str = "steps"
    step_offset: float = 0
    within: str = ""                        # the tag that counts the steps of an epoch, where steps are in epochs
    train_examples: int | None = None       # an epoch
    tokens_per_example: int | None = None
    seconds: str = ""                       # the tag of seconds since the start
    step_seconds: str = ""                  # the tag of one step's seconds, which goes before
    time_unit: str = "s"                    # of both
    keep: str = "last"                      # of rows that repeat a step
    search: bool | None = None              # None: where metaparameters vary within a batch
    metaparameters: Mapping[str, Source] = field(default_factory=dict)
    tags: Mapping[str, Metric] = field(default_factory=dict)
    steps: Mapping[str, str] = field(default_factory=dict)      # tag by column of /steps: loss, lr
    evidence: Mapping[str, str] = field(default_factory=dict, compare=False)

    def as_toml(self) -> str:
        """The mapping as a file to edit."""
        from jinja2 import Environment, PackageLoader, StrictUndefined
        page = Environment(loader=PackageLoader(__package__, ""), trim_blocks=True, undefined=StrictUndefined)
        page.filters |= {"quoted": value_as_toml, "key": key_as_toml}
        return page.get_template("mapping.toml.jinja").render(vars(self)).rstrip("\n")


def guess(runs: Sequence[FoundRun]) -> RunMapping:
    """What the runs' names, parameters, programs and tags say; what they leave open is missing."""
    tags = dict.fromkeys(tag for run in runs for tag in run.tags)
    settings, per, evidence = _guess_counts(runs)
    settings |= {name: source for name, keys in NAMED_SETTINGS.items() if (source := _guess_setting(name, keys, runs))}
    folder = os.path.commonpath([os.path.abspath(run.path) for run in runs])
    named = os.path.basename(folder if len(runs) > 1 else os.path.dirname(folder)) or UNKNOWN
    for name, value in (("seed", UNKNOWN), ("dataset", named), ("model", UNKNOWN), ("optimizer", UNKNOWN)):
        settings.setdefault(name, Source(value))
    step, unit, within = _guess_step(runs, tags)
    loss = _first(LOSSES, tags) if unit == "steps" or within else ""
    rate = _first(RATES, tags) or next((tag for tag in tags if tag.startswith("lr-") or tag.endswith("/lr")), "")
    seconds, time_unit = _guess_clock(runs, [tag for tag in tags if tag != step])
    used = {loss, rate, step, within, seconds}
    metrics = dict(islice(((tag, metric) for tag in tags if tag not in used and (metric := _guess_metric(tag, tags))),
                          MOST_METRICS))
    if unit == "epochs" and not loss and (plain := _first(("loss", "Loss"), tags)):
        metrics[plain] = Metric("train/loss", "min")
    elif loss and not metrics:
        metrics[loss] = Metric("train/loss", "min")
    metrics = _without_sums(metrics, runs)
    mapping = RunMapping(settings, per, step, unit, 0, within, seconds=seconds, time_unit=time_unit,
                         step_seconds=_first(STEP_TIMES, tags), tags=metrics, metaparameters=_guess_points(runs),
                         steps={name: tag for name, tag in ((LOSS, loss), (RATE, rate)) if tag}, evidence=evidence)
    return replace(mapping, step_offset=_guess_offset(runs, mapping), train_examples=_guess_examples(runs))


def _without_sums(metrics: Mapping[str, Metric], runs: Sequence[FoundRun]) -> dict[str, Metric]:
    """Without tags that stand in one row a run, where another of the same column stands in more: they sum the run up.
    """
    often = {tag for run in runs for tag, series in run.series.items() if len(series.rows) > 1}
    columns = {metric.column for tag, metric in metrics.items() if tag in often}
    return {tag: metric for tag, metric in metrics.items() if tag in often or metric.column not in columns}


def _first(names: Iterable[str], there: Iterable[str]) -> str:
    """The first of the names that is there; "" where none is."""
    there = set(there)
    return next((name for name in names if name in there), "")


def _guess_counts(runs: Sequence[FoundRun]) -> tuple[dict[str, Source], str, dict[str, str]]:
    """(settings of batch, workers, nodes and accumulation; whose the batch is; why)."""
    found: dict[str, Source] = {}
    batch, per, why = _guess_batch(runs)
    evidence = {"batch": why}
    if batch:
        found["batch"] = batch
    accumulation = _counted(ACCUMULATION, runs)
    if accumulation and not (batch and accumulation in batch.times):
        found["accumulation"] = Source(parameter=accumulation)
    nodes, per_node = _counted(NODES, runs), _counted(PER_NODE, runs)
    if workers := _counted(WORKERS, runs):
        found["workers"] = Source(parameter=workers)
    elif per_node:
        found["workers"] = Source(parameter=per_node, times=(nodes,) if nodes else ())
    elif pattern := _in_paths("workers", runs):
        found["workers"] = pattern
    if nodes := Source(parameter=nodes) if nodes else _in_paths("nodes", runs):
        found["nodes"] = nodes
    loaders = [name for name in LOADERS if any(name in run.parameters for run in runs)]
    if loaders and "workers" not in found:
        evidence["loaders"] = (f"{' and '.join(loaders)} count the processes of a loader in most programs, so that "
                               "they are not taken for workers")
    return found, per, evidence


def _guess_batch(runs: Sequence[FoundRun]) -> tuple[Source | None, str, str]:
    """(where the batch comes from, whose it is, why)."""
    known = [program for program in programs() if all(program.marks(run.parameters, run.files) for run in runs)]
    known = [program for program in known if _counted((program.batch,), runs)]
    whole = next((program for program in known if program.per == GLOBAL_BATCH), None)
    name = _counted(GLOBAL, runs)
    if name and not (whole and whole.over):
        return Source(parameter=name), GLOBAL_BATCH, f"{name} is that of a step over all workers, by its name"
    if whole or known:
        program = whole or known[0]
        source = Source(parameter=program.batch, times=program.times, over=program.over, nominal=program.nominal)
        whose = "a worker" if program.per == WORKER_BATCH else "a step over all workers"
        more = f", accumulated up to {program.nominal} examples" if program.nominal else ""
        return source, program.per, f"{program.batch} is that of {whose}, as in {program.name}{more}"
    if name := _counted(PLAIN, runs):
        return Source(parameter=name), GLOBAL_BATCH, (
            f"nothing says whose batch {name} is; it is taken for that of a step over all workers; --batch-per worker "
            "says otherwise")
    if pattern := _in_paths("batch", runs):
        return pattern, GLOBAL_BATCH, ("it is of the names of the runs, which do not say whose it is, and is taken for "
                                       "that of a step over all workers; --batch-per worker says otherwise")
    name = _counted(PER_WORKER, runs)
    return Source(parameter=name) if name else None, WORKER_BATCH if name else GLOBAL_BATCH, (
        f"{name} is that of a worker, by its name")


def _counted(names: Iterable[str], runs: Sequence[FoundRun]) -> str:
    """The first parameter of these names that is a count in every run; "" where there is none."""
    return next((name for name in names if all(count_of(run.parameters.get(name)) for run in runs)), "")


def _in_paths(name: str, runs: Sequence[FoundRun]) -> Source | None:
    """The pattern of a setting, where it is in every path."""
    pattern = _PATTERNS[name]
    return Source(pattern=pattern) if all(re.search(pattern, run.path) for run in runs) else None


def _guess_setting(name: str, keys: Sequence[str], runs: Sequence[FoundRun]) -> Source | None:
    """A parameter that every run has, else a pattern that is in every path."""
    key = next((key for key in keys if all(run.parameters.get(key) is not None for run in runs)), None)
    if key is not None:
        return Source(parameter=key)
    return _in_paths(name, runs) if name in _PATTERNS else None


def _guess_points(runs: Sequence[FoundRun]) -> dict[str, Source]:
    there = {key for run in runs for key, value in run.parameters.items() if isinstance(value, (int, float))}
    found = {}
    for name, keys in POINTS.items():
        pattern = _POINT.format("|".join(map(re.escape, keys)))
        if key := _first(keys, there):
            found[name] = Source(parameter=key)
        elif all(re.search(pattern, run.path) for run in runs):
            found[name] = Source(pattern=pattern)
    return found


def _guess_examples(runs: Sequence[FoundRun]) -> int | None:
    found = {run.parameters.get("train_examples") for run in runs}
    value = found.pop() if len(found) == 1 else None
    return value if isinstance(value, int) and value > 0 else None


def _guess_step(runs: Sequence[FoundRun], tags: Collection[str]) -> tuple[str, str, str]:
    """(the tag that counts, its unit, the tag that counts the steps within an epoch): one that falls back whenever the
    epoch rises counts no steps of the run."""
    epoch = _first(EPOCH_NAMES, tags)
    found = [name for name in STEP_NAMES if name in tags]
    within = [name for name in found if epoch and any(_starts_anew(run, name, epoch) for run in runs)]
    step = next((name for name in found if name not in within), "")
    if step and not (within and step == "_step"):
        return step, "steps", ""
    if epoch:
        return epoch, "epochs", WITHIN if WITHIN in tags else next(iter(within), "")
    rising = [tag for tag in tags if any(len(set(run.series[tag].values[:2])) > 1 for run in runs if tag in run.series)]
    for names, unit, there in ((EXAMPLES, "examples", rising), (TOKENS, "tokens", rising), (REPORTS, "steps", tags),
                               (LENGTHS, "steps", tags), (EPOCHS, "epochs", tags)):
        if name := _first(names, there):
            return name, unit, ""
    return "", "steps", ""


def _starts_anew(run: FoundRun, step: str, epoch: str) -> bool:
    """Whether a counter falls whenever the epoch rises."""
    steps, epochs = run.spread(step), run.spread(epoch)
    both = ~np.isnan(steps) & ~np.isnan(epochs)
    rises = np.diff(epochs[both]) > 0
    return bool(rises.any() and (np.diff(steps[both])[rises] < 0).all())


def _guess_clock(runs: Sequence[FoundRun], tags: Sequence[str]) -> tuple[str, str]:
    """(the tag of the time since the start, its unit): a known name, else one of words of time under which numbers rise
    as a clock does."""
    if known := _first((*TIMED, *TIMES), tags):
        return known, "s"
    for tag in tags:
        words = [word for word in _WORD.split(tag[:100]) if word]
        if any(len(word) > 2 for word in words) and all(
                word.lower() in _OF_CLOCK or word.lower() in _UNIT_NAMES for word in words) and all(
                _is_clock(run.series[tag].values) for run in runs if tag in run.series):
            return tag, _UNIT_NAMES.get(words[-1].lower(), "s")
    return "", "s"


def _is_clock(values: np.ndarray) -> bool:
    return len(values) > 1 and bool((np.diff(values) < 0).mean() <= 0.1 and (
        np.nanmax(values) >= 1.5 * values[0] or values[0] > STAMP))


def _guess_metric(tag: str, tags: Collection[str]) -> Metric | None:
    """The column of a tag that names a split, or is known to be of an evaluation, and its better way by its name."""
    if tag in KNOWN:
        return Metric(KNOWN[tag], "min")
    parts = _PARTS.split(tag)               # names, and what separates them
    splits = [_SPLITS[part.lower()] for part in parts[::2] if part.lower() in _SPLITS]
    split = next(iter(splits), "")
    if split:
        kept = [part + mark for part, mark in zip(parts[::2], (*parts[1::2], "")) if part.lower() not in _SPLITS]
        name = "".join(kept).strip("/_ .").removeprefix("metrics/")
    elif _OF_EVALUATION.fullmatch(tag):
        split, name = "val", tag.removeprefix("metrics/")
    elif any(f"{val}{tag}" in tags for val in ("val_", "val/", "valid_", "eval_")) and better(f"train/{tag}"):
        split, name = "train", tag
    else:
        return None
    name = logged_name(name.removesuffix("_epoch"))
    if not name or name.endswith("_step") or _OF_RUN.fullmatch(name) or metric_faults([name]):
        return None
    way = better(f"{split}/{name}")
    if not way and parts[0].lower() not in _SPLITS and not _OF_EVALUATION.fullmatch(tag):
        return None
    return Metric(f"{split}/{name}", WAYS[way] if way else "")


def _guess_offset(runs: Sequence[FoundRun], mapping: RunMapping) -> int:
    """1 where steps count from 0: where measurements lie before round numbers, or a loss was logged at step 0."""
    if all(run.counts_done for run in runs):
        return 0
    steps = [(run, run.spread(mapping.step)) for run in runs if mapping.step in run.series]
    votes = [_before_round(at[run.series[tag].rows]) for run, at in steps
             for tag in (*mapping.tags, *mapping.steps.values()) if tag in run.series]
    if any(votes) and not mapping.within:
        return int(sum(votes) > 0)
    trained = {mapping.steps.get(LOSS), *(tag for tag, metric in mapping.tags.items()
                                          if metric.column.startswith("train/") and mapping.step_unit == "epochs")}
    return int(any((at[run.series[tag].rows] == 0).any() for run, at in steps for tag in trained if tag in run.series))


def _before_round(steps: np.ndarray) -> int:
    """1 where a tag was logged at steps such as 49 and 99, -1 at such as 50 and 100, 0: neither."""
    found = steps[np.isfinite(steps) & (abs(steps) < 2**53)].astype(np.int64)
    if not len(found) or found.min() == found.max():
        return 0
    before, at = np.gcd.reduce(found + 1), np.gcd.reduce(found)
    return int(before > at) - int(at > before)


def read_mapping(path: str, guessed: RunMapping, runs: Sequence[FoundRun]) -> RunMapping:
    """What a file says, and where it is silent what was guessed; raises UsageError that names every wrong key."""
    given = read_toml(path)
    wrong = [f"{path}: there is no key {key!r}: {did_you_mean(key, _KEYS, 'there are ' + ', '.join(_KEYS))}"
             for key in given if key not in _KEYS]
    mapping = guessed
    for key, value in given.items():
        if key in _KEYS:
            try:
                mapping = replace(mapping, **_fields_of(key, value, mapping))
            except _WrongValueError as error:
                wrong.append(f"{path}: {error}")
    tags = {tag for run in runs for tag in run.tags}
    named = [*mapping.tags, *mapping.steps.values(), mapping.seconds, mapping.step_seconds, mapping.within]
    if isinstance(mapping.step, str):
        named.append(mapping.step)
    wrong += [f"{path}: no run has the tag {tag!r}: {did_you_mean(tag, tags, 'there are ' + ', '.join(sorted(tags)))}"
              for tag in dict.fromkeys(named) if tag and tag not in tags]
    if wrong:
        raise UsageError("\n".join(wrong))
    return mapping


def read_lines(path: str) -> re.Pattern | None:
    """The file's pattern of the lines of text files, if it has one; raises UsageError for what is none."""
    text = read_toml(path).get("lines")
    if text is None:
        return None
    try:
        pattern = re.compile(text)
    except (TypeError, re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"{path}: lines is {text!r}, not a regular expression: {error}") from None
    if "step" not in pattern.groupindex or len(pattern.groupindex) < 2:
        raise UsageError(f"{path}: lines is {text!r}; it names the step and tags, such as "
                         r"'it (?P<step>\d+) .* loss (?P<val_loss>\S+)'")
    return pattern


def given_settings(mapping: RunMapping, given: Mapping[str, Source], batch_per: str | None = None) -> dict[str, Any]:
    """The fields of a mapping whose settings a user says, so that there is no evidence of them."""
    gone = {*given, *(("loaders",) if "workers" in given else ()), *(("batch",) if batch_per else ())}
    return {"settings": {**mapping.settings, **given},
            "evidence": {name: why for name, why in mapping.evidence.items() if name not in gone}}


class _WrongValueError(Exception):
    """A value that its key cannot have."""


def _source(key: str, value: Any) -> Source:
    if isinstance(value, (bool, int, float, str)):
        return Source(value)
    if isinstance(value, dict) and value:
        given = {"parameter": str, "pattern": str, "times": list, "over": str, "nominal": (int, str)}
        if set(value) & {"parameter", "pattern"}:
            try:
                if set(value) == {"pattern"} and re.compile(value["pattern"]).groups == 1:
                    return Source(**value)
            except (re.error, TypeError, RecursionError, OverflowError) as error:
                raise _WrongValueError(f"{key}: the pattern {value['pattern']!r} is none: {error}") from None
            if "pattern" not in value and set(value) <= set(given) and all(
                    isinstance(one, given[name]) for name, one in value.items()):
                return Source(**{**value, "times": tuple(map(str, value.get("times", ())))})
        elif all(isinstance(one, (bool, int, float, str)) for one in value.values()):
            return Source(value)
    raise _WrongValueError(f"{key} is {repr(value)[:80]}, not a constant, {{parameter = \"name\"}}, "
                           "{pattern = 'text with one (group)'} or {\"part of a path\" = constant}")


def _fields_of(key: str, value: Any, mapping: RunMapping) -> dict:
    """The fields of the mapping that a key of the file sets."""
    if key in SETTINGS:
        return given_settings(mapping, {key: _source(key, value)})
    if key == "lines":                      # see read_lines
        return {}
    rule, what = _PLAIN.get(key, (lambda value: isinstance(value, dict), "a table"))
    value = OLDER.get(value, value) if key == "batch_per" and isinstance(value, str) else value
    if not rule(value):
        raise _WrongValueError(f"{key} is {repr(value)[:80]}, not {what}")
    if key == "batch_per":
        return {key: value, "evidence": given_settings(mapping, {}, value)["evidence"]}
    if key == "metaparameters":
        return {key: {name: _source(f"{key}.{name}", one) for name, one in value.items()}}
    if key == "steps" and not (set(value) <= {LOSS, RATE} and all(isinstance(tag, str) for tag in value.values())):
        raise _WrongValueError(f"{key} has {', '.join(value)}; it takes {LOSS} and {RATE}, each with the name of a tag")
    return {key: _metrics(value) if key == "tags" else value}


def _metrics(tags: Mapping[str, Any]) -> dict[str, Metric]:
    found = {}
    for tag, text in tags.items():
        column, _, way = text.rpartition(" ") if isinstance(text, str) and text.endswith((" min", " max")) else (
            str(text), "", "")
        split, _, name = column.partition("/")
        if split not in SPLITS or not name or metric_faults([name]):
            raise _WrongValueError(f"tags.{tag} is {text!r}, not split/metric (of {', '.join(SPLITS)}) with min or "
                                   "max, such as 'val/error min'")
        found[tag] = Metric(column, way)
    return found


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


_PLAIN: dict[str, tuple] = {
    **dict.fromkeys(("seconds", "step_seconds", "within"), (lambda value: isinstance(value, str), "the name of a tag")),
    "time_unit": (lambda value: isinstance(value, str) and value in TIME_UNITS, f"one of {', '.join(TIME_UNITS)}"),
    "step": (lambda value: isinstance(value, str) or _is_count(value), "the name of a tag, or a number of steps"),
    "batch_per": (lambda value: value in PERS, " or ".join(PERS)),
    "step_unit": (lambda value: value in UNITS, f"one of {', '.join(UNITS)}"),
    "keep": (lambda value: value in KEEPS, "first or last"),
    "step_offset": (lambda value: type(value) in (int, float), "a number"),
    **dict.fromkeys(("train_examples", "tokens_per_example"), (_is_count, "a whole number, 1 or more")),
    "search": (lambda value: isinstance(value, bool), "true or false")}
_KEYS = (*SETTINGS, *_PLAIN, "metaparameters", "steps", "tags", "lines")


def way_of(metric: Metric) -> str:
    """Which way it gets better, in the log's words."""
    return DIRECTIONS.get(metric.way, better(metric.column))


def accounts(runs: Sequence[FoundRun], mapping: RunMapping, reasons: bool = True) -> dict[str, str]:
    """What every tag, column and file of the runs is used for, or why it is left out, by its name.

    reasons  why, too, which takes a while for many tags
    """
    used = {mapping.step: "step", mapping.within: "step within the epoch", mapping.seconds: "seconds since the start",
            mapping.step_seconds: "seconds of a step", **{tag: f"steps/{name}" for name, tag in mapping.steps.items()}}
    sources = [*mapping.settings.items(), *mapping.metaparameters.items()]
    of_settings = {source.parameter: name for name, source in sources if source.parameter}
    found: dict[str, str] = {}
    for tag in dict.fromkeys(tag for run in runs for tag in run.tags):
        if tag in mapping.tags:
            metric = mapping.tags[tag]
            found[tag] = f"{metric.column} {metric.way or '(better way unknown)'}"
        elif used.get(tag):
            found[tag] = used[tag]
        elif tag in of_settings:
            found[tag] = f"the setting {of_settings[tag]}"
        else:
            found[tag] = f"{LEFT_OUT}{_why_left_out(tag) if reasons else ''}"
    found |= {name: LEFT_OUT + why for run in runs for name, why in (run.left_out or {}).items() if name not in found}
    return found


def _why_left_out(tag: str) -> str:
    if _guess_metric(tag, ()):
        return "another tag has its column, or there are too many"
    name = "".join(_PARTS.split(tag)[-1:])
    of_run = _OF_RUN.fullmatch(name) or _OF_RUN.fullmatch(tag)
    return "of the run, not of its quality" if of_run else "it names no split"
