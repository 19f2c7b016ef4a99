"""A report as one record: what report.html, report.json and the screen are written from; pages.py makes it."""
from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..analysis.report_data import Section
from ..analysis.trials import JobKey
from ..formatting.numbers import counted
from ..log.reader import Log
from ..target import Target
from .drawing import Figure
from .table import Table, encode, pick

VERDICT = 3             # sentences
MOST = 8                # findings that are shown at once
Path = str | os.PathLike[str]
COMPARED = {"<": "below", "<=": "at-most", ">": "above", ">=": "at-least"}
LONGEST_WORKLOAD, LONGEST_TARGET, LONGEST_FILE = 80, 60, 200        # letters
HASHED = 6                  # letters of the hash of what was cut off
MAIN = 2                            # figures of a workload that are drawn unless all are asked for
# what an import says of trials
IMPORTED = "search repeats workers steps overlap batch times metric unit ways blind tags".split()


@dataclass(frozen=True, eq=False)
class Finding:
    """A value with its interval, a verdict and one reason, in a line."""

    said: str
    more: tuple[str, ...] = ()      # sentences on the same, for the page and the files
    estimate: object = None         # what has ``value``, ``low`` and ``high``; None where the finding is no number
    kind: str = ""                  # which template of report/texts said it
    named: Mapping[str, object] = field(default_factory=dict)       # the values that it was filled in with
    severity: str = "finding"       # the section of the template, or warning

    def values(self) -> dict[str, object]:
        return {**pick(self, "kind severity said more"), **(encode(self.estimate) if self.estimate else {}),
                **pick(self, "values=named")}


def sentences_of(findings: Iterable[Finding]) -> tuple[str, ...]:
    return tuple(said for one in findings for said in (one.said, *one.more))


class Details(NamedTuple):
    """Tables for files only, which are worked out when they are asked for, while the logs are open."""

    find: Callable[[], Iterable[Table | None]]


class Figures(NamedTuple):
    """Figures that are worked out one after another, as far as they are asked for, while the logs are open."""

    find: Callable[[], Iterable[Figure | None]]


Part = Finding | Table | Details | Figures | None        # of what a view shows; None: nothing


@dataclass(frozen=True, eq=False)
class Shown:
    parts: tuple[Part, ...] = ()
    most_figures: int | None = None         # None: all

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(part for part in self.parts if isinstance(part, Finding))

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        return tuple(part for part in self.parts if isinstance(part, Table))

    @property
    def summary(self) -> tuple[str, ...]:
        return sentences_of(self.findings)

    @cached_property
    def details(self) -> tuple[Table, ...]:
        return tuple(table for part in self.parts if isinstance(part, Details)
                     for table in part.find() if table is not None)

    @cached_property
    def figures(self) -> tuple[Figure, ...]:
        """Of those of one name the first; none is worked out beyond the most that are shown."""
        every = (figure for part in self.parts if isinstance(part, Figures)
                 for figure in part.find() if figure is not None)
        found: dict[str, Figure] = {}
        while len(found) != self.most_figures and (figure := next(every, None)):
            found.setdefault(figure.name, figure)
        return tuple(found.values())


def slug(text: object) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", str(text)).strip("-.")


def cut(text: str, longest: int) -> str:
    """A name of at most that many letters; a hash of the whole keeps shortened names distinct."""
    return text if len(text) <= longest else f"{text[:longest - HASHED - 1]}-{_hash(text)}"


def section_name(workload: JobKey, target: Target | None = None, rest: str = "") -> str:
    """The name of a workload held against a target, whole unless it is very long; without one it ends in ``rest``."""
    size = f"{workload.train_examples}-examples" if workload.train_examples else ""
    args = "" if workload.model_args in ("", "{}", "null") else workload.model_args
    names = slug("-".join(filter(None, (workload.dataset, workload.model, workload.optimizer, size, args))))
    if target:              # val-error-below-0.01; at-most of <=, minus-1 of -1
        value = re.sub("^-", "minus-", str(target).removeprefix(f"{target.column}{target.comparison}"))
        rest = cut(slug(f"{column_name(target.column)}-{COMPARED[target.comparison]}-{value}"), LONGEST_TARGET)
    return "-".join(filter(None, (cut(names, LONGEST_WORKLOAD), rest)))


def column_name(column: str) -> str:
    """``val-cross_entropy``; with a hash where the metric's name has more than a file name should."""
    name = re.sub("[^A-Za-z0-9._-]+", "-", column).strip("-")
    return name if name == column.replace("/", "-", 1) else f"{name}-{_hash(column)}"


def unique(name: str, of: object, taken: set[str]) -> str:
    """The name, which is then taken; where it is, one with a hash of ``of``: what it is the name of, in full."""
    found = name if name not in taken else f"{name}-{_hash(str(of))}"
    taken.add(found)
    return found


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:HASHED]


class LogFacts(NamedTuple):
    """Where numbers come from: a log's attributes, and where its trials ran."""

    path: str
    trials: int
    attributes: dict[str, Any]
    hosts: tuple[str, ...]
    devices: tuple[str, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Chapter(Shown):
    slug: str                       # for file names and anchors
    title: str
    workload: str = ""              # "": of several
    target: Target | None = None
    describe: Callable[[], tuple[str, ...]] = tuple         # gives the notes, while the logs are open

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """How to read the verdict, and what was run."""
        return self.describe()


@dataclass(frozen=True, eq=False, kw_only=True)
class Page(Chapter):
    """A workload held against one target: a verdict, a table, findings, then the other tables and the figures."""

    section: Section | None = None  # None: of more evaluations than trials are made of one by one
    verdict: tuple[str, ...]        # at most VERDICT sentences
    left_out: tuple[str, ...] = ()  # warnings: what is in no estimate, and what speaks against the verdict

    @property
    def summary(self) -> tuple[str, ...]:
        return (*self.verdict, *sentences_of(self.findings), *self.notes)


@dataclass(frozen=True, eq=False)
class Document:
    pages: tuple[tuple[JobKey, Sequence[Page]], ...]        # by workload
    logs: tuple[LogFacts, ...]
    skipped: tuple[str, ...]        # messages about logs that could not be read, and trials that imports left out
    confidence: float
    chapters: tuple[Chapter, ...] = ()
    notes: tuple[str, ...] = ()     # on the whole of it
    kind: str = "report"            # or plan: how its files begin
    hint: str = ""                  # what to ask for next
    values: Callable[[], Mapping[str, object]] | None = None        # what the JSON has; None: all that is here

    @property
    def shown(self) -> list[Chapter]:
        return [*(page for _, pages in self.pages for page in pages), *self.chapters]

    def with_main_figures(self) -> Document:
        """The same with the first MAIN figures of each workload alone, beside those of chapters."""
        return replace(self, pages=tuple(
            (workload, [replace(page, most_figures=0 if at else MAIN) for at, page in enumerate(own)])
            for workload, own in self.pages))

    @property
    def how_to_read(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """(what it is about, notes) of each page and table, every note once."""
        said: set[str] = set()
        found: dict[str, list[str]] = {}
        for shown in self.shown:
            tables = ((table.title.partition(":")[0], table.notes) for table in shown.tables)
            for about, notes in (("Verdict", shown.notes), *tables):
                found.setdefault(about, []).extend(note for note in notes if note not in said)
                said.update(notes)
        return tuple((about, tuple(notes)) for about, notes in found.items() if notes)

    @property
    def title(self) -> str:
        names = list(dict.fromkeys(f"{workload.dataset}/{workload.model}" for workload, _ in self.pages))
        return f"Scaling {self.kind}: {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}"

    @property
    def lead(self) -> str:
        return f"{counted(sum(log.trials for log in self.logs), 'trial')} in {counted(len(self.logs), 'log')}"


def facts_of(log: Log) -> LogFacts:
    hosts, devices = (tuple(map(str, np.unique(log.restarts[name].astype(str)))) if log.restarts.rows else ()
                      for name in ("host", "device"))
    return LogFacts(log.path, log.trials.rows, dict(log.attributes), hosts, devices)


def describe_imports(logs: Iterable[LogFacts | Log]) -> tuple[str, ...]:
    """What was guessed, assumed and left out when logs were imported."""
    return tuple(f"{facts.path}: {said}." for facts in logs for name in IMPORTED
                 if (said := facts.attributes.get("imported", {}).get(name)))
