"""What a report found: a verdict, then findings of a line each.

    page.verdict, page.findings = split(findings)
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ..formatting.numbers import finite

VERDICT = 3             # sentences
MOST = 8                # findings that are shown at once


@dataclass(frozen=True, eq=False)
class Finding:
    """A value with its interval, a verdict and one reason, in a line.

    more        sentences on the same, for the page and the files
    estimate    what has ``value``, ``low`` and ``high``; None where the finding is no number
    kind        which template of report/texts said it, and severity: the section of that, finding or warning
    named       the values that it was filled in with, by name
    """

    said: str
    more: tuple[str, ...] = ()
    estimate: object = None
    kind: str = ""
    named: Mapping[str, object] = field(default_factory=dict)
    severity: str = "finding"

    def values(self) -> dict[str, object]:
        """For JSON."""
        ends = _ends(self.estimate) if self.estimate else {}
        return {"kind": self.kind, "severity": self.severity, "said": self.said, "more": self.more, **ends,
                "values": {name: plain_value(value) for name, value in self.named.items()}}


def _ends(estimate: object) -> dict[str, object]:
    return {name: finite(getattr(estimate, name)) for name in ("value", "low", "high")}


def plain_value(value: object) -> object:
    """A value as JSON can hold it."""
    if hasattr(value, "low"):
        return _ends(value)
    if isinstance(value, (list, tuple)):
        return [plain_value(one) for one in value]
    value = value.item() if isinstance(value, np.generic) else value
    return finite(value) if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def sentences_of(findings: Iterable[Finding]) -> tuple[str, ...]:
    """All that findings say."""
    return tuple(said for one in findings for said in (one.said, *one.more))
