"""Tables of a sweep file that know their place, so that errors name file, table and key; those of [settings], and
conflicts between keys that are set and keys that are searched; and the tables [space.X] with their overrides
[batch.N.space.X], parsed, checked, settled for one batch.

    top = read_table("sweep.toml")
    top.take("trials", int, least=1)
    top.table("space").table("lr").wrong("has no min")      -> UsageError("sweep.toml: space.lr: has no min")

    [space.lr]
    scale = "log"                   # linear, log or reverse_log
    min = 1e-4
    max = 10.0
    scaled = "linear"               # bounds times (B / base_batch), by a rule of hvdscale.plan.scaling
    base_batch = 256
    [space.decay_steps]
    min = 0.5
    max = 1.0
    scaled = "budget"               # bounds are shares of the budget in steps
    [space.label_smoothing]
    values = [0, 0.01, 0.1]
    [batch.2048.space.lr]
    max = 30.0                      # not scaled
"""
from __future__ import annotations

import json
import math
import sys
from collections import UserDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..formatting.numbers import listed
from ..plan.lengths import UNITS
from ..plan.plan import Execution
from ..plan.scaling import SCALED_BETAS, TUNED, exponent, lr_factor
from ..plan.search_space import SCALES, TYPES, Parameter, discrete
from ..plan.settings import (ACTS_ONLY_WITH, ALTERNATIVES, KEYS, LENGTHS, OPTIMIZERS, TUNABLE, Settings, check, is_key,
                             key_of, key_type, read, read_toml, stored, stored_names)
from ..plan.values import WORDS, check_value, did_you_mean, none_of

REQUIRED = object()
BUDGETS = ("budget", *UNITS)
TEXTS = read_toml(str(Path(__file__).with_name("texts.toml")))
# keys that cannot be settings of a sweep, and where they belong
ELSEWHERE = {key: place for place, keys in TEXTS["elsewhere"].items() for key in keys}
# settings that change no update, so they may differ when a sweep is resumed
FREE_SETTINGS = frozenset({"data_dir", "cache_dir", "max_local_batch"} | (
    {field.name for field in fields(Execution)} & set(KEYS)))
OF_DATA = ("data_dir", "data_args", "allow_missing", "cache_dir", "train_subset")       # read once for all studies
HVDSCALE_TRAIN = (*KEYS, *LENGTHS)      # all names of its keys
TABLES = ("model_args", "optimizer_args")       # keys whose entries can be searched
# the names under which a log has numbers, and text of a choice
SEARCHABLE = tuple(name for key in KEYS if key in TUNABLE - {"optimizer"} for name in stored_names(key)
                   if key_type(name) in (int, float, str))
BUDGET = "budget"


class TomlTable(UserDict):
    """A table of a TOML file, with the file's name, its own path, and the tables that override some of its keys."""

    def __init__(self, file: str, content: Mapping, path: tuple[str, ...] = (),
                 overrides: Mapping[str, TomlTable] = {}):
        super().__init__(content)
        self.file, self.path, self.overrides = file, path, overrides

    def under(self, other: TomlTable, dropped: Iterable[str] = ()) -> TomlTable:
        """This table with the keys of another over its own; errors name the table that sets a key."""
        kept = {name: value for name, value in self.items() if name not in dropped}
        return TomlTable(self.file, {**kept, **other}, self.path, dict.fromkeys(other, other))

    def wrong(self, said: str, key: str = "") -> UsageError:
        path = self.overrides[key].path if key in self.overrides else self.path
        return UsageError(": ".join(filter(None, (self.file, ".".join(path), said))))

    def take(self, name: str, kind: type, default=REQUIRED, least=None, below=None, choices=()):
        """The value of a key, checked for type, bounds and choices, or the default; raises UsageError."""
        if name not in self:
            if default is REQUIRED:
                raise self.wrong(f"has no {name}; give {WORDS[kind]}")
            return default
        if choices and type(self[name]) is kind and self[name] not in choices:
            raise self.wrong(f"{name} = {none_of(self[name], choices)}", name)
        try:
            return check_value(name, self[name], kind, least=least, below=below)
        except UsageError as error:
            raise self.wrong(str(error), name) from None

    def table(self, name: str) -> TomlTable:
        return TomlTable(self.file, self.take(name, dict, {}), (*self.path, name))

    def only(self, known: Iterable[str], elsewhere: Mapping[str, str] = {}) -> None:
        """Raise UsageError for an unknown key, with the place where it belongs or similar names."""
        known = list(known)
        for name in self:
            if name not in known:
                hint = did_you_mean(name, known, f"known keys here: {', '.join(known)}")
                raise self.wrong(f"there is no key {name!r}; {elsewhere.get(name, hint)}", name)


def read_table(path: str) -> TomlTable:
    return TomlTable(str(path), read_toml(path))


def checked_key(table: TomlTable, name: str) -> tuple[str, Any]:
    """A key of hvdscale-train as a log has it, and its value; raises UsageError naming the place of an invalid one."""
    try:
        key, value = stored(*read(name, table[name]))
        json.dumps(value)
        return key, value
    except UsageError as error:
        raise table.wrong(str(error), name) from None
    except TypeError:
        raise table.wrong(f"{name} holds a date or a time; give numbers, text, true or false", name) from None


def read_settings(table: TomlTable) -> dict:
    """The table's keys of hvdscale-train; raises UsageError for one that the sweep sets itself."""
    for name in table:
        if key_of(name) in ELSEWHERE:
            raise table.wrong(f"{name} is not a setting of a sweep: {ELSEWHERE[key_of(name)]}", name)
    settings = dict(checked_key(table, name) for name in table)
    if settings.get("lr_rule") == TUNED:
        raise table.wrong("lr_rule = 'tuned' needs what a sweep gives; choose none, linear, sqrt, adam_sqrt or power:P",
                          "lr_rule")
    try:
        every = Settings.build({}, table).eval_every
    except UsageError as error:
        raise table.wrong(str(error)) from None
    if every and not every.amount:
        raise table.wrong("eval_every = 0 never evaluates a trial; give at least 1", "eval_every")
    return settings


def takes(optimizer: str, name: str) -> bool:
    if name.partition(".")[0] == "optimizer_args":
        return optimizer not in OPTIMIZERS
    return not is_of_optimizer(name) or optimizer in ACTS_ONLY_WITH[key_of(name)][1]


def is_of_optimizer(name: str) -> bool:
    """Whether a key acts only with some of the optimizers that have a name."""
    return ACTS_ONLY_WITH.get(key_of(name), ("",))[0] == "optimizer"


def refuse_untaken(table: TomlTable, name: str, optimizers: tuple[str, ...], key: str = "") -> None:
    if not any(takes(optimizer, name) for optimizer in optimizers):
        takers = (listed(ACTS_ONLY_WITH[key_of(name)][1], "or") if is_of_optimizer(name) else
                  "a module:Class such as torch.optim:RMSprop")
        raise table.wrong(f"{name} acts only with {takers}, and the sweep has {', '.join(optimizers)}; leave it out, "
                          "or add one of these to optimizers", key)


@dataclass(frozen=True)
class Keys:
    """The keys of a study's trials, set or searched, and the table of each."""

    settings: dict                              # by name as a log has it
    home: dict[str, tuple[TomlTable, str]]      # the table that sets a key, and the name there
    searched: dict[str, Parameter]
    space: dict[str, TomlTable]

    def __contains__(self, key: str) -> bool:
        return key in map(key_of, (*self.settings, *self.searched))

    def wrong(self, said: str, name: str) -> UsageError:
        if name in self.searched:
            return self.space[name].wrong(said)
        table, given = self.home[key_of(name)]
        return table.wrong(said, given)

    def possible(self, name: str) -> tuple | None:
        """The possible values of a key in the trials; None: up to the workload's defaults."""
        if name in self.searched:
            return self.searched[name].values
        if name == "warmup" and name not in self.settings:
            return ("gradual",) if self.warms else ("none",)
        return (self.settings[name],) if name in self.settings else None

    @property
    def warms(self) -> bool:
        return "warmup" in self or "warmup_length" in self

    def layer(self) -> dict:
        """The settings with a sweep's defaults: no rule on the learning rate, no warmup (or gradual from 0 if only its
        length is set), no noise measurement."""
        layer = {"lr_rule": "none", "noise_every": 0, "warmup": "gradual" if self.warms else "none"}
        if "gradual" in self.possible("warmup"):
            layer["warmup_start_factor"] = 0.0
        return {**layer, **self.settings}

    def refuse_conflicts(self) -> None:
        """Raise UsageError for a searched key that is also set, or searched under an alternative name; and for a key
        without effect beside any possible value of another."""
        for name in self.searched:
            group = next((group for group in ALTERNATIVES if key_of(name) in group), (key_of(name),))
            for other in (other for other in (*self.settings, *self.searched) if key_of(other) in group):
                if other in self.settings:
                    table, given = self.home[key_of(other)]
                    raise table.wrong(f"{given} is set here, and {name} is searched in [space.{name}]; leave one of "
                                      "them out", given)
                if other != name:
                    raise self.wrong(f"{name} and {other} are alternatives; search one of them", other)
            entries, _, entry = name.partition(".")
            if entry and entry in self.settings.get(entries, {}):
                raise self.home[entries][0].wrong(f"{name} is set here, and searched in [space.{name}]; leave one of "
                                                  "them out", entries)

        for name in (*self.settings, *self.searched):
            other, values = ACTS_ONLY_WITH.get(key_of(name), ("optimizer", ()))
            possible = None if other == "optimizer" else self.possible(other)
            if possible is not None and not set(possible) & set(values):
                hint = f"leave {name} out, or let {other} be one of these"
                if other == "warmup" and not self.warms:
                    hint = "give its length, such as warmup = '5 epochs'"
                raise self.wrong(f"{name} acts only with {other} = {listed(values, 'or')}, and {other} is "
                                 f"{' or '.join(possible)}; {hint}", name)
        if "constant" in self.possible("warmup") and "warmup_start_factor" not in self:
            raise self.wrong("warmup = 'constant' stays at the rate that it starts with; give warmup_start_factor",
                             "warmup")


def parameter_tables(space: TomlTable) -> dict[str, TomlTable]:
    """Each parameter's table by its name, such as model_args.dropout; UsageError for one that cannot be searched."""
    found = {}
    for name in space:
        if name in TABLES:
            entries = space.table(name)
            found.update({f"{name}.{inner}": entries.table(inner) for inner in entries})
        else:
            table, _, inner = name.partition(".")
            if name not in SEARCHABLE and not (table in TABLES and inner):
                accepted = f"{', '.join(SEARCHABLE)}, and {' and '.join(f'{table}.X' for table in TABLES)}"
                hint = did_you_mean(name, () if is_key(name) else SEARCHABLE, f"what can: {accepted}")
                raise space.wrong(f"{name} cannot be searched; {hint}", name)
            found[name] = space.table(name)
    return found


@dataclass(frozen=True)
class Dimension:
    """A parameter at one batch: bounds settled, or as shares of a budget not known yet."""

    parameter: Parameter
    shares: bool = False

    def over(self, budget_steps: int) -> Parameter:
        if not self.shares:
            return self.parameter
        name, kind = self.parameter.name, self.parameter.type
        low, high = (_times(bound, budget_steps, kind) for bound in (self.parameter.low, self.parameter.high))
        for word, bound in (("min", low), ("max", high)):
            if wrong := _find_fault(name, bound):
                raise UsageError(f"{word} of the space, over a budget of {budget_steps} steps: {wrong}")
        return replace(self.parameter, low=low, high=high)


def _times(bound: float, factor: float, kind: str) -> float:
    """The bound times the factor; integers are rounded, to at least 1 if the bound is above 0."""
    times = bound * factor
    if kind != "integer" or not math.isfinite(times):
        return times
    return max(round(times), 1 if bound > 0 else 0)


def _find_fault(name: str, value) -> str | None:
    """What is wrong with the value for the key, or with an entry of a table that is not finite; None: nothing."""
    try:
        if is_key(name):
            check(name, value)
        elif type(value) in (int, float) and not abs(value) <= sys.float_info.max:
            return f"{name} = {value!r} is not a finite number"
    except UsageError as error:
        return str(error)
    return None


def overridden(table: TomlTable, own: TomlTable | None) -> TomlTable:
    table.only(("type", "scale", "min", "max", "values", "scaled", "base_batch"))
    if own is None:
        return table
    elsewhere = f"it holds for all batches, in [{'.'.join(table.path)}]; a batch's own bounds are not scaled"
    own.only(("type", "scale", "min", "max", "values"), dict.fromkeys(("scaled", "base_batch"), elsewhere))
    if "values" in own:
        return table.under(own, table)
    return table.under(own, ("values",) if "min" in own or "max" in own else ())


def settle(name: str, spec: TomlTable, batch: int) -> Dimension:
    """The dimension at a global batch; raises UsageError naming file, table and key for an invalid one."""
    kind = key_type(name) if is_key(name) else None         # None: an entry of a table, whose type is free
    default = "integer" if kind is int else "double"
    if "values" in spec or kind is str:
        default = "discrete"
    chosen = spec.take("type", str, default, choices=TYPES)
    if kind is str and "values" not in spec:
        raise spec.wrong(f"{name} takes text; give values = [...] to choose from", "values")
    if chosen != "discrete":
        if "values" in spec:
            raise spec.wrong(f"values is for type = 'discrete', not {chosen!r}; give min and max", "values")
        if kind is str or (kind is int and chosen == "double"):
            taken, accepted = ("text", "values = [...]") if kind is str else ("whole numbers", "type = 'integer'")
            raise spec.wrong(f"type = {chosen!r} does not fit {name}, which takes {taken}; give {accepted}", "type")
        return _ranged(name, spec, chosen, batch)

    for field in ("min", "max", "scale", "scaled", "base_batch"):
        if field in spec:
            raise spec.wrong(f"{field} does nothing for a choice of values; leave out {field}, or the values", field)
    if not (values := spec.take("values", list)):
        raise spec.wrong("values = [] holds no value; give those to choose from", "values")
    for value in values:
        wrong = _find_fault(name, value)
        if type(value) not in (int, float, str, bool) or type(value) is float and not math.isfinite(value) or wrong:
            raise spec.wrong(f"values: {wrong or f'{value!r} is not a number, text, true or false'}", "values")
        if values.count(value) > 1:
            raise spec.wrong(f"values = {values!r} holds {value!r} twice; all are drawn alike", "values")
    return Dimension(discrete(name, [check(name, value) for value in values] if is_key(name) else values))


def _ranged(name: str, spec: TomlTable, chosen: str, batch: int) -> Dimension:
    scale = spec.take("scale", str, "linear", choices=SCALES)
    if scale == "reverse_log" and chosen == "integer":
        raise spec.wrong("scale = 'reverse_log' is for doubles below 1, not integers; choose linear or log", "scale")
    factor = _factor(name, spec, batch)

    def bound(word: str) -> float:
        """In the parameter's type; a share of the budget if there is no factor."""
        as_it_is = "scaled" not in spec or (word in spec.overrides and factor is not None)
        found = spec.take(word, int if as_it_is and chosen == "integer" else float)
        at = f"{word} = {found!r}"
        if not as_it_is and factor is not None:
            found = _times(found, factor, chosen)
            at += f", times {factor:g} at batch {batch},"
        if scale == "log" and found <= 0:
            raise spec.wrong(f"{at} must be above 0 on a log scale", word)
        if scale == "reverse_log" and found >= 1:
            raise spec.wrong(f"{at} must be below 1 on a reverse log scale", word)
        if factor is None and found < 0:
            raise spec.wrong(f"{at} must be at least 0, as a share of the budget", word)
        if wrong := None if factor is None else _find_fault(name, found):
            raise spec.wrong(f"{at} is refused: {wrong}", word)
        return found
    low, high = bound("min"), bound("max")
    if low > high or (low == high and "scaled" not in spec):
        raise spec.wrong(f"min = {low} must be below max = {high}; a value that is not searched belongs in [settings]",
                         "min")
    return Dimension(Parameter(name, chosen, scale, low, high), factor is None)


def _factor(name: str, spec: TomlTable, batch: int) -> float | None:
    """The factor of the bounds at this batch; None if they are shares of the budget."""
    rule = spec.take("scaled", str, None)
    unit = stored_names(key_of(name)).get(name, "steps") if is_key(name) else None
    if rule == BUDGET and unit not in (None, "steps"):
        raise spec.wrong(f"scaled = 'budget' gives shares of the steps, and {name} is in {unit}; search it in "
                         "steps", "scaled")
    if "base_batch" in spec and rule in (None, BUDGET):
        beside = "without scaled, such as scaled = 'sqrt'" if rule is None else "beside scaled = 'budget'"
        raise spec.wrong(f"base_batch does nothing {beside}", "base_batch")
    if rule in (None, BUDGET):
        return None if rule else 1.0
    try:
        if rule in SCALED_BETAS:        # of more than one number
            raise UsageError(rule)
        exponent(rule)
    except UsageError:
        raise spec.wrong(f"scaled = {rule!r} is none of linear, sqrt, none, power:P (P from -10 to 10, such as "
                         "power:0.7) and budget", "scaled") from None
    return lr_factor(rule, batch / spec.take("base_batch", int, least=1))
