"""The tables [settings] of a sweep file, and conflicts between keys that are set and keys that are searched."""
from __future__ import annotations

import json
from dataclasses import dataclass, fields

from ..errors import UsageError
from ..formatting.numbers import listed
from ..plan.plan import Execution
from ..plan.scaling import TUNED
from ..plan.search_space import Parameter
from ..plan.settings import ACTS_ONLY_WITH, ALTERNATIVES, BATCH_SCHEDULES, KEYS, OPTIMIZERS, Settings, check
from ..plan.tokens import IN_EXAMPLES
from .toml_errors import Table

BUDGETS = ("steps", "epochs", "examples", "seconds")
# keys that cannot be settings of a sweep, and where they belong
ELSEWHERE = {
    "optimizer": "optimizers = [...] at the top of the file says it",
    **dict.fromkeys(("global_batch", "local_batch"), "batch_sizes says it; workers_per_trial shares a batch out, and "
                    "max_local_batch bounds what a worker takes at once"),
    **{name: f"a sweep counts examples; give {other}" for name, other in IN_EXAMPLES.items()},
    **dict.fromkeys((*BATCH_SCHEDULES, "batch_schedule_lr"), "a study is of one batch; hvdscale-train takes it"),
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
    **dict.fromkeys(("noise_every", "noise_groups"), "its trials log no steps, and with them no noise scale; "
                    "hvdscale-train measures it"),
    **dict.fromkeys(("workload", "batch_sizes", "optimizers", "trials", "max_draws", "targets", "objective",
                     "evaluations", "repeats", "workers_per_trial", "prune", "prune_keep"),
                    "it belongs at the top of the file, before the first [table]"),
}
# settings that change no update, so they may differ when a sweep is resumed
FREE_SETTINGS = frozenset({"data_dir", "cache_dir", "max_local_batch", "checkpoint_every_epochs",
                           "checkpoint_every_seconds"} | ({field.name for field in fields(Execution)} & set(KEYS)))
OF_DATA = ("data_dir", "data_args", "allow_missing", "cache_dir", "train_subset")       # read once for all studies
OF_WARMUP = ("warmup", "warmup_steps", "warmup_epochs")


def checked_key(table: Table, name: str):
    """The value of a key of hvdscale-train; raises UsageError naming the line of an invalid one."""
    try:
        value = check(name, table[name])
        json.dumps(value)
        return value
    except UsageError as error:
        raise table.wrong(str(error), name) from None
    except TypeError:
        raise table.wrong(f"{name} holds a date or a time; give numbers, text, true or false", name) from None


def read_settings(table: Table) -> dict:
    """The table's keys of hvdscale-train; raises UsageError for one that the sweep sets itself."""
    for name in table:
        if name in ELSEWHERE:
            raise table.wrong(f"{name} is not a setting of a sweep: {ELSEWHERE[name]}", name)
    settings = {name: checked_key(table, name) for name in table}
    if settings.get("lr_rule") == TUNED:
        raise table.wrong("lr_rule = 'tuned' needs what a sweep gives; choose none, linear, sqrt, adam_sqrt or power:P",
                          "lr_rule")
    if settings.get("eval_every") == 0:
        raise table.wrong("eval_every = 0 never evaluates a trial; give at least 1", "eval_every")
    try:
        Settings.build({}, settings)
    except UsageError as error:
        raise table.wrong(str(error)) from None
    return settings


def takes(optimizer: str, name: str) -> bool:
    """Whether a key has an effect with the optimizer."""
    if name.partition(".")[0] == "optimizer_args":
        return optimizer not in OPTIMIZERS
    return not is_of_optimizer(name) or optimizer in ACTS_ONLY_WITH[name][1]


def is_of_optimizer(name: str) -> bool:
    """Whether a key acts only with some of the optimizers that have a name."""
    return ACTS_ONLY_WITH.get(name, ("",))[0] == "optimizer"


def refuse_untaken(table: Table, name: str, optimizers: tuple[str, ...], *key: str) -> None:
    """Raise UsageError if no optimizer of the sweep takes the key."""
    if not any(takes(optimizer, name) for optimizer in optimizers):
        takers = ACTS_ONLY_WITH[name][1] if is_of_optimizer(name) else ("a module:Class such as torch.optim:RMSprop",)
        raise table.wrong(f"{name} acts only with {listed(takers, 'or')}, and the sweep has {', '.join(optimizers)}; "
                          "leave it out, or add one of these to optimizers", *key)


@dataclass(frozen=True)
class Keys:
    """The keys of a study's trials, set or searched, and the table of each."""

    settings: dict
    home: dict[str, Table]
    searched: dict[str, Parameter]
    space: dict[str, Table]

    def __contains__(self, name: str) -> bool:
        return name in self.settings or name in self.searched

    def wrong(self, said: str, name: str) -> UsageError:
        """The error at the line that sets or searches the key."""
        return self.space[name].wrong(said) if name in self.searched else self.home[name].wrong(said, name)

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
        length is set), no noise measurement.
        """
        layer = {"lr_rule": "none", "noise_every": 0, "warmup": "gradual" if self.warms else "none"}
        if "gradual" in self.possible("warmup"):
            layer["warmup_start_factor"] = 0.0
        return {**layer, **self.settings}

    def refuse_duplicates(self) -> None:
        """Raise UsageError for a searched key that is also set, or searched under an alternative name."""
        for name in self.searched:
            for other in next((group for group in ALTERNATIVES if name in group), (name,)):
                if other in self.settings:
                    raise self.home[other].wrong(f"{other} is set here, and {name} is searched in [space.{name}]; "
                                                 "leave one of them out", other)
                if other in self.searched and other != name:
                    raise self.wrong(f"{name} and {other} are alternatives; search one of them", other)
            table, _, key = name.partition(".")
            if key and key in self.settings.get(table, {}):
                raise self.home[table].wrong(f"{name} is set here, and searched in [space.{name}]; leave one of them "
                                             "out", table, key)

    def refuse_idle(self) -> None:
        """Raise UsageError for a key without effect beside any possible value of another."""
        for name in (*self.settings, *self.searched):
            other, values = ACTS_ONLY_WITH.get(name, ("optimizer", ()))
            possible = None if other == "optimizer" else self.possible(other)
            if possible is not None and not set(possible) & set(values):
                hint = f"leave {name} out, or let {other} be one of these"
                if other == "warmup" and not self.warms:
                    hint = "give warmup_steps or warmup_epochs"
                raise self.wrong(f"{name} acts only with {other} = {listed(values, 'or')}, and {other} is "
                                 f"{' or '.join(possible)}; {hint}", name)
        if "constant" in self.possible("warmup") and "warmup_start_factor" not in self:
            raise self.wrong("warmup = 'constant' stays at the rate that it starts with; give warmup_start_factor",
                             "warmup")
