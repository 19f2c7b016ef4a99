"""How runs are read as trials: a mapping, guessed (see guessing), or written by the user in TOML.

    mapping = read_mapping("runs.toml", guess(runs), runs)      what the file says, else what was guessed
    mapping.as_toml()                                           the file that says so

A setting of a run is ``1024``, ``{parameter = "batch_size"}``, ``{pattern = 'b(\\d+)'}`` of its path, a constant for
each part of a path, ``{"sweet-sun-1" = 16}``, or a product: ``{parameter = "devices", times = ["num_nodes"]}``.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import UsageError
from ...formatting.toml import key_as_toml, value_as_toml
from ...log.directions import better
from ...log.plan_text import is_whole
from ...log.schema import DIRECTIONS
from ...plan.settings import read_toml
from ...plan.values import did_you_mean
from ...target import SPLITS, metric_faults
from ..files import is_number
from .run import FoundRun, value_of

UNITS = ("steps", "epochs", "examples", "tokens")
TIME_UNITS = {"s": 1.0, "ms": 1e-3, "minutes": 60.0, "hours": 3600.0, "days": 86400.0}
KEEPS = ("first", "last")
LOSS, RATE = "loss", "lr"           # tags that are columns of /steps
SETTINGS = ("batch", "workers", "nodes", "accumulation", "seed", "dataset", "model", "optimizer")
GLOBAL_BATCH, WORKER_BATCH = PERS = ("global", "worker")            # what a batch is of
CONSTANTS = (bool, int, float, str)


@dataclass(frozen=True)
class Source:
    """Where a setting of a run comes from; one of the first three is given."""

    value: Any = None                   # a constant, or constants by a part of the run's path
    parameter: str | None = None
    pattern: str | None = None
    times: tuple[str, ...] = ()         # parameters that multiply it, as far as they are counts
    over: str = ""                      # one that divides it
    nominal: str | int = 0              # examples to which passes of smaller batches add up, or the parameter of these

    def of(self, run: FoundRun) -> Any:
        if self.parameter is not None:
            value = run.parameters.get(self.parameter)
            if not (self.times or self.over or self.nominal):
                return int(value) if isinstance(value, float) and value.is_integer() else value
            if (count := count_of(value)) is None:
                return None
            counts = {name: count_of(given) for name, given in run.parameters.items()}
            count *= math.prod(counts.get(name) or 1 for name in self.times)
            over = counts.get(self.over) or 1
            nominal = self.nominal if isinstance(self.nominal, int) else counts.get(self.nominal) or 0
            return count * max(1, round(nominal / count)) // over if count % over == 0 else None
        if self.pattern is not None:
            found = re.findall(self.pattern, run.path)
            return value_of(found[-1]) if found else None
        if isinstance(self.value, dict):
            return self.value.get(max((part for part in self.value if part in run.path), key=len, default=None))
        return self.value

    def as_toml(self) -> str:
        if self.parameter is None:
            return value_as_toml(self.value if self.pattern is None else {"pattern": self.pattern})
        given = {"parameter": self.parameter, "times": self.times, "over": self.over, "nominal": self.nominal}
        return value_as_toml({name: value for name, value in given.items() if value})


def count_of(value: Any) -> int | None:
    """A count from 1, be it a number or the length of a list such as ``[0, 1]``; None for anything else."""
    if isinstance(value, str) and re.fullmatch(r"\[\d+(?:, ?\d+)*\]|\d+(?:, ?\d+)+", value.strip()):
        return value.count(",") + 1
    return int(value) if is_number(value) and 1 <= value < 2**53 and value == int(value) else None


@dataclass(frozen=True)
class Metric:
    """A column ``split/metric`` and which way it gets better: "min", "max" or "" (not known)."""

    column: str
    way: str

    @property
    def direction(self) -> str:
        """The way in the log's words, else what its name says."""
        return DIRECTIONS.get(self.way, better(self.column))


@dataclass(frozen=True)
class RunMapping:
    """How runs are read; the fields up to ``steps`` are the keys of the file."""

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
    keep: str = field(default="", compare=False)    # of rows that repeat a step; "": last, unless most of them do
    search: bool | None = None              # None: where metaparameters vary within a batch
    metaparameters: Mapping[str, Source] = field(default_factory=dict)
    tags: Mapping[str, Metric] = field(default_factory=dict)
    steps: Mapping[str, str] = field(default_factory=dict)      # tag by column of /steps: loss, lr
    evidence: Mapping[str, str] = field(default_factory=dict, compare=False)    # why batch and workers were so taken

    def as_toml(self) -> str:
        from jinja2 import Environment, PackageLoader, StrictUndefined
        page = Environment(loader=PackageLoader(__package__, ""), trim_blocks=True, undefined=StrictUndefined)
        page.filters |= {"quoted": value_as_toml, "key": key_as_toml}
        return page.get_template("mapping.toml.jinja").render(vars(self)).rstrip("\n")


def read_mapping(path: str, guessed: RunMapping, runs: Sequence[FoundRun]) -> RunMapping:
    """What a file says, and where it is silent what was guessed; raises UsageError that names every wrong key."""
    mapping, wrong = guessed, []
    for key, value in read_toml(path).items():
        try:
            mapping = with_given(mapping, _fields_of(key, value))
        except UsageError as error:
            wrong.append(f"{path}: {error}")
    tags = {tag for run in runs for tag in run.series}
    named = [*mapping.tags, *mapping.steps.values(), mapping.seconds, mapping.step_seconds, mapping.within]
    wrong += [f"{path}: no run has the tag {tag!r}: {did_you_mean(tag, tags, 'there are ' + ', '.join(sorted(tags)))}"
              for tag in dict.fromkeys([*named, mapping.step]) if isinstance(tag, str) and tag not in {"", *tags}]
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


def with_given(mapping: RunMapping, given: Mapping[str, Any]) -> RunMapping:
    """The mapping with settings and other fields that a user says, so that there is no evidence of them."""
    settings = {**mapping.settings, **{name: value for name, value in given.items() if name in SETTINGS}}
    gone = {"batch" if name == "batch_per" else name for name in given}
    return replace(mapping, settings=settings, **{name: value for name, value in given.items() if name not in SETTINGS},
                   evidence={name: why for name, why in mapping.evidence.items() if name not in gone})


def source_of(key: str, value: Any) -> Source:
    table = value if isinstance(value, dict) else {}
    if isinstance(value, CONSTANTS):
        return Source(value)
    if "pattern" in table:
        try:
            if len(table) == 1 and re.compile(value["pattern"]).groups == 1:
                return Source(**value)
        except (re.error, TypeError, RecursionError, OverflowError) as error:
            raise UsageError(f"{key}: the pattern {value['pattern']!r} is none: {error}") from None
    elif "parameter" in table:
        kinds: dict[str, Any] = {"parameter": str, "times": list, "over": str, "nominal": (int, str)}
        if all(isinstance(one, kinds.get(name, ())) for name, one in value.items()):
            return Source(**{**value, "times": tuple(map(str, value.get("times", ())))})
    elif table and all(isinstance(one, CONSTANTS) for one in value.values()):
        return Source(value)
    raise UsageError(f"{key} is {repr(value)[:80]}, not a constant, {{parameter = \"name\"}}, "
                     "{pattern = 'text with one (group)'} or {\"part of a path\" = constant}")


def _fields_of(key: str, value: Any) -> dict[str, Any]:
    """The setting or field of the mapping that a key of the file sets."""
    if key in SETTINGS:
        return {key: source_of(key, value)}
    if key == "lines":                      # see read_lines
        return {}
    if key not in _RULES:
        raise UsageError(f"there is no key {key!r}: " + did_you_mean(key, _KEYS, f"there are {', '.join(_KEYS)}"))
    rule, what = _RULES[key]
    if not rule(value):
        raise UsageError(f"{key} is {repr(value)[:80]}, not {what}")
    if key == "metaparameters":
        return {key: {name: source_of(f"{key}.{name}", one) for name, one in value.items()}}
    if key == "steps" and not (set(value) <= {LOSS, RATE} and all(isinstance(tag, str) for tag in value.values())):
        raise UsageError(f"{key} has {', '.join(value)}; it takes {LOSS} and {RATE}, each with the name of a tag")
    return {key: {tag: _metric(tag, text) for tag, text in value.items()} if key == "tags" else value}


def _metric(tag: str, text: Any) -> Metric:
    column, way = str(text), ""
    if column.endswith((" min", " max")):
        column, _, way = column.rpartition(" ")
    split, _, name = column.partition("/")
    if split not in SPLITS or not name or metric_faults([name]):
        raise UsageError(f"tags.{tag} is {text!r}, not split/metric (of {', '.join(SPLITS)}) with min or max, "
                         "such as 'val/error min'")
    return Metric(column, way)


_RULES: dict[str, tuple] = {
    **dict.fromkeys(("seconds", "step_seconds", "within"), (lambda value: isinstance(value, str), "the name of a tag")),
    "time_unit": (lambda value: value in [*TIME_UNITS], f"one of {', '.join(TIME_UNITS)}"),
    "step": (lambda value: isinstance(value, str) or is_whole(value, 1), "the name of a tag, or a number of steps"),
    "batch_per": (lambda value: value in PERS, " or ".join(PERS)),
    "step_unit": (lambda value: value in UNITS, f"one of {', '.join(UNITS)}"),
    "keep": (lambda value: value in KEEPS, "first or last"),
    "step_offset": (lambda value: type(value) in (int, float), "a number"),
    **dict.fromkeys(("train_examples", "tokens_per_example"),
                    (lambda value: is_whole(value, 1), "a whole number, 1 or more")),
    "search": (lambda value: isinstance(value, bool), "true or false"),
    **dict.fromkeys(("metaparameters", "steps", "tags"), (lambda value: isinstance(value, dict), "a table"))}
_KEYS = (*SETTINGS, *_RULES, "lines")
