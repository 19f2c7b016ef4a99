"""An examination as text: one line per check, details of each failure, tables, notes; and its findings for machines: as
JSON, and as JUnit's XML, which CI systems show."""

import contextlib
import json
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO
from xml.etree import ElementTree

from ..errors import UsageError
from ..formatting.screen import printable, wrap
from ..report.table import encode
from .finding import Finding, Verdict

TEXT, JSON, JUNIT = "text", "json", "junit"
DETAILS = {"what differs": "differs", "where": "where", "by how much": "by", "allowed": "limit",
           "usual cause": "cause", "next move": "remedy"}
LABELS = dict(zip(Verdict, ("passed", "warned", "FAILED", "unseen", "-")))
COLOURS = dict(zip(Verdict, ("\x1b[32m", "\x1b[33m", "\x1b[1;31m", "\x1b[35m", "\x1b[2m")))
PLAIN = "\x1b[0m"
NAME, VERDICT = 14, 6       # characters
NOTES = "Not faults, but these depend on the number of workers or on the machine:"


@dataclass(frozen=True)
class Judged:
    """Findings, and what is said around them."""

    findings: tuple[Finding, ...]
    about: Mapping[str, object]     # what was examined and how, for machines
    texts: Sequence[str]            # the report's headline, and the blocks below the findings, but for empty ones

    verdict = ""                    # the outcome in a line, which comes first

    @property
    def sound(self) -> bool:
        return all(finding.verdict != Verdict.FAILED for finding in self.findings)

    def render(self, seconds: float, colour: bool) -> str:
        """The whole report, in lines as wide as the terminal where words allow."""
        headline, *blocks = self.texts
        counts = {verdict: sum(finding.verdict == verdict for finding in self.findings) for verdict in Verdict}
        summary = ", ".join(f"{number} {verdict}" for verdict, number in counts.items() if number)
        return "\n\n".join(filter(None, [self.verdict and wrap(self.verdict), wrap(headline), render_findings(
            self.findings, colour), *blocks, f"{summary}; {seconds:.1f} s"]))


def render_list(heading: str, items: Sequence[str]) -> str:
    """The heading, and a line or more for each item; empty without items."""
    return "\n".join([wrap(heading), *(wrap(item, "  - ") for item in items)]) if items else ""


def render_findings(findings: Sequence[Finding], colour: bool) -> str:
    """One line per check, then the details of each that failed or warns."""
    lines = "\n".join(_line(finding, colour) for finding in findings)
    return "\n\n".join([lines, *(_failure(finding, colour) for finding in findings if finding.differs)])


def _line(finding: Finding, colour: bool) -> str:
    verdict = _colour(f"{LABELS[finding.verdict]:{VERDICT}}", finding.verdict, colour)
    unexplained = finding.verdict == Verdict.UNSEEN and finding.differs
    text = f"unexplained: {finding.looked_at}" if unexplained else finding.looked_at
    if finding.verdict == Verdict.PASSED and finding.limit:
        text += f". Difference {finding.by:.1g}, allowed {finding.limit:.0e}" if finding.by else ". Bit-identical"
    return f"  {finding.check:{NAME}}  {verdict}  {wrap(text, ' ' * (NAME + VERDICT + 6)).lstrip()}"


def _failure(finding: Finding, colour: bool) -> str:
    by = "" if finding.by is None else f"{finding.by:.3g}; allowed {finding.limit:g}"
    rows = {name: getattr(finding, field) for name, field in DETAILS.items()} | {"by how much": by, "allowed": ""}
    heading = f"{_colour(LABELS[finding.verdict], finding.verdict, colour)}: {finding.check}"
    return "\n".join([heading, *(wrap(text, f"  {name:12}  ") for name, text in rows.items() if text)])


def _colour(text: str, verdict: str, colour: bool) -> str:
    return f"{COLOURS[verdict]}{text}{PLAIN}" if colour else text


def checks_of(text: str | None, known: Sequence[str]) -> tuple[str, ...]:
    """Those of the known checks that ``gradient,examples`` names, all for None; raises UsageError."""
    asked = known if text is None else [name.strip() for name in text.split(",")]
    for name in asked:
        if name not in known:
            raise UsageError(f"--checks {text!r}: there is no check {name!r}; choose from {', '.join(known)}, with "
                             "commas between")
    return tuple(name for name in known if name in asked)


def render_for_machines(wanted: str, about: Mapping[str, object], findings: Sequence[Finding], code: int,
                        blind: Collection[str] = (), suite: str = "hvdscale-doctor") -> str:
    """The findings as JSON, with null for what was not measured or is not finite, or JUNIT; with what was examined and
    how, by name. Where checks that are ``blind`` did not see what they judge, JUnit has an error, else a skipped test.
    """
    about = {**about, "exit_code": code}
    if wanted == JSON:
        return json.dumps(encode({**about, "checks": [*map(vars, findings)]}), indent=1, allow_nan=False)
    document = ElementTree.Element("testsuites")
    tests = ElementTree.SubElement(document, "testsuite", name=suite)
    properties = ElementTree.SubElement(tests, "properties")
    for key, value in about.items():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            ElementTree.SubElement(properties, "property", name=key, value=printable(str(one)))
    for finding in findings:
        case = ElementTree.SubElement(tests, "testcase", classname=suite, name=finding.check)
        path, colon, line = finding.where.rpartition(":")
        if colon and line.isdecimal():
            case.attrib.update(file=printable(path), line=line)
        details = "\n".join([finding.looked_at, *(f"{label}: {getattr(finding, field)}" for label, field in
                                                  DETAILS.items() if getattr(finding, field) not in ("", None))])
        if finding.verdict == Verdict.WARNED:       # it passes, and says what it warns of as its output
            ElementTree.SubElement(case, "system-out").text = printable(f"warned: {details}")
        elif finding.verdict == Verdict.FAILED:
            ElementTree.SubElement(case, "failure", message=printable(finding.differs)).text = printable(details)
        elif finding.verdict != Verdict.PASSED:
            tag = "error" if finding.check in blind and finding.verdict == Verdict.UNSEEN else "skipped"
            ElementTree.SubElement(case, tag, message=printable(f"{finding.verdict}: {finding.looked_at}"))
    for attribute, tag in {"tests": "testcase", "failures": "failure", "errors": "error", "skipped": "skipped"}.items():
        tests.set(attribute, str(sum(1 for _ in tests.iter(tag))))
    ElementTree.indent(document, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(document, encoding="unicode")


@contextlib.contextmanager
def stdout_alone(wanted: str) -> Iterator[TextIO]:
    """Stdout; for machines all others who print there within this context print on stderr, so JSON stays JSON."""
    if wanted == TEXT:
        yield sys.stdout
        return
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace") as alone:
        os.dup2(2, 1)
        try:
            yield alone
        finally:
            sys.stdout.flush()
            os.dup2(alone.fileno(), 1)
