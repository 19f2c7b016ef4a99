"""When a workload counts as solved. Free of torch, for trainer and report alike.

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
    there = set(names)
    return found + [f"the metrics {name[:end.start()]!r} and {name!r} exclude each other: a log holds names with "
                    "slashes as paths" for name in names for end in re.finditer("/", name)
                    if name[:end.start()] in there]


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
