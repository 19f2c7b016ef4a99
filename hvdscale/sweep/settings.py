"""Tables of a sweep file that know their place, so that errors name file, table and key; those of [settings], and
conflicts between keys that are set and keys that are searched.

    top = read_table("sweep.toml")
    top.take("trials", int, least=1)
    top.table("space").table("lr").wrong("has no min")      -> UsageError("sweep.toml: space.lr: has no min")
"""
from __future__ import annotations

import json
from collections import UserDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..errors import UsageError
from ..formatting.numbers import listed
from ..plan.lengths import UNITS
from ..plan.plan import Execution
from ..plan.scaling import TUNED
from ..plan.search_space import Parameter
from ..plan.settings import (ACTS_ONLY_WITH, ALTERNATIVES, KEYS, LENGTHS, OPTIMIZERS, Settings, key_of, read, read_toml,
                             stored)
from ..plan.values import WORDS, check_value, did_you_mean, none_of

REQUIRED = object()
BUDGETS = ("budget", *UNITS)
# keys that cannot be settings of a sweep, and where they belong
ELSEWHERE = {
    "optimizer": "optimizers = [...] at the top of the file says it",
    **dict.fromkeys(("global_batch", "local_batch"), "batch_sizes says it; workers_per_trial shares a batch out, and "
                    "max_local_batch bounds what a worker takes at once"),
    **dict.fromkeys(("lr", "lr_per_example"), "the learning rate is searched, in [space.lr]"),
    "seed": "seed at the top of the file says it",
    **dict.fromkeys(BUDGETS, "the budget belongs at the top of the file, or in [batch.N]"),
    "target": "targets = [...] at the top of the file says it",
    "keep_going": "trials stop at the strictest target; an objective such as 'val/error' lets them continue",
    **dict.fromkeys(("log", "overwrite", "take_over", "save_model", "checkpoint", "resume"),
                    "a sweep keeps its own files; leave it out"),
    **dict.fromkeys(("accept_changes", "accepted"), "--accept-changes of hvdscale-tune says it"),
    "metaparameters": "it is what a sweep gives; leave it out",
    "commit_every": "it is for elastic jobs; leave it out",
    "noise_every": "its trials log no steps, and with them no noise scale; hvdscale-train measures it",
    **dict.fromkeys(("workload", "batch_sizes", "optimizers", "trials", "max_draws", "targets", "objective",
                     "evaluations", "repeats", "workers_per_trial", "prune", "prune_keep"),
                    "it belongs at the top of the file, before the first [table]"),
}
# settings that change no update, so they may differ when a sweep is resumed
FREE_SETTINGS = frozenset({"data_dir", "cache_dir", "max_local_batch"} | (
    {field.name for field in fields(Execution)} & set(KEYS)))
OF_DATA = ("data_dir", "data_args", "allow_missing", "cache_dir", "train_subset")       # read once for all studies
OF_WARMUP = ("warmup", "warmup_length")
HVDSCALE_TRAIN = (*KEYS, *LENGTHS)      # all names of its keys


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
        return any(name in self for name in OF_WARMUP)

    def layer(self) -> dict:
        """The settings with a sweep's defaults: no rule on the learning rate, no warmup (or gradual from 0 if only its
        length is set), no noise measurement."""
        layer = {"lr_rule": "none", "noise_every": 0, "warmup": "gradual" if self.warms else "none"}
        if "gradual" in self.possible("warmup"):
            layer["warmup_start_factor"] = 0.0
        return {**layer, **self.settings}

    def refuse_duplicates(self) -> None:
        """Raise UsageError for a searched key that is also set, or searched under an alternative name."""
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

    def refuse_idle(self) -> None:
        """Raise UsageError for a key without effect beside any possible value of another."""
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
