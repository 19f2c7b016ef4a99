"""How runs are read as trials: a mapping, guessed from the runs, or written by the user in TOML.

    mapping = guess(runs)                       what names and parameters say
    mapping = read_mapping("runs.toml", mapping)     what the file says, else what was guessed
    mapping.as_toml()                           the file that says so

A setting of a run, such as its batch, is a constant, a parameter of the run, a pattern that is searched in its path, or
a constant for each part of a path: ``batch = 1024``, ``batch = {parameter = "batch_size"}``,
``batch = {pattern = 'b(\\d+)'}``, ``batch = {"sweet-sun-1" = 16, "dark-moon-2" = 32}``.
"""
from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import UsageError
from ...formatting.toml import key_as_toml, value_as_toml
from ...log.schema import DIRECTIONS, better
from ...plan.settings import read_toml
from ...plan.values import did_you_mean
from ...target import SPLITS, logged_name, metric_faults
from .run import SECONDS, STEP, FoundRun, value_of

UNITS = ("steps", "epochs", "examples", "tokens")
KEEPS = ("first", "last")
LOSS, RATE = "loss", "lr"           # tags that are columns of /steps
UNKNOWN = "unknown"
SETTINGS = ("batch", "workers", "nodes", "accumulation", "seed", "dataset", "model", "optimizer")
STEP_BATCH, WORKER_BATCH = PERS = ("step", "worker")            # what a batch is of
WAYS = {way: name for name, way in DIRECTIONS.items()}           # min and max by the log's words

# names of tags and parameters, the likeliest first
STEP_NAMES = (STEP, "trainer/global_step", "train/global_step", "global_step", "Step", "steps", "iteration", "iter",
              "current_steps", "num_updates", "_step")
EPOCH_NAMES = ("epoch", "Epoch")
REPORTS = ("training_iteration",)       # reports to Ray, be it of a step or of an epoch
_LENGTHS = ("max_steps", "num_steps", "train_steps", "total_steps")     # of whole runs, in tables with a row a run
_EPOCHS = ("epochs", "num_epochs", "max_epochs", "n_epochs", "num_train_epochs")
BATCH_NAMES = ("global_batch", "global_batch_size", "global batch size", "total_batch_size", "train_batch_size",
               "batch_size", "batch", "bs", "train/batch_size", "training.batch_size", "bsz")
PER_WORKER = ("per_device_train_batch_size", "per_device_batch_size", "per_gpu_train_batch_size", "per_gpu_batch_size",
              "batch_size_per_gpu", "batch_size_per_device", "local_batch_size", "local_batch", "device_batch_size",
              "micro_batch_size", "train_micro_batch_size_per_gpu")
TIMED = ("train_seconds", "accumulated_submission_time", "train_time step_seconds")      # evaluations left out
_TIMES = (SECONDS, "_runtime", "Runtime", "time_total_s", "Relative Time (Process)", "elapsed", "elapsed_time",
          "total_duration")
_STEP_TIMES = ("step_seconds", "step_time", "time_per_step", "train/step_time", "perf/step_time", "time step_seconds",
               "dt step_seconds", "elapsed time per iteration step_seconds", "iter time step_seconds")
_LOSSES = ("loss", "train/loss", "train_loss", "train_loss_step", "training_loss", "train/loss_step", "Train/loss",
           "Loss/train", "loss/train", "loss/train/total", "Train loss/train/total", "lm loss", "total_loss")
_RATES = ("lr", "learning_rate", "train/lr", "train/learning_rate")
_PARAMETERS = {
    "batch": BATCH_NAMES,
    "workers": ("workers", "data_parallel_size", "world_size", "n_gpus", "num_gpus", "gpus", "devices", "num_devices"),
    "accumulation": ("gradient_accumulation_steps", "accumulate_grad_batches", "grad_accum_steps", "grad_accum"),
    "nodes": ("nodes", "num_nodes", "n_nodes"), "seed": ("seed", "random_seed", "rng_seed"),
    "dataset": ("dataset", "data", "dataset_name", "experiment"), "model": ("model", "model_name", "arch"),
    "optimizer": ("optimizer", "optim", "optimizer_name")}
_PATTERNS = {"batch": r"(?:^|[^a-zA-Z])(?:(?:global[-_]?)?batch(?:[-_]?size)?|gbs?|bsz?|b)[-_=]?(\d+)",
             "workers": r"(?:(?:^|[^a-zA-Z])(?:workers|gpus?|w)[-_=]?|(?<!\d)(?=\d+[-_]?(?:gpus?|workers)))(\d+)",
             "nodes": r"(?:^|[^a-zA-Z])(?:nodes?)[-_=]?(\d+)",
             "seed": r"(?:^|[^a-zA-Z])(?:seed|repeat|rep|s|r)[-_=]?(\d+)"}
_POINTS = {"learning_rate": ("learning_rate", "lr", "optimizer.lr", "optimizer/lr", "base_lr", "max_lr", "lr0"),
           "momentum": ("momentum",), "weight_decay": ("weight_decay", "wd"), "dropout": ("dropout",),
           "warmup_steps": ("warmup_steps", "warmup"), "label_smoothing": ("label_smoothing",),
           "beta1": ("beta1", "adam_beta1"), "beta2": ("beta2", "adam_beta2"),
           "clip_norm": ("clip_norm", "max_grad_norm", "grad_clip")}
_POINT = r"(?:^|[^a-zA-Z])(?:{})[-_=]?(\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+)"    # in a run's path: lr0.1, wd=1e-4
_SPLIT = r"(?P<split>train|training|val|valid|validation|eval|dev|test)"
_FIRST = re.compile(rf"(?:(?:(?:train|eval) )?metrics/)?{_SPLIT}(?:[/_ .]|$)(?P<rest>.*)", re.I)
_LAST = re.compile(rf"(?P<rest>.+)[/_ .]{_SPLIT}", re.I)               # as in Loss/test of torch's tutorials
_EVALUATED = re.compile(                # by MMEngine and Detectron2, of a validation set
    r"(?P<rest>(?:accuracy|bbox|segm|keypoints|coco|pascal_voc|sem_seg|panoptic_seg)/.+|mIoU|aAcc|mAcc)")
_OF_SPLIT = {"training": "train", "valid": "val", "validation": "val", "eval": "val", "dev": "val"}
_LARGER = re.compile(r"acc|f1|bleu|auc|map\b|precision|recall|score|reward|top\d|iou|(?:[_/]|^)AP(?:\d+|[sml])?$", re.I)
_OF_RUN = re.compile(r"epoch|lr|mfu|tps|t?flops|wps|wpb|ups|bsz|wall|memory|.*time|.*per_second|.*step_seconds", re.I)
_SMALLER = re.compile(r"loss|err|perplexity|ppl|entropy|bpb|nll|fid\b|wer\b|cer\b|rmse|mae\b|mse", re.I)


@dataclass(frozen=True)
class Source:
    """Where a setting of a run comes from; one of the three is given.

    value   a constant, or constants by a part of the run's path
    """

    value: Any = None
    parameter: str | None = None
    pattern: str | None = None

    def of(self, run: FoundRun) -> Any:
        """The setting of a run; None where the run does not have it."""
        if self.parameter is not None:
            value = run.parameters.get(self.parameter)
            return int(value) if isinstance(value, float) and value.is_integer() else value
        if self.pattern is not None:
            found = re.findall(self.pattern, run.path)
            return value_of(found[-1]) if found else None
        if isinstance(self.value, dict):
            return self.value.get(max((part for part in self.value if part in run.path), key=len, default=None))
        return self.value

    def as_toml(self) -> str:
        if self.parameter is not None:
            return value_as_toml({"parameter": self.parameter})
        return value_as_toml(self.value if self.pattern is None else {"pattern": self.pattern})


@dataclass(frozen=True)
class Metric:
    """A column ``split/metric`` and which way it gets better: "min", "max" or "" (not known)."""

    column: str
    way: str


@dataclass(frozen=True)
class RunMapping:
    """How runs are read; the fields are the keys of the file."""

    settings: Mapping[str, Source] = field(default_factory=dict)
    batch_per: str = STEP_BATCH             # or WORKER_BATCH: times the workers and the accumulation
    step: str | int = ""                    # the tag of steps, or those of every run in a table of their ends
    step_unit: str = "steps"
    step_offset: float = 0
    train_examples: int | None = None       # an epoch
    tokens_per_example: int | None = None
    seconds: str = ""                       # the tag of seconds since the start
    step_seconds: str = ""                  # the tag of one step's seconds, which goes before
    keep: str = "last"                      # of rows that repeat a step
    search: bool | None = None              # None: where metaparameters vary within a batch
    metaparameters: Mapping[str, Source] = field(default_factory=dict)
    tags: Mapping[str, Metric] = field(default_factory=dict)
    steps: Mapping[str, str] = field(default_factory=dict)      # tag by column of /steps: loss, lr

    def as_toml(self) -> str:
        """The mapping as a file to edit."""
        from jinja2 import Environment, PackageLoader, StrictUndefined
        page = Environment(loader=PackageLoader(__package__, ""), trim_blocks=True, undefined=StrictUndefined)
        page.filters |= {"quoted": value_as_toml, "key": key_as_toml}
        return page.get_template("mapping.toml.jinja").render(vars(self)).rstrip("\n")


def guess(runs: Sequence[FoundRun]) -> RunMapping:
    """What the runs' names, parameters and tags say; what they leave open is missing."""
    tags = tuple(dict.fromkeys(tag for run in runs for tag in run.tags))
    settings = {name: source for name in SETTINGS if (source := _guess_setting(name, runs))}
    folder = os.path.commonpath([os.path.abspath(run.path) for run in runs])
    named = os.path.basename(folder if len(runs) > 1 else os.path.dirname(folder)) or UNKNOWN
    for name, value in (("seed", UNKNOWN), ("dataset", named), ("model", UNKNOWN),
                        ("optimizer", UNKNOWN)):
        settings.setdefault(name, Source(value))
    step = _first((*STEP_NAMES, *EPOCH_NAMES, *REPORTS, *_LENGTHS, *_EPOCHS), tags)
    unit = "epochs" if step in (*EPOCH_NAMES, *_EPOCHS) else "steps"
    loss = _first(_LOSSES, tags) if unit == "steps" else ""
    rate = _first(_RATES, tags) or next((tag for tag in tags if tag.startswith("lr-")), "")
    metrics = {tag: metric for tag in tags if tag not in (loss, rate, step) and (metric := _guess_metric(tag))}
    if unit == "epochs" and (plain := _first(("loss", "Loss"), tags)):
        metrics[plain] = Metric("train/loss", "min")
    elif loss and not metrics:
        metrics[loss] = Metric("train/loss", "min")
    metrics = _without_sums(metrics, runs)
    batch = settings.get("batch")
    per = WORKER_BATCH if batch and batch.parameter in PER_WORKER else STEP_BATCH
    mapping = RunMapping(settings, per, step, unit, 0, seconds=_first((*TIMED, *_TIMES), tags),
                         step_seconds=_first(_STEP_TIMES, tags), tags=metrics, metaparameters=_guess_points(runs),
                         steps={name: tag for name, tag in ((LOSS, loss), (RATE, rate)) if tag})
    return replace(mapping, step_offset=_guess_offset(runs, mapping), train_examples=_guess_examples(runs))


def _without_sums(metrics: Mapping[str, Metric], runs: Sequence[FoundRun]) -> dict[str, Metric]:
    """Without tags that stand in one row a run, where another of the same column stands in more: they sum the run up.
    """
    often = {tag for run in runs for tag, rows in Counter(tag for row in run.rows for tag in row).items() if rows > 1}
    columns = {metric.column for tag, metric in metrics.items() if tag in often}
    return {tag: metric for tag, metric in metrics.items() if tag in often or metric.column not in columns}


def _first(names: Iterable[str], there: Iterable[str]) -> str:
    """The first of the names that is there; "" where none is."""
    there = set(there)
    return next((name for name in names if name in there), "")


def _guess_setting(name: str, runs: Sequence[FoundRun]) -> Source | None:
    """A parameter that every run has, else a pattern that is in every path."""
    key = next((key for key in _PARAMETERS[name] if all(run.parameters.get(key) is not None for run in runs)), None)
    if key is not None:
        return Source(parameter=key)
    pattern = _PATTERNS.get(name)
    if pattern and all(re.search(pattern, run.path) for run in runs):
        return Source(pattern=pattern)
    of_worker = [key for key in PER_WORKER if name == "batch" and all(key in run.parameters for run in runs)]
    return Source(parameter=of_worker[0]) if of_worker else None


def _guess_points(runs: Sequence[FoundRun]) -> dict[str, Source]:
    there = {key for run in runs for key, value in run.parameters.items() if isinstance(value, (int, float))}
    found = {}
    for name, keys in _POINTS.items():
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


def _guess_metric(tag: str) -> Metric | None:
    """The column of a tag that names a split, and its better way by the metric's name."""
    found = _FIRST.fullmatch(tag) or _LAST.fullmatch(tag) or _EVALUATED.fullmatch(tag)
    if not found or not found["rest"] or found["rest"].endswith("_step") or _OF_RUN.fullmatch(found["rest"]):
        return None
    split = found.groupdict().get("split", "val").lower()
    name = logged_name(found["rest"].removesuffix("_epoch"))
    column = f"{_OF_SPLIT.get(split, split)}/{name}"
    if metric_faults([name]):
        return None
    known, way = better(column), ""
    if known:
        way = WAYS[known]
    elif _LARGER.search(name) or _SMALLER.search(name):
        way = "max" if _LARGER.search(name) else "min"
    return Metric(column, way) if way or found.re is _FIRST else None


def _guess_offset(runs: Sequence[FoundRun], mapping: RunMapping) -> int:
    """1 where steps count from 0: where measurements lie before round numbers, or a loss was logged at step 0."""
    if all(run.counts_done for run in runs):
        return 0
    votes = [_before_round(run, mapping.step, tag) for run in runs for tag in (*mapping.tags, *mapping.steps.values())]
    if any(votes):
        return int(sum(votes) > 0)
    trained = {mapping.steps.get(LOSS), *(tag for tag, metric in mapping.tags.items()
                                          if metric.column.startswith("train/") and mapping.step_unit == "epochs")}
    return int(any(row.get(mapping.step) == 0 and trained & row.keys() for run in runs for row in run.rows))


def _before_round(run: FoundRun, step: str, tag: str) -> int:
    """1 where a tag was logged at steps such as 49 and 99, -1 at such as 50 and 100, 0: neither."""
    steps = {int(row[step]) for row in run.rows if tag in row and step in row and math.isfinite(row[step])}
    if len(steps) < 2:
        return 0
    before, at = math.gcd(*(one + 1 for one in steps)), math.gcd(*steps)
    return (before > at) - (at > before)


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
    named = [*mapping.tags, *mapping.steps.values(), mapping.seconds, mapping.step_seconds]
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
    except (TypeError, re.error) as error:
        raise UsageError(f"{path}: lines is {text!r}, not a regular expression: {error}") from None
    if "step" not in pattern.groupindex or len(pattern.groupindex) < 2:
        raise UsageError(f"{path}: lines is {text!r}; it names the step and tags, such as "
                         r"'it (?P<step>\d+) .* loss (?P<val_loss>\S+)'")
    return pattern


class _WrongValueError(Exception):
    """A value that its key cannot have."""


def _source(key: str, value: Any) -> Source:
    if isinstance(value, dict):
        if [*value] in (["parameter"], ["pattern"]) and isinstance(next(iter(value.values())), str):
            try:
                if "pattern" in value and re.compile(value["pattern"]).groups == 1:
                    return Source(**value)
            except re.error as error:
                raise _WrongValueError(f"{key}: the pattern {value['pattern']!r} is none: {error}") from None
            if "parameter" in value:
                return Source(**value)
        elif value and not any(isinstance(one, (dict, list)) for one in value.values()):
            return Source(value)
        raise _WrongValueError(f"{key} is {value!r}, not a constant, {{parameter = \"name\"}}, "
                               "{pattern = 'text with one (group)'} or {\"part of a path\" = constant}")
    return Source(value)


def _fields_of(key: str, value: Any, mapping: RunMapping) -> dict:
    """The fields of the mapping that a key of the file sets."""
    if key in SETTINGS:
        return {"settings": {**mapping.settings, key: _source(key, value)}}
    if key == "lines":                      # see read_lines
        return {}
    rule, what = _PLAIN.get(key, (lambda value: isinstance(value, dict), "a table"))
    if not rule(value):
        raise _WrongValueError(f"{key} is {value!r}, not {what}")
    if key == "metaparameters":
        return {key: {name: _source(f"{key}.{name}", one) for name, one in value.items()}}
    if key == "steps" and not set(value) <= {LOSS, RATE}:
        raise _WrongValueError(f"{key} has {', '.join(value)}; it takes {LOSS} and {RATE}")
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
    **dict.fromkeys(("seconds", "step_seconds"), (lambda value: isinstance(value, str), "the name of a tag")),
    "step": (lambda value: isinstance(value, str) or _is_count(value), "the name of a tag, or a number of steps"),
    "batch_per": (PERS.__contains__, " or ".join(PERS)),
    "step_unit": (UNITS.__contains__, f"one of {', '.join(UNITS)}"), "keep": (KEEPS.__contains__, "first or last"),
    "step_offset": (lambda value: type(value) in (int, float), "a number"),
    **dict.fromkeys(("train_examples", "tokens_per_example"), (_is_count, "a whole number, 1 or more")),
    "search": (lambda value: isinstance(value, bool), "true or false")}
_KEYS = (*SETTINGS, *_PLAIN, "metaparameters", "steps", "tags", "lines")


def way_of(metric: Metric) -> str:
    """Which way it gets better, in the log's words."""
    return DIRECTIONS.get(metric.way, better(metric.column))
