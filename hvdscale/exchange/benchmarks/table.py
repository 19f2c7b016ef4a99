"""What MLPerf's numbers mean, by benchmark: the table mlperf.toml.

    benchmark = find_benchmark("gnn")               -> the entry of rgat, which gnn was later called; ``known``
    benchmark.examples_at(0.75, 16384)              the examples behind 0.75 of an epoch
    benchmark.is_setting("opt_weight_decay")        -> True; of throughput or train_loss: False
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from ...formatting.numbers import fill
from ...plan.settings import read_toml
from ...target import Target

UNITS = ("epochs", "examples", "steps", "tokens")
SHORT_EPOCHS = 30                   # see successor in the table
ALIKE = 0.01                        # relative difference between two counts of one training set
_TABLE = read_toml(Path(__file__).with_name("mlperf.toml"))
# names of metaparameters -> ours
RENAMED = {f"{prefix}opt_{theirs}": ours for prefix in ("", "lars_", "sgd_")
           for theirs, ours in _TABLE["renamed"].items()} | {"opt_lr": "learning_rate"}


@dataclass(frozen=True)
class Benchmark:
    """A row of the table; see mlperf.toml for its entries."""

    name: str
    known: bool = True
    unit: str = "epochs"
    examples: int | None = None
    source: str = ""
    first: int = 0
    most_epochs: float = math.inf
    examples_from: float = 20_000   # epochs from here on are examples: bert's, and unet3d's from round 3.1
    largest_batch: int | None = None
    successor: str = ""
    names: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    optimizer: str = "reference"
    settings: tuple[str, ...] = ()

    @cached_property
    def goals(self) -> tuple[Target, ...]:
        """The targets, each on a column of its own."""
        return tuple(map(Target.parse, self.targets))

    @property
    def metric(self) -> str:
        """The column of an evaluation that names no metric."""
        return self.goals[0].column if len(self.goals) == 1 else "val/eval_accuracy"

    @cached_property
    def better(self) -> dict[str, str]:
        return {goal.column: "smaller" if goal.minimizes else "larger" for goal in self.goals}

    def is_setting(self, key: str) -> bool:
        return any(re.fullmatch(pattern, key) for pattern in (*_TABLE["common"]["settings"], *self.settings))

    def examples_at(self, value: float | Fraction, batch: int) -> Fraction | None:
        """The examples behind a value of the counter; None for epochs of unknown size."""
        if self.unit != "epochs":
            # gpt3's sequences have 2048 tokens
            return Fraction(value) * {"examples": 1, "steps": batch, "tokens": Fraction(1, 2048)}[self.unit]
        if value >= self.examples_from:
            return Fraction(value)
        return (Fraction(value) - self.first) * self.examples if self.examples else None


def find_benchmark(name: str, largest: float = 0, sizes: Iterable[float] = (), *, unit: str | None = None,
                   examples: int | None = None) -> Benchmark:
    """The benchmark that a file calls by this name; ``unit`` and ``examples`` are a user's instead of the table's. Both
    the largest value of its counter and the sizes of its training set that the file allows for tell two ssd apart."""
    found = _by_name().get(name) or Benchmark(name, known=False)
    later = _by_name().get(found.successor)
    if later and not any(are_alike(size, found.examples) for size in sizes) and (
            largest < SHORT_EPOCHS or any(are_alike(size, later.examples) for size in sizes)):
        found = later
    if unit:
        found = replace(found, unit=unit, first=found.first if unit == found.unit else 0, most_epochs=math.inf,
                        examples_from=math.inf)
    return replace(found, examples=examples) if examples else found


def optimizer_of(given: Mapping[str, Any], benchmark: Benchmark) -> str:
    """The optimizer that a file names, in lower case, as files differ in that; else the benchmark's."""
    return str(given.get("optimizer") or given.get("opt_name") or benchmark.optimizer).lower()


def are_alike(size: float, other: float | None) -> bool:
    """Whether two numbers can count the examples of one training set, perhaps less an incomplete batch."""
    return bool(other) and abs(size / other - 1) <= ALIKE


def say(kind: str, **values: Any) -> str:
    """A text of the table."""
    return fill(_TABLE["texts"][kind], values)


@lru_cache(1)
def _by_name() -> dict[str, Benchmark]:
    found = {}
    for name, entry in _TABLE["benchmarks"].items():
        lists = {key: tuple(value) for key, value in entry.items() if isinstance(value, list)}
        one = Benchmark(name, **{**entry, **lists})
        found |= dict.fromkeys((name, *one.names), one)
    return found
