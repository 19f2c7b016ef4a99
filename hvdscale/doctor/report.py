"""An examination as text: one line per check, details of each failure, tables, notes."""
from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from ..formatting.escaping import printable
from ..formatting.lines import line_width, wrap
from ..formatting.numbers import counted
from ..formatting.text_table import aligned
from .finding import Finding, Verdict

if TYPE_CHECKING:
    from .examine import Examination

LABELS = dict(zip(Verdict, ("passed", "warned", "FAILED", "unseen", "-")))
COLOURS = dict(zip(Verdict, ("\x1b[32m", "\x1b[33m", "\x1b[1;31m", "\x1b[35m", "\x1b[2m")))
PLAIN = "\x1b[0m"
NAME, VERDICT = 14, 6
NOTES = "Not faults, but these depend on the number of workers or on the machine:"


def render(examination: Examination, seconds: float, colour: bool) -> str:
    """The whole report, in lines of ``line_width()`` characters where words allow."""
    sample, plan, findings = examination.sample, examination.job.plan, examination.findings
    headline = (f"{plan.workload} at global batch {plan.batches}: {counted(len(findings), 'check')}; those of the "
                f"model use a step of {sample.plan.global_batch} examples in {sample.plan.precision}")
    tables = [f"{finding.check}\n{render_table(finding.rows, range(len(finding.rows[0])))}"
              for finding in findings if finding.rows]
    return join_blocks(headline, findings, seconds, colour, *tables, render_list(NOTES, examination.notes))


def join_blocks(headline: str, findings: Sequence[Finding], seconds: float, colour: bool, *blocks: str) -> str:
    """A report: the headline, the findings, the other blocks but for empty ones, and the summary."""
    return "\n\n".join([wrap(headline), render_findings(findings, colour), *filter(None, blocks),
                        f"{summarize(findings)}; {seconds:.1f} s"])


def summarize(findings: Sequence[Finding]) -> str:
    """``12 passed, 1 failed``."""
    counts = {verdict: sum(finding.verdict == verdict for finding in findings) for verdict in Verdict}
    return ", ".join(f"{number} {verdict}" for verdict, number in counts.items() if number)


def render_list(heading: str, items: Sequence[str]) -> str:
    """The heading, and a line or more for each item; empty without items."""
    return "\n".join([wrap(heading), *(wrap(item, "  - ") for item in items)]) if items else ""


def render_findings(findings: Sequence[Finding], colour: bool) -> str:
    """One line per check, then the details of each that failed or warns."""
    lines = "\n".join(_line(finding, colour) for finding in findings)
    failures = [finding for finding in findings if finding.differs]
    return "\n\n".join([lines, *(_failure(finding, colour) for finding in failures)])


def _line(finding: Finding, colour: bool) -> str:
    verdict = _colour(f"{LABELS[finding.verdict]:{VERDICT}}", finding.verdict, colour)
    text = f"unexplained: {finding.looked_at}" if finding.verdict == Verdict.UNSEEN and finding.differs else \
        finding.looked_at
    if finding.verdict == Verdict.PASSED and finding.limit:
        text += f". Difference {finding.by:.1g}, allowed {finding.limit:.0e}" if finding.by else ". Bit-identical"
    return f"  {finding.check:{NAME}}  {verdict}  {wrap(text, ' ' * (NAME + VERDICT + 6)).lstrip()}"


def _failure(finding: Finding, colour: bool) -> str:
    by = "" if finding.by is None else f"{finding.by:.3g}; allowed {finding.limit:g}"
    rows = [("what differs", finding.differs), ("where", finding.where), ("by how much", by),
            ("usual cause", finding.cause), ("next move", finding.remedy)]
    heading = f"{_colour(LABELS[finding.verdict], finding.verdict, colour)}: {finding.check}"
    return "\n".join([heading, *(wrap(text, f"  {name:12}  ") for name, text in rows if text)])


def render_table(rows: Sequence[tuple[str, ...]], left: Collection[int]) -> str:
    """The rows, indented; ``left``: the columns that are aligned there."""
    return "\n".join(f"  {printable(line)}" for line in aligned(rows, left, line_width() - 2))


def _colour(text: str, verdict: str, colour: bool) -> str:
    return f"{COLOURS[verdict]}{text}{PLAIN}" if colour else text
