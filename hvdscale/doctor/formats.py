"""Findings for machines: as JSON, and as JUnit's XML, which CI systems show.

    render_for_machines("json", about, findings, code)
"""
from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TextIO
from xml.etree import ElementTree

from ..errors import UsageError
from ..formatting.escaping import printable
from .finding import Finding, Verdict

TEXT, JSON, JUNIT = FORMATS = ("text", "json", "junit")
SUITE = "hvdscale-doctor"
DETAILS = {"what differs": "differs", "where": "where", "by how much": "by", "allowed": "limit",
           "usual cause": "cause", "next move": "remedy"}


def checks_of(text: str | None, known: Sequence[str]) -> tuple[str, ...]:
    """Those of the known checks that ``gradient,examples`` names; all for None. Raises UsageError for an unknown
    name.
    """
    if text is None:
        return tuple(known)
    asked = [name.strip() for name in text.split(",")]
    for name in asked:
        if name not in known:
            raise UsageError(f"--checks {text!r}: there is no check {name!r}; choose from {', '.join(known)}, with "
                             "commas between")
    return tuple(name for name in known if name in asked)


def render_for_machines(wanted: str, about: Mapping[str, object], findings: Sequence[Finding], code: int,
                        blind: Collection[str] = (), suite: str = SUITE) -> str:
    """The findings as JSON or JUNIT.

    about  what was examined and how, by name: numbers, text, lists of text;  code  the exit code
    blind  checks that must see what they judge: where they did not, JUnit has an error, else a skipped test
    """
    if wanted == JSON:
        return json.dumps({**about, "exit_code": code, "checks": [_record(finding) for finding in findings]}, indent=1,
                          allow_nan=False)
    return _junit({**about, "exit_code": code}, findings, blind, suite)


def _record(finding: Finding) -> dict:
    """All fields of the finding; null for what was not measured or is not finite."""
    record = {field.name: getattr(finding, field.name) for field in fields(finding)}
    numbers = {name: record[name] if math.isfinite(record[name] or 0.0) else None for name in ("by", "limit")}
    return {**record, **numbers}


def _junit(about: Mapping[str, object], findings: Sequence[Finding], blind: Collection[str], name: str) -> str:
    suite = ElementTree.Element("testsuite", name=name)
    properties = ElementTree.SubElement(suite, "properties")
    for key, value in about.items():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            ElementTree.SubElement(properties, "property", name=key, value=printable(str(one)))
    for finding in findings:
        _add_case(suite, finding, finding.check in blind)
    for attribute, tag in {"tests": "testcase", "failures": "failure", "errors": "error", "skipped": "skipped"}.items():
        suite.set(attribute, str(sum(1 for _ in suite.iter(tag))))
    document = ElementTree.Element("testsuites")
    document.append(suite)
    ElementTree.indent(document, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(document, encoding="unicode")


def _add_case(suite: ElementTree.Element, finding: Finding, blind: bool) -> None:
    """A test case. A warning passes, and says what it warns of as its output."""
    case = ElementTree.SubElement(suite, "testcase", classname=suite.get("name", ""), name=finding.check)
    path, colon, line = finding.where.rpartition(":")
    if colon and line.isdecimal():
        case.attrib.update(file=printable(path), line=line)
    details = "\n".join([finding.looked_at, *(f"{name}: {getattr(finding, field)}" for name, field in DETAILS.items()
                                              if getattr(finding, field) not in ("", None))])
    if finding.verdict == Verdict.WARNED:
        ElementTree.SubElement(case, "system-out").text = printable(f"warned: {details}")
    elif finding.verdict == Verdict.FAILED:
        ElementTree.SubElement(case, "failure", message=printable(finding.differs)).text = printable(details)
    elif finding.verdict != Verdict.PASSED:
        tag = "error" if blind and finding.verdict == Verdict.UNSEEN else "skipped"
        ElementTree.SubElement(case, tag, message=printable(f"{finding.verdict}: {finding.looked_at}"))


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
