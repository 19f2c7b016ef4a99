"""The tables [space.X] of a sweep file and their overrides [batch.N.space.X]: parsed, checked, settled for one batch.

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

import math
import sys
from dataclasses import dataclass, replace

from ..errors import UsageError
from ..plan.metaparameters import TUNABLE
from ..plan.scaling import SCALED_BETAS, exponent, lr_factor
from ..plan.search_space import SCALES, TYPES, Parameter, discrete
from ..plan.settings import KEYS, check, is_key, key_of, key_type, stored_names
from ..plan.values import did_you_mean
from .settings import TomlTable

TABLES = ("model_args", "optimizer_args")       # keys whose entries can be searched
# the names under which a log has numbers, and text of a choice
SEARCHABLE = tuple(name for key in KEYS if key in TUNABLE - {"optimizer"} for name in stored_names(key)
                   if key_type(name) in (int, float, str))
FIELDS = ("type", "scale", "min", "max", "values", "scaled", "base_batch")
OF_BATCH = ("type", "scale", "min", "max", "values")
BUDGET = "budget"


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
            wrong = _find_fault(name, bound)
            if wrong:
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
    table.only(FIELDS)
    if own is None:
        return table
    elsewhere = f"it holds for all batches, in [{'.'.join(table.path)}]; a batch's own bounds are not scaled"
    own.only(OF_BATCH, dict.fromkeys(("scaled", "base_batch"), elsewhere))
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
    values = spec.take("values", list)
    if not values:
        raise spec.wrong("values = [] holds no value; give those to choose from", "values")
    for value in values:
        finite = type(value) is not float or math.isfinite(value)
        wrong = _find_fault(name, value)
        if type(value) not in (int, float, str, bool) or not finite or wrong:
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
        wrong = None if factor is None else _find_fault(name, found)
        if wrong:
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
