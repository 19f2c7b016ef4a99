"""An examination as text: a line a check, what is known of each failure, tables, notes."""
from __future__ import annotations

import textwrap
from collections.abc import Sequence

from ..formatting.text_table import aligned
from .examine import Examination
from .finding import FAILED, NOT_APPLICABLE, PASSED, WARNED, Finding

SHOWN = {PASSED: "passed", WARNED: "warned", FAILED: "FAILED", NOT_APPLICABLE: "-"}
COLOURS = {PASSED: "\x1b[32m", WARNED: "\x1b[33m", FAILED: "\x1b[1;31m", NOT_APPLICABLE: "\x1b[2m"}
PLAIN = "\x1b[0m"
NARROWEST, WIDEST = 50, 120
NAME, VERDICT = 14, 6
NOTES = "No fault, but it depends on the number of workers or on the machine:"


def render(examination: Examination, seconds: float, width: int, colour: bool) -> str:
    """All of it, in lines of at most ``width`` characters, as far as words allow."""
    width = _bounded(width)
    sample, plan, findings = examination.sample, examination.job.plan, examination.findings
    blocks = [textwrap.fill(
        f"{plan.workload} at a global batch of {plan.global_batch}: {len(findings)} checks, the model's on a step of "
        f"{sample.plan.global_batch} examples in {sample.plan.precision}", width)]
    blocks.append(render_findings(findings, width, colour))
    blocks += [f"{finding.check}\n{_table(finding.rows)}" for finding in findings if finding.rows]
    if examination.notes:
        blocks.append("\n".join([textwrap.fill(NOTES, width), *(_hung("  - ", note, width)
                                                                for note in examination.notes)]))
    counts = {verdict: sum(finding.verdict == verdict for finding in findings) for verdict in SHOWN}
    told = ", ".join(f"{number} {verdict}" for verdict, number in counts.items() if number)
    blocks.append(f"{told}; {seconds:.1f} s")
    return "\n\n".join(blocks)


def render_findings(findings: Sequence[Finding], width: int, colour: bool) -> str:
    """A line a check, then what is known of each that failed or warns."""
    width = _bounded(width)
    lines = "\n".join(_line(finding, width, colour) for finding in findings)
    failures = [_failure(finding, width, colour) for finding in findings if finding.verdict in (FAILED, WARNED)]
    return "\n\n".join([lines, *failures])


def _bounded(width: int) -> int:
    return max(NARROWEST, min(width, WIDEST))


def _line(finding: Finding, width: int, colour: bool) -> str:
    verdict = _coloured(f"{SHOWN[finding.verdict]:{VERDICT}}", finding.verdict, colour)
    text = finding.looked_at
    if finding.verdict == PASSED and finding.limit:
        text += f". Apart by {finding.by:.1g}, allowed {finding.limit:.0e}" if finding.by else ". Equal to the last bit"
    lines = textwrap.wrap(text, width - NAME - VERDICT - 6, break_on_hyphens=False) or [""]
    hung = f"\n{' ' * (NAME + VERDICT + 6)}".join(lines)
    return f"  {finding.check:{NAME}}  {verdict}  {hung}"


def _failure(finding: Finding, width: int, colour: bool) -> str:
    rows = [("what differs", finding.differs), ("by how much", _by(finding)), ("usual cause", finding.cause),
            ("next move", finding.remedy)]
    heading = f"{_coloured(SHOWN[finding.verdict], finding.verdict, colour)}: {finding.check}"
    return "\n".join([heading, *(_hung(f"  {name:12}  ", text, width) for name, text in rows if text)])


def _by(finding: Finding) -> str:
    return "" if finding.by is None else f"{finding.by:.3g}; allowed {finding.limit:g}"


def _hung(start: str, text: str, width: int) -> str:
    return textwrap.fill(text, width, initial_indent=start, subsequent_indent=" " * len(start), break_long_words=False,
                         break_on_hyphens=False)


def _table(rows: tuple[tuple[str, ...], ...]) -> str:
    return "\n".join(f"  {line}" for line in aligned(rows, left=range(len(rows[0]))))


def _coloured(text: str, verdict: str, colour: bool) -> str:
    return f"{COLOURS[verdict]}{text}{PLAIN}" if colour else text
