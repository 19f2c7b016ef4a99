"""Values of keys, from TOML files and command lines: of the kind that a key takes, and within its bounds."""

import difflib
import math
import operator
import sys
from collections.abc import Callable, Iterable
from typing import Any

from ..errors import UsageError

WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", list: "a list", dict: "a table"}
BOUNDS: dict[str, Callable[[Any, Any], bool]] = {"at least": operator.ge, "above": operator.gt, "below": operator.lt}
LARGEST_INT = 2**63 - 1
MOST = 2**53                # steps, examples and other counts: beyond, a float64 does not hold them


def check_value(name: str, value: Any, kind: type[Any], word: str | None = None, least: float | None = None,
                above: float | None = None, below: float | None = None) -> Any:
    """The value as its kind, which an error calls ``word``; raises UsageError where it is another, or out of bounds."""
    given = value
    if kind is float and type(value) is int and abs(value) <= sys.float_info.max:
        value = float(value)
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        raise UsageError(f"{name} = {given!r} is not {word or WORDS[kind]}")
    if kind is int and value > LARGEST_INT:
        raise UsageError(f"{name} = {value} must be below 2**63")
    for (said, holds), bound in zip(BOUNDS.items(), (least, above, below)):
        if bound is not None and not holds(value, bound):
            raise UsageError(f"{name} = {value!r} must be {said} {bound}")
    return value


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    names = {one.casefold(): one for one in known}
    near = [names[match] for match in difflib.get_close_matches(name.casefold(), names, n=3)]
    return f"did you mean {' or '.join(near)}?" if near else otherwise


def none_of(value: object, choices: Iterable[str], others: str = "") -> str:
    """The message that a value is none of the choices or ``others`` (", and not ..."), and which is spelt like it."""
    near = did_you_mean(str(value), choices := [*choices], "")
    return f"{value!r} is none of {', '.join(choices)}{others}" + (f"; {near}" if near else "")
