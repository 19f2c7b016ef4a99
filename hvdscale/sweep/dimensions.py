"""The tables [space.X] of a sweep file, and [batch.N.space.X] over them: read, checked, and settled for one batch.

    [space.lr]
    scale = "log"                   # linear, log or reverse_log
    min = 1e-4
    max = 10.0
    scaled = "linear"               # the bounds times (B / base_batch), by a rule of hvdscale.scaling
    base_batch = 256
    [space.decay_steps]
    min = 0.5
    max = 1.0
    scaled = "budget"               # the bounds are shares of the budget in steps
    [space.label_smoothing]
    values = [0, 0.01, 0.1]
    [batch.2048.space.lr]
    max = 30.0                      # as it is: not scaled
"""
from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..config import KEYS, check, key_type
from ..errors import UsageError
from ..metaparameters import TUNABLE
from ..scaling import exponent, lr_factor
from .located import Table
from .space import SCALES, TYPES, Parameter, discrete

TABLES = ("model_args", "optimizer_args")       # each entry of these, too
SEARCHABLE = tuple(name for name in KEYS if name in {*TUNABLE, "ghost_batch"} and key_type(name) in (int, float, str))
FIELDS = ("type", "scale", "min", "max", "values", "scaled", "base_batch")
OF_BATCH = ("type", "scale", "min", "max", "values")
BUDGET = "budget"


def parameter_tables(space: Table) -> dict[str, Table]:
    """The table of each parameter by the parameter's name: those in a table such as [space.model_args.dropout] by both
    names. Raises UsageError for a name that cannot be searched."""
    found = {}
    for name in space:
        if name in TABLES:
            entries = space.table(name)
            found.update({f"{name}.{inner}": entries.table(inner) for inner in entries})
        else:
            _refuse_name(space, name)
            found[name] = space.table(name)
    return found


def _refuse_name(space: Table, name: str) -> None:
    table, dot, inner = name.partition(".")
    if name in SEARCHABLE or (table in TABLES and inner):
        return
    near = difflib.get_close_matches(name, SEARCHABLE, n=3)
    accepted = f"{', '.join(SEARCHABLE)}, and {' and '.join(f'{table}.X' for table in TABLES)}"
    hint = f"did you mean {' or '.join(near)}?" if near and name not in KEYS else f"what can: {accepted}"
    raise space.wrong(f"{name} cannot be searched; {hint}", name)


@dataclass(frozen=True)
class Dimension:
    """A parameter at one batch: its bounds settled, or shares of a budget that is not known yet."""

    parameter: Parameter
    shares: bool = False

    def over(self, budget_steps: int) -> Parameter:
        """The parameter under a budget of so many steps.

        An integer's bounds are rounded, one above 0 to at least 1. Raises UsageError where a bound is none that the key
        takes.
        """
        if not self.shares:
            return self.parameter
        low, high = (_times(bound, budget_steps, self.parameter.type)
                     for bound in (self.parameter.low, self.parameter.high))
        settled = replace(self.parameter, low=low, high=high)
        for word, bound in (("min", low), ("max", high)):
            said = _unfit(settled, word, bound)
            if said:
                raise UsageError(f"space.{settled.name}: over a budget of {budget_steps} steps {said}")
        return settled


def _times(bound: float, factor: float, kind: str) -> float:
    """The bound times the factor: of an integer rounded, and at least 1 where the bound is above 0."""
    if kind == "integer":
        return max(round(bound * factor), 1 if bound > 0 else 0)
    return bound * factor


def _unfit(parameter: Parameter, word: str, value) -> str | None:
    """What is wrong with a bound or a value of the parameter; None where nothing is."""
    if parameter.scale == "log" and value <= 0:
        return f"{word} = {value!r} must be above 0 on a log scale"
    if parameter.scale == "reverse_log" and value >= 1:
        return f"{word} = {value!r} must be below 1 on a reverse log scale"
    if parameter.name in KEYS:
        try:
            check(parameter.name, value)
        except UsageError as error:
            return f"{word}: {error}"
    return None


class Said:
    """What a parameter's table says, and a batch's own over it; an error names the one that says the key."""

    def __init__(self, table: Table, own: Table | None = None):
        table.only(FIELDS)
        self.table, self.home = table, dict.fromkeys(table, table)
        if own is not None:
            own.only(OF_BATCH, dict.fromkeys(("scaled", "base_batch"), "it holds for all batches: say it in "
                                             f"[{'.'.join(table.path)}]; a batch's own bounds are not scaled"))
            if "values" in own:
                self.home = {}
            elif "min" in own or "max" in own:
                self.home.pop("values", None)
            self.home.update(dict.fromkeys(own, own))

    def __contains__(self, name: str) -> bool:
        return name in self.home

    def take(self, name: str, kind: type, *args, **kwargs):
        return self.home.get(name, self.table).take(name, kind, *args, **kwargs)

    def wrong(self, said: str, name: str) -> UsageError:
        return self.home.get(name, self.table).wrong(said, name)

    def choice(self, name: str, default: str, choices: Iterable[str]) -> str:
        chosen = self.take(name, str, default)
        if chosen not in choices:
            raise self.wrong(f"{name} = {chosen!r} is none of {', '.join(choices)}", name)
        return chosen


def kind_of(name: str) -> type | None:
    """The type of a key of hvdscale-train; None for an entry of a table, which may be any."""
    return key_type(name) if name in KEYS else None


def settle(name: str, said: Said, batch: int) -> Dimension:
    """The dimension at a global batch; raises UsageError naming file, line and key for what cannot be searched."""
    kind = kind_of(name)
    default = "discrete" if "values" in said or kind is str else "integer" if kind is int else "double"
    chosen = said.choice("type", default, TYPES)
    if chosen == "discrete":
        return Dimension(_discrete(name, said))
    if "values" in said:
        raise said.wrong(f"values is for type = 'discrete', not {chosen!r}; give min and max", "values")
    if kind is str or (kind is int and chosen == "double"):
        accepted = "values = [...]" if kind is str else "type = 'integer'"
        taken = "text" if kind is str else "whole numbers"
        raise said.wrong(f"type = {chosen!r} does not fit {name}, which takes {taken}; give {accepted}", "type")
    return _ranged(name, said, chosen, batch)


def _discrete(name: str, said: Said) -> Parameter:
    for field in ("min", "max", "scale", "scaled", "base_batch"):
        if field in said:
            raise said.wrong(f"{field} does nothing beside a list of values; leave out {field}, or the values", field)
    values = said.take("values", list)
    if not values:
        raise said.wrong("values = [] holds no value; give those to choose from", "values")
    parameter = discrete(name, [float(value) if type(value) is int and kind_of(name) is float else value
                                for value in values])
    for value in parameter.values:
        if type(value) not in (int, float, str, bool) or (type(value) is float and not math.isfinite(value)):
            raise said.wrong(f"values: {value!r} is not a number, text, true or false", "values")
        wrong = _unfit(parameter, "values", value)
        if wrong:
            raise said.wrong(wrong, "values")
    if len(set(values)) < len(values):
        raise said.wrong(f"values = {values!r} holds a value twice; each is drawn as often as the others", "values")
    return parameter


def _ranged(name: str, said: Said, chosen: str, batch: int) -> Dimension:
    """A double or an integer."""
    scale = said.choice("scale", "linear", SCALES)
    if scale == "reverse_log" and chosen == "integer":
        raise said.wrong("scale = 'reverse_log' is for doubles below 1, not integers; choose linear or log", "scale")
    shares = "scaled" in said and said.take("scaled", str) == BUDGET
    if shares and scale == "reverse_log":
        raise said.wrong("scaled = 'budget' gives numbers of steps, which have no reverse log; choose linear or log",
                         "scaled")
    factor = _factor(said, batch)
    whole = chosen == "integer" and not shares
    bounds = {}
    for word in ("min", "max"):
        bound = said.take(word, int if whole and factor == 1 else float)
        own = said.home[word] is not said.table
        bounds[word] = bound if own or factor == 1 else _times(bound, factor, chosen)
        if shares and bound < 0:
            raise said.wrong(f"{word} = {bound} must be at least 0, as a share of the budget", word)
    parameter = Parameter(name, chosen, scale, bounds["min"], bounds["max"])
    for word, bound in bounds.items():
        wrong = None if shares else _unfit(parameter, word, bound)
        if wrong:
            at = "" if factor == 1 else f"at batch {batch}, scaled by {factor:g}: "
            raise said.wrong(at + wrong, word)
    if not bounds["min"] < bounds["max"]:
        raise said.wrong(f"min = {bounds['min']} must be below max = {bounds['max']}; a value that is not searched "
                         "stands in [settings]", "min")
    return Dimension(parameter, shares)


def _factor(said: Said, batch: int) -> float:
    """What the bounds are multiplied by at this batch."""
    if "scaled" not in said:
        if "base_batch" in said:
            raise said.wrong("base_batch does nothing without scaled, such as scaled = 'sqrt'", "base_batch")
        return 1.0
    rule = said.take("scaled", str)
    if rule == BUDGET:
        if "base_batch" in said:
            raise said.wrong("base_batch does nothing beside scaled = 'budget'; leave it out", "base_batch")
        return 1.0
    try:
        exponent(rule)
    except UsageError:
        raise said.wrong(f"scaled = {rule!r} is none of linear, sqrt, none, power:P (P from -10 to 10, such as "
                         "power:0.7) and budget", "scaled") from None
    return lr_factor(rule, batch / said.take("base_batch", int, least=1))
