"""What a report found: a verdict, then findings of a line each.

    page.verdict, page.findings = split(findings)
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..analysis.intervals import Estimate
from ..formatting.numbers import finite

VERDICT = 3             # sentences
MOST = 8                # findings that are shown at once


@dataclass(frozen=True, eq=False)
class Finding:
    """A value with its interval, a verdict and one reason, in a line.

    more      sentences on the same, for the page and the files
    estimate  what has ``value``, ``low`` and ``high``; None where the finding is no number
    """

    said: str
    more: tuple[str, ...] = ()
    estimate: object = None

    def values(self) -> dict[str, object]:
        """For JSON."""
        known = ("value", "low", "high") if self.estimate else ()
        return {"said": self.said, "more": self.more, **{name: finite(getattr(self.estimate, name)) for name in known}}


def finding_of(sentences: Sequence[str], estimate: Estimate | None = None) -> tuple[Finding, ...]:
    """Sentences about one thing, the first of which says it; () for none."""
    return (Finding(sentences[0], tuple(sentences[1:]), estimate),) if sentences else ()


def sentences_of(findings: Sequence[Finding]) -> tuple[str, ...]:
    """All that findings say."""
    return tuple(said for one in findings for said in (one.said, *one.more))
