"""A report as one record: what report.html, report.json and the screen are written from; pages.py makes it."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from ..analysis.report_data import JobResults, Section
from ..formatting.numbers import counted
from ..log.reader import Log
from ..target import Target
from .findings import sentences_of
from .view import View

MAIN = 2                            # figures of a workload that are drawn unless all are asked for
REPORT = "Scaling report"
# what an import says of trials
IMPORTED = ("search", "repeats", "workers", "steps", "overlap", "batch", "times", "metric", "ways", "tags")


@dataclass(frozen=True)
class LogFacts:
    """Where numbers come from: a log's attributes, and where its trials ran."""

    path: str
    trials: int
    attributes: dict[str, Any]
    hosts: tuple[str, ...]
    devices: tuple[str, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Chapter(View):
    """What is about several workloads."""

    slug: str                       # for file names and anchors
    title: str
    target: Target | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Page(Chapter):
    """A workload held against one target: a verdict, a table, findings, then the other tables and the figures."""

    section: Section | None = None  # None: of more evaluations than trials are made of one by one
    verdict: tuple[str, ...]        # at most VERDICT sentences
    left_out: tuple[str, ...] = ()  # warnings: what is in no estimate, and what speaks against the verdict
    notes: tuple[str, ...] = ()     # how to read the verdict, and what was run

    @property
    def summary(self) -> tuple[str, ...]:
        """The whole in sentences."""
        return (*self.verdict, *sentences_of(self.findings), *self.notes)


@dataclass(frozen=True, eq=False)
class Document:
    """The whole report."""

    pages: tuple[tuple[JobResults, tuple[Page, ...]], ...]
    logs: tuple[LogFacts, ...]
    skipped: tuple[str, ...]        # messages about logs that could not be read, and trials that imports left out
    confidence: float
    chapters: tuple[Chapter, ...] = ()
    notes: tuple[str, ...] = ()     # on the whole of it
    kind: str = REPORT
    hint: str = ""                  # what to ask for next

    @property
    def shown(self) -> list[Chapter]:
        """Every page and chapter."""
        return [*(page for _, pages in self.pages for page in pages), *self.chapters]

    def with_main_figures(self) -> Document:
        """The same with the first MAIN figures of each workload alone, beside those of chapters."""
        def cut(page: Page, most: int) -> Page:
            return replace(page, find=lambda: islice(page.find(), most))
        return replace(self, pages=tuple(
            (group, tuple(cut(page, 0 if at else MAIN) for at, page in enumerate(own))) for group, own in self.pages))

    @property
    def how_to_read(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """(what it is about, notes) of each page and table, every note once."""
        said: set[str] = set()
        found: dict[str, list[str]] = {}
        for shown in self.shown:
            verdict = shown.notes if isinstance(shown, Page) else ()
            for about, notes in (("Verdict", verdict), *(
                    (table.title.partition(":")[0], table.notes) for table in shown.tables)):
                found.setdefault(about, []).extend(note for note in notes if note not in said)
                said.update(notes)
        return tuple((about, tuple(notes)) for about, notes in found.items() if notes)

    @property
    def title(self) -> str:
        """What it is about."""
        names = list(dict.fromkeys(f"{group.workload.dataset}/{group.workload.model}" for group, _ in self.pages))
        return f"{self.kind}: {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}"

    @property
    def lead(self) -> str:
        """How much it is based on."""
        trials = sum(log.trials for log in self.logs)
        return f"{counted(trials, 'trial')} in {counted(len(self.logs), 'log')}"


def facts_of(log: Log) -> LogFacts:
    """What to say of a log; see log.reader.Log."""
    hosts, devices = (tuple(map(str, np.unique(log.restarts[name].astype(str)))) if log.restarts.rows else ()
                      for name in ("host", "device"))
    return LogFacts(log.path, log.trials.rows, dict(log.attributes), hosts, devices)


def describe_imports(logs: Iterable[LogFacts | Log]) -> tuple[str, ...]:
    """What was guessed, assumed and left out when logs were imported."""
    return tuple(f"{facts.path}: {said}." for facts in logs for name in IMPORTED
                 if (said := facts.attributes.get("imported", {}).get(name)))
