"""A length of training: an amount with its unit.

    read("10 epochs")       -> Length(10, "epochs")
    read("1.5 h")           -> Length(5400.0, "seconds")
    read([30, 60])          -> Length([30, 60], None)           no unit
    Length(10, "epochs").in_steps(stream)

Tokens are what the loss counts, never padding. Of a training set of T tokens in D examples a length in tokens is the
length in examples at their mean, T / D tokens an example: exact over whole epochs, and everywhere where all examples
have the same number. So budgets, evaluations and batches stay functions of the step, in any order of the examples.
"""
from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .shards import Stream

UNITS = ("steps", "epochs", "examples", "tokens", "seconds")
COUNTED = UNITS[:-1]                # those that are known before the run
# what may be written for a unit, as here or without its s, with the unit and how many of it
WORDS = {**{unit: (unit, 1) for unit in UNITS}, **{word: ("seconds", times) for word, times in (
    ("s", 1), ("sec", 1), ("min", 60), ("minutes", 60), ("h", 3600), ("hours", 3600), ("days", 86400))}}


@dataclass(frozen=True)
class Length:
    """An amount with a unit of UNITS."""

    amount: Any             # a number; of several lengths in one unit a list, of numbers or of (start, batch) pairs
    unit: str | None        # None: none was given

    def __str__(self) -> str:
        text = f"{json.dumps(self.amount).removesuffix('.0')} {self.unit}"
        return text.removesuffix("s") if self.amount == 1 else text

    def __iter__(self) -> Iterator[Length]:
        return (Length(amount, self.unit) for amount in self.amount)

    def in_steps(self, stream: Stream) -> int:
        """The fewest steps that hold it, at least 1 of a length above 0; 0 of seconds, whose steps are not known."""
        if self.unit == "seconds":
            return 0
        if self.unit == "steps" or not self.amount:
            return int(self.amount)
        if self.unit == "epochs":
            return max(1, stream.steps_in(self.amount))
        whole = self.amount if isinstance(self.amount, int) else math.ceil(self.amount - 1e-6)
        return stream.steps_holding(max(1, whole))

    def in_examples(self, train_examples: int) -> Any:
        return self._each(lambda amount: amount * train_examples) if self.unit == "epochs" else self.amount

    def divided(self, tokens_each: float) -> Length:
        return Length(self._each(lambda amount: amount / tokens_each), "examples")

    def _each(self, change: Callable[[float], float]) -> Any:
        """The amount changed: a number, each of a list, or the start of each pair."""
        if not isinstance(self.amount, list):
            return change(self.amount)
        return [[change(entry[0]), entry[1]] if isinstance(entry, list) else change(entry) for entry in self.amount]


def read(value: Any) -> Length | None:
    """What was written, as "10 epochs", "[30, 60] epochs" or ["30 epochs", "60 epochs"]; None if it is no length."""
    if isinstance(value, Length):
        return value
    if isinstance(value, list):
        entries = [read(entry) for entry in value]
        units = {entry.unit for entry in entries if entry and entry.unit}
        if None in entries or len(units) > 1:
            return None
        return Length([entry.amount for entry in entries if entry], units.pop() if units else None)
    if not isinstance(value, str):
        return Length(value, None)
    found = re.fullmatch(r"\s*(.+?)\s*([A-Za-z]+)\s*", value)
    word = found and (WORDS.get(found[2]) or WORDS.get(f"{found[2]}s"))
    if not found or not word:
        return None
    unit, times = word
    for written in (found[1], f"[{found[1]}]"):         # 30, 60, 80 epochs is a list, too
        with contextlib.suppress(ValueError):
            amount = json.loads(written)
            return Length(amount * times if times > 1 and type(amount) in (int, float) else amount, unit)
    return None
