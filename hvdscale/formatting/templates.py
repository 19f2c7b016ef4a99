"""Sentences kept as text, filled in with values as people read them.

    fill("Perfect scaling up to batch {batch}[, of {seeds:n seed}].", {"batch": 1024, "seeds": 3})

``{name}`` is a count with commas, a measurement to three digits, an Estimate with its interval, several: "1, 2 and 4".
``{name:HOW}`` writes it otherwise: HOW is a key of WRITERS; a number of digits; ``n trial`` or ``n batch/batches`` for
"1 trial", "2 trials"; ``is/are`` for the one or the other, by how many there are; ``or`` for "1, 2 or 4"; a format of
Python's that begins with a point or comma; behind it ``value`` or ``ends`` are the parts of an Estimate.
``[; beyond {batch}]`` is left out where a value in it is missing: None, False, or empty; ``[A|B]`` is the first that
has all its values; ``['name']`` is of Python. ``{name?}`` asks for a value and writes nothing.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from numbers import Integral, Number, Real
from typing import Any

from ..target import Target
from .numbers import capital, counted, duration, exact, in_brackets, listed, number, percent, ratio, whole

OPTIONAL = re.compile(r"\[(?!')([^\[\]]*)\]")
FIELD = re.compile(r"\{(\w+)(\?)?(?::([^{}]*))?\}")


WRITERS: dict[str, Callable[[Any], str]] = {
    "ratio": ratio, "percent": percent, "whole": whole, "exact": exact, "duration": duration, "capital": capital,
    "level": "{:.0%}".format}
WHOLE: dict[str, Callable[[Any], str]] = {                                          # of what has parts, too
    "power": "{0.value:.2f} ({0.low:.2f} to {0.high:.2f})".format, "plain": str}    # whose ends may be below 0


def fill(template: str, values: Mapping[str, Any]) -> str:
    while found := OPTIONAL.search(template):
        chosen = next((part for part in found[1].split("|") if all(
            value or isinstance(value, Number) and value is not False
            for value in (values.get(name) for name, *_ in FIELD.findall(part)))), "")
        template = template[:found.start()] + chosen + template[found.end():]
    return FIELD.sub(lambda field: "" if field[2] else written(values[field[1]], field[3] or ""), template)


def written(value: Any, how: str = "") -> str:
    """A value as people read it; see the module's text for ``how``."""
    if how in WHOLE:
        return WHOLE[how](value)
    if how.startswith("n "):
        one, _, many = how[2:].partition("/")
        return counted(value, one, many or None)
    if "/" in how:
        one, many = how.split("/")
        count = value if isinstance(value, Integral) else len(value)
        return one if count == 1 else many
    if isinstance(value, (tuple, list)):
        last = "or" if how == "or" else "and"
        return listed([written(one, "" if how == "or" else how) for one in value], last)
    if isinstance(value, (str, Target)) and how != "capital":
        return str(value)
    if how.startswith((".", ",")):
        return format(value, how)
    how, _, part = how.partition(" ")
    if not how and not hasattr(value, "low"):
        if isinstance(value, bool) or not isinstance(value, Real):
            return str(value)
        return f"{value:,}" if isinstance(value, Integral) else number(value)
    write = WRITERS.get(how) or (partial(number, digits=int(how)) if how else written)
    if not hasattr(value, "low"):
        return write(value)
    shown = "" if part == "ends" else write(value.value)
    if part != "value":
        shown += in_brackets(value.low, value.high, write if how else number)
    return shown
