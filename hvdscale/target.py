"""When a workload counts as solved, and how far results may lie apart. Free of torch, for trainer and report alike.

    target = Target.parse("val/error<0.01")
    target.met_by(0.009)                        -> True
    target.met_by(np.array([0.02, np.nan]))     -> [False, False]
"""
from __future__ import annotations

import math
import operator
import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass

from .errors import UsageError

SPLITS = ("train", "val", "test")
COMPARISONS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
# the published archive's names (Shallue et al. 2019) for the metrics that hvdscale logs
ALIASES = {"classification_error": "error", "cross_entropy_error": "cross_entropy"}

# the metric ends before the last comparison with a number, so that its name may hold anything
_WRITTEN = re.compile(r"\s*(\w+)/(.*\S)\s*(<=|>=|<|>)\s*([^\s<>=]+)\s*")


def logged_name(name: str) -> str:
    """The name under which a metric is logged and a target finds it; accents in one spelling (NFC)."""
    name = unicodedata.normalize("NFC", name)
    return ALIASES.get(name, name)


def metric_faults(names: Collection[str]) -> list[str]:
    """Why metrics cannot have these names: a log holds each as a path, and a target must be able to name it."""
    found = [f"the metric {name!r} is logged as {logged_name(name)!r}; name it so" for name in names
             if name != logged_name(name)]
    found += [f"no target can name the metric {name!r}: a name has no line break, no empty part between slashes and no "
              "space at the ends of a part" for name in names if not name.isprintable() or not all(
                  part.strip(".") and part == part.strip() for part in name.split("/"))]
    return found + [f"the metrics {name[:end.start()]!r} and {name!r} exclude each other: a log holds names with "
                    "slashes as paths" for name in names for end in re.finditer("/", name)
                    if name[:end.start()] in names]


@dataclass(frozen=True)
class Target:
    """A comparison of one metric with a value: ``split/metric`` and ``<``, ``<=``, ``>`` or ``>=``."""

    split: str
    metric: str
    comparison: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Target:
        """The target written as ``val/error<0.01``; raises UsageError where it says nothing clear."""
        found = _WRITTEN.fullmatch(text)
        try:
            split, metric, comparison, value = found.groups()
            value = float(value)
        except (AttributeError, ValueError):
            raise UsageError(f"target {text!r} is not split/metric, a comparison (<, <=, >, >=) and a number, "
                             "such as 'val/error<0.01'") from None
        if split not in SPLITS:
            raise UsageError(f"target {text!r}: there is no split {split!r}; choose one of {', '.join(SPLITS)}")
        if math.isnan(value):
            raise UsageError(f"target {text!r}: NaN can never be met; give a number")
        return cls(split, logged_name(metric), comparison, value)

    @property
    def column(self) -> str:
        """The column of /evaluations that decides: ``val/error``."""
        return f"{self.split}/{self.metric}"

    @property
    def minimizes(self) -> bool:
        """Whether smaller values of the metric are better."""
        return self.comparison in ("<", "<=")

    def met_by(self, measured):
        """Whether ``measured`` (a number or an array) meets the target; NaN never does."""
        return COMPARISONS[self.comparison](measured, self.value)

    def __str__(self) -> str:
        short = f"{self.value:g}"
        return f"{self.column}{self.comparison}{short if float(short) == self.value else repr(self.value)}"


def confidence_of(value: float, name: str = "--confidence") -> float:
    """The confidence level, as it is; raises UsageError unless it is between 0 and 1."""
    if not 0 < value < 1:
        raise UsageError(f"{name} {value:g}: lies between 0 and 1, such as 0.95")
    return value


def share_of(name: str, text: str) -> float:
    """The share in the option ``name``, written as 0.1 or 10%; raises UsageError for anything else."""
    number = text.strip()
    try:
        value = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UsageError(f"{name} {text}: is a share, 0 or more, such as 0.1 or 10%")
    if value > 1 and not number.endswith("%"):
        raise UsageError(f"{name} {text}: is a share, so this is {value:.0%}; for {text} % write {number}%")
    return value


@dataclass(frozen=True)
class Tolerance:
    """How much more loss is allowed: ``amount`` in the metric's unit, or ``relative``, as a share of a loss."""

    amount: float
    relative: bool = False

    @classmethod
    def parse(cls, text: str, name: str = "tolerance") -> Tolerance:
        """The tolerance written as ``0.01`` or ``1%``; raises UsageError naming the option for anything else."""
        if text.strip().endswith("%"):
            return cls(share_of(name, text), True)
        try:
            amount = float(text)
            if not 0 < amount < float("inf"):
                raise ValueError
        except ValueError:
            raise UsageError(f"{name} {text!r}: is a loss above 0, such as 0.01, or a share of the loss, such as 1%"
                             ) from None
        return cls(amount)

    def at(self, loss: float) -> float:
        return self.amount * abs(loss) if self.relative else self.amount

    def __str__(self) -> str:
        return f"{100 * self.amount:g}%" if self.relative else f"{self.amount:g}"
