"""How numbers are written: rounded to what is known, unmet as unmet, missing as missing; and sentences kept as text,
filled in with values as people read them.

    fill("Perfect scaling up to batch {batch}[, of {seeds:n seed}].", {"batch": 1024, "seeds": 3})

``{name}`` is a count with commas, a measurement to three digits, an Estimate with its interval, several: "1, 2 and 4".
``{name:HOW}`` writes it otherwise: HOW is a key of WRITERS; a number of digits; ``n trial`` or ``n batch/batches`` for
"1 trial", "2 trials"; ``is/are`` for the one or the other, by how many there are; ``or`` for "1, 2 or 4"; a format of
Python's that begins with a point or comma; behind it ``value`` or ``ends`` are the parts of an Estimate.
``[; beyond {batch}]`` is left out where a value in it is missing: None, False, or empty; ``[A|B]`` is the first that
has all its values; ``['name']`` is of Python. ``{name?}`` asks for a value and writes nothing.
"""

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from numbers import Integral, Number, Real
from typing import Any

from ..target import Target

NARROWEST = 1e-6                                # relative width of an interval, under which it is none
UNITS = ((86400, "d", 2), (3600, "h", 2), (60, "min", 2), (1, "s", 0))     # seconds, name, from how many of it on
RANGE = re.compile(r"(?<=[\dkMG])-(?=\d)")       # what joins the ends of a span, and no minus


def number(value, digits=3, thousands=1e5) -> str:
    """A measurement to ``digits`` significant digits: 1.2e-06, 0.0123, 1.2, 12,300, 4.56M; n/a for NaN.
    ``thousands``: from where on they are written with a k."""
    if math.isnan(value):
        return "n/a"
    if math.isinf(value):
        return "inf"
    if 0 < abs(value) < 1e-3 or abs(value) >= 1e12:
        return f"{value:.{digits - 1}e}"
    for least, size, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (thousands, 1e3, "k")):
        if abs(value) >= least:
            return _significant(value / size, digits) + letter
    return _significant(value, digits)


def whole(value) -> str:
    """A mean of counts, such as steps, to four significant digits and no fraction of one."""
    return number(round(value), 4) if abs(value) >= 1000 and math.isfinite(value) else exact(value, 0)


def exact(value, places=2) -> str:
    """A number that is known, such as a ratio of worker counts: ``4``, ``85.33``."""
    if not math.isfinite(value):
        return number(value)
    return f"{value:,.0f}" if value == round(value) else f"{value:,.{places}f}"


def ratio(value) -> str:
    """A speedup or an efficiency: two decimals, fewer above 10, two digits below 0.1: 0.0038."""
    if 1e-5 <= value < 0.0995:
        return _significant(value, 2)
    if not math.isfinite(value) or value < 0.0995:
        return number(value, 2)
    if value < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def round_number(value) -> float:
    """The nearest of 1, 2 and 5 times a power of ten, by ratio, to a number above 0."""
    power = 10.0 ** math.floor(math.log10(value))
    return min((share * power for share in (1, 2, 5, 10)), key=lambda one: abs(math.log(one / value)))


def percent(share) -> str:
    """A share to two digits: ``97%``, ``0.28%``."""
    return f"{number(100 * share, 2) if share < 0.0995 else round(100 * share)}%"


def span(low, high, write=number) -> str:
    """An interval as ``1.2-3.4``, ``> 1.2`` or ``< 3.4``, its ends with two digits where it is wide, more where it is
    so narrow that two would make them equal; empty where nothing is known of it."""
    if math.isnan(low) or math.isnan(high) or low == high == 0 or (low == 0 and math.isinf(high)):
        return ""
    sign, ends, digits = "", (low, high), 3
    if math.isinf(high):
        sign, ends = "> ", (low,)
    elif low == 0:
        sign, ends = "< ", (high,)
    elif high >= 3 * low:
        digits = 2
    elif 1.0005 * low <= high < 1.02 * low:
        digits = 4
    said = [write(end) if write is ratio or write is whole and end < 1000 else number(end, digits, thousands=1e4)
            for end in ends]
    if not sign and write is ratio and said[0] == said[1] and high > low * (1 + NARROWEST):
        said = [f"{end:,.{-math.floor(math.log10(high - low))}f}" for end in ends]
    return sign + "-".join(said)


def in_brackets(low, high, write=number) -> str:
    """An interval behind its value, `` (1.2-3.4)``; empty where nothing is known of it."""
    ends = span(low, high, write)
    return f" ({ends})" if ends else ""


def finite(value):
    """A number as JSON can hold it, which knows neither NaN nor infinity; None for those."""
    return None if value is None or isinstance(value, float) and not math.isfinite(value) else value


def unit_of(seconds):
    """(its seconds, its name) of the unit to write a time in."""
    return next((size, name) for size, name, least in UNITS if abs(seconds) >= least * size)


def duration(seconds, rough=False) -> str:
    """``24.4 s``, ``12.3 min``, ``5.20 h``, ``3.10 d``; rough, as what is left is: ``24 s``, ``5 h``, ``3.1 d``."""
    if not math.isfinite(seconds):
        return number(seconds)
    size, name = unit_of(seconds)
    return f"{seconds / size:.{int(name == 'd')}f} {name}" if rough else f"{number(seconds / size)} {name}"


def spread(values) -> str:
    """``50`` or ``50-100``."""
    low, high = min(values, default=0), max(values, default=0)
    return f"{low:,}" if low == high else f"{low:,}-{high:,}"


def listed(items, last="and") -> str:
    """``1, 2 and 4``."""
    items = [str(item) for item in items]
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {last} {items[-1]}"


def list_first(items, most, joint=", ") -> str:
    """``1, 2 and 3 more``: the first ``most`` of the items, and how many others there are."""
    items = [str(item) for item in items]
    more = f" and {len(items) - most:,} more" if len(items) > most else ""
    return joint.join(items[:most]) + more


def byte_size(count) -> str:
    """A number of bytes: ``512 bytes``, ``40.0 KiB``, ``1.5 GiB``."""
    if count < 1024:
        return f"{count:,.0f} bytes"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1023.95 or unit == "GiB":
            return f"{count:,.1f} {unit}"


def capital(said) -> str:
    return said[0].upper() + said[1:]


def counted(count, noun, plural=None) -> str:
    """``1 trial``, ``2 trials``; ``plural`` where that is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def _significant(value, digits):
    if value == 0:
        return "0"
    rounded = round(value, digits - 1 - math.floor(math.log10(abs(value))))         # perhaps a digit longer: 0.9999
    return f"{rounded:,.{max(0, digits - 1 - math.floor(math.log10(abs(rounded))))}f}"


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
        return listed([written(one, "" if how == "or" else how) for one in value], "or" if how == "or" else "and")
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
