"""An examination as text: one line per check, details of each failure, tables, notes."""
from __future__ import annotations

import textwrap
from collections.abc import Sequence

from ..formatting.text_table import aligned
from .examine import Examination
from .finding import Finding, Verdict

LABELS = dict(zip(Verdict, ("passed", "warned", "FAILED", "-")))
COLOURS = dict(zip(Verdict, ("\x1b[32m", "\x1b[33m", "\x1b[1;31m", "\x1b[2m")))
PLAIN = "\x1b[0m"
NARROWEST, WIDEST = 50, 120
NAME, VERDICT = 14, 6
NOTES = "Not faults, but these depend on the number of workers or on the machine:"


def render(examination: Examination, seconds: float, width: int, colour: bool) -> str:
    """The whole report, in lines of at most ``width`` characters where words allow."""
    width = bound_width(width)
    sample, plan, findings = examination.sample, examination.job.plan, examination.findings
    blocks = [textwrap.fill(
        f"{plan.workload} at global batch {plan.batches}: {len(findings)} checks; those of the model use a step "
        f"of {sample.plan.global_batch} examples in {sample.plan.precision}", width)]
    blocks.append(render_findings(findings, width, colour))
    blocks += [f"{finding.check}\n{_table(finding.rows)}" for finding in findings if finding.rows]
    if examination.notes:
        blocks.append(render_list(NOTES, examination.notes, width))
    blocks.append(f"{summarize(findings)}; {seconds:.1f} s")
    return "\n\n".join(blocks)


def summarize(findings: Sequence[Finding]) -> str:
    """``12 passed, 1 failed``."""
    counts = {verdict: sum(finding.verdict == verdict for finding in findings) for verdict in Verdict}
    return ", ".join(f"{number} {verdict}" for verdict, number in counts.items() if number)


def render_list(heading: str, items: Sequence[str], width: int) -> str:
    """The heading, and a line or more for each item."""
    width = bound_width(width)
    return "\n".join([textwrap.fill(heading, width), *(_indent("  - ", item, width) for item in items)])


def render_findings(findings: Sequence[Finding], width: int, colour: bool) -> str:
    """One line per check, then the details of each that failed or warns."""
    width = bound_width(width)
    lines = "\n".join(_line(finding, width, colour) for finding in findings)
    failures = [finding for finding in findings if finding.verdict in (Verdict.FAILED, Verdict.WARNED)]
    return "\n\n".join([lines, *(_failure(finding, width, colour) for finding in failures)])


def bound_width(width: int) -> int:
    """The width of a report, for a terminal of this width."""
    return max(NARROWEST, min(width, WIDEST))


def _line(finding: Finding, width: int, colour: bool) -> str:
    verdict = _colour(f"{LABELS[finding.verdict]:{VERDICT}}", finding.verdict, colour)
    text = finding.looked_at
    if finding.verdict == Verdict.PASSED and finding.limit:
        text += f". Difference {finding.by:.1g}, allowed {finding.limit:.0e}" if finding.by else ". Bit-identical"
    lines = textwrap.wrap(text, width - NAME - VERDICT - 6, break_on_hyphens=False) or [""]
    indented = f"\n{' ' * (NAME + VERDICT + 6)}".join(lines)
    return f"  {finding.check:{NAME}}  {verdict}  {indented}"


def _failure(finding: Finding, width: int, colour: bool) -> str:
    rows = [("what differs", finding.differs), ("by how much", _by(finding)), ("usual cause", finding.cause),
            ("next move", finding.remedy)]
    heading = f"{_colour(LABELS[finding.verdict], finding.verdict, colour)}: {finding.check}"
    return "\n".join([heading, *(_indent(f"  {name:12}  ", text, width) for name, text in rows if text)])


def _by(finding: Finding) -> str:
    return "" if finding.by is None else f"{finding.by:.3g}; allowed {finding.limit:g}"


def _indent(start: str, text: str, width: int) -> str:
    return textwrap.fill(text, width, initial_indent=start, subsequent_indent=" " * len(start), break_long_words=False,
                         break_on_hyphens=False)


def _table(rows: tuple[tuple[str, ...], ...]) -> str:
    return "\n".join(f"  {line}" for line in aligned(rows, left=range(len(rows[0]))))


def _colour(text: str, verdict: str, colour: bool) -> str:
    return f"{COLOURS[verdict]}{text}{PLAIN}" if colour else text
