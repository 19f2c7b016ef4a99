"""A report as one record: what report.html, report.json and the screen are written from."""
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from .. import __version__
from ..analysis.explore import explore
from ..analysis.intervals import OWN_FROM
from ..analysis.sections import Group, Section, cells_of
from . import words
from .drawing import Figure
from .figures import figures_of
from .interactive import Explorer, explorer_of
from .numbers import counted
from .search import lines
from .search_tables import tables_of_searches
from .tables import Table, as_values, finite, tables_of, trial_list


@dataclass(frozen=True)
class LogFacts:
    """Where numbers come from: a log's attributes, and where its trials ran."""

    path: str
    trials: int
    attributes: dict
    hosts: tuple[str, ...]
    devices: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Page:
    """One section in words, tables and figures."""

    section: Section
    slug: str                       # for file names and anchors
    title: str
    summary: tuple[str, ...]
    left_out: tuple[str, ...]
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]
    explore: Callable[[], Explorer | None] = lambda: None       # while the logs are open

    @cached_property
    def explorer(self) -> Explorer | None:
        """Its slider over the target, worked out when it is asked for."""
        return self.explore()


@dataclass(frozen=True, eq=False)
class Document:
    """The whole report."""

    pages: tuple[tuple[Group, tuple[Page, ...]], ...]
    logs: tuple[LogFacts, ...]
    skipped: tuple[str, ...]        # messages about logs that could not be read
    confidence: float

    @property
    def title(self):
        """What it is about."""
        names = list(dict.fromkeys(f"{group.workload.dataset}/{group.workload.model}" for group, _ in self.pages))
        return f"Scaling report: {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}"

    @property
    def lead(self):
        """How much stands behind it."""
        trials = sum(len(group.trials) for group, _ in self.pages)
        return f"{counted(trials, 'trial')} in {counted(len(self.logs), 'log')}"


def facts_of(log) -> LogFacts:
    """What to say of a log; see log.reader.Log."""
    hosts, devices = (tuple(map(str, np.unique(log.restarts[name].astype(str)))) if log.restarts.rows else ()
                      for name in ("host", "device"))
    return LogFacts(log.path, log.trials.rows, dict(log.attributes), hosts, devices)


def document_of(groups, logs=(), skipped=(), confidence=0.95, studies=()) -> Document:
    """The report of analysed groups.

    logs      LogFacts of each; skipped: messages about those that could not be read
    studies   the same trials as studies.studies_of gives them; without them there is no slider over the target
    """
    taken = set()
    pages = tuple((group, tuple(_pages(group, [one for one in studies if one.workload == group.workload], taken)))
                  for group in groups)
    return Document(pages, tuple(logs), tuple(skipped), confidence)


def _pages(group, studies, taken):
    explored = set()
    for section in group.sections:
        column = section.target and section.target.column
        if studies and column and column not in explored:           # one slider serves all targets of a metric
            explored.add(column)
            yield _page(section, taken, partial(_explorer, section, studies))
        else:
            yield _page(section, taken)


def _explorer(section, studies):
    """The slider over the target of a section."""
    searched = any(trial.sweep for trial in section.trials)

    def steps_at(target):
        _, by_batch, _ = cells_of(section.trials, target, section.options)
        return {cell.global_batch: cell.steps for cell in by_batch}

    def cells_at(target):
        return cells_of(section.trials, target, section.options)[0]
    explored = explore(studies, section.target, None if searched else steps_at, cells_at, section.strictest)
    return explorer_of(explored, searched, section.options.confidence)


def as_json(document: Document) -> dict:
    """The report for report.json: every number with its interval, its trials and its formula."""
    return {
        "format": "hvdscale-report", "version": 1, "creator": f"hvdscale {__version__}",
        "confidence": document.confidence,
        "logs": [{"path": log.path, "trials": log.trials, "hosts": log.hosts, "devices": log.devices,
                  "attributes": {name: _plain(value) for name, value in log.attributes.items()}}
                 for log in document.logs],
        "skipped": document.skipped,
        "workloads": [{
            "dataset": group.workload.dataset, "model": group.workload.model, "model_args": group.workload.model_args,
            "optimizer": group.workload.optimizer, "train_examples": group.workload.train_examples,
            "sections": [_section_values(page) for page in pages]} for group, pages in document.pages],
    }


def _section_values(page):
    options = page.section.options
    searches = [_search_values(search) for search in page.section.searches]
    return {
        "target": str(page.section.target) if page.section.target else None, "summary": page.summary,
        "left_out": page.left_out, "intervals": _interval_values(page.section),
        "tolerances": {"perfect_within": options.perfect_within, "useful_within": options.useful_within},
        "tables": [as_values(table) for table in page.tables],
        "figures": [{"name": f"{page.slug}-{figure.name}", "title": figure.title, "caption": figure.caption,
                     "formula": figure.formula, "source": figure.source, "trials": trial_list(figure.trials)}
                    for figure in page.figures],
        **({"searches": searches} if searches else {}),
    }


def _search_values(search):
    """A study, beyond what its row in the table says."""
    return {
        "study": search.study, "objective": search.objective, "done": search.done, "said": lines(search),
        "space": [one.record() for one in search.space],
        "draws": [{"draw": draw.number, "kind": draw.kind, "value": finite(draw.value), "last_step": draw.last_step,
                   "point": draw.point if draw.trial else None,
                   **({"log": draw.trial.log, "trial": draw.trial.id} if draw.trial else {})} for draw in search.draws],
        "best": search.best and search.best.number,
        "positions": {bound.parameter.name: finite(bound.position) for bound in search.bounds},
        "best_of_n": [{"n": one.n, "low": finite(one.low), "high": finite(one.high)} for one in search.curve],
        "saved_steps": finite(search.saved_steps),
    }


def _interval_values(section):
    """How the intervals of a section come about."""
    pools = section.pools
    return {
        "confidence": section.options.confidence,
        "formula": "exp(mean(log) +- t s / sqrt(n)); s^2 = sum of squares within points / sum of (n - 1), the "
                   f"degrees of freedom of t; a point with n >= {OWN_FROM} uses its own s; ratios: s^2 / n of both "
                   "sides added, degrees of freedom by Welch-Satterthwaite where two spreads differ; same updates: "
                   "paired by seed",
        "pooled": {name: {"deviation_of_logs": float(spread.deviation), "degrees_of_freedom": spread.freedom}
                   for name, spread in pools.cell.items() if spread.freedom},
        "paired": {name: {"deviation_of_logs": float(spread.deviation), "degrees_of_freedom": spread.freedom}
                   for name, spread in pools.paired.items() if spread.freedom},
    }


def _page(section, taken, explore=lambda: None):
    title = str(section.target) if section.target else "Throughput"
    return Page(section, _slug(section, taken), title, words.summary(section), words.left_out(section),
                (*tables_of(section), *tables_of_searches(section.searches)), figures_of(section), explore)


def _slug(section, taken):
    """A name for files that no other section has."""
    workload = section.workload
    target = str(section.target).replace("<", "-below-").replace(">", "-above-") if section.target else "throughput"
    text = re.sub(r"[^A-Za-z0-9.]+", "-", f"{workload.dataset}-{workload.model}-{workload.optimizer}-{target}")
    text = text.strip("-.")[:80]
    slug = next(name for name in (text, *(f"{text}-{at}" for at in range(2, 9999))) if name not in taken)
    taken.add(slug)
    return slug


def _plain(value):
    """An attribute as JSON can hold it."""
    return value.item() if isinstance(value, np.generic) else value if isinstance(value, (int, float)) else str(value)
