"""Logs as they are read by the commands and by ``hvdscale.read``.

    runs = read("runs/*.h5")                    a log, a folder, a pattern, or a list of them
    runs.evaluations["val/error"]               an array
    report = runs.report("val/error<0.02")
    report.findings, report.tables, report.figures
"""
from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Any

from ..analysis.defaults import Options
from ..formatting.numbers import counted
from ..formatting.progress import Tell, quiet
from ..log.reader import Log
from ..target import Target
from .about import StudyRequest
from .document import Document, describe_imports
from .file_names import Path
from .frames import Frame
from .logs import document_of_logs
from .opening import open_logs
from .request import request_of, targets_of
from .results import Report


class Runs:
    """Logs that were read together. Their files stay open until ``close``, or the end of a with-block.

    skipped   messages about logs that could not be read, and trials that imports left out
    """

    def __init__(self, logs: Sequence[Log], skipped: Sequence[str], opened: ExitStack) -> None:
        self.logs, self.skipped = tuple(logs), tuple(skipped)
        self._opened = opened

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was guessed, assumed and left out when logs were imported."""
        return describe_imports(self.logs)

    @cached_property
    def trials(self) -> Frame:
        """A row a trial."""
        return Frame("trials", self.logs)

    @cached_property
    def restarts(self) -> Frame:
        """A row a process start."""
        return Frame("restarts", self.logs)

    @cached_property
    def evaluations(self) -> Frame:
        """A row an evaluation; metrics are columns such as ``val/error``."""
        return Frame("evaluations", self.logs)

    @cached_property
    def steps(self) -> Frame:
        """A row a step."""
        return Frame("steps", self.logs)

    def report(self, targets: Target | str | Iterable[Target | str] = (), **asked: Any) -> Report:
        """The report of these logs, as hvdscale-report prints it.

        targets  such as ``val/error<0.02``; none: each trial is held against the target of its own plan
        asked    options of hvdscale-report by their names: budgets, compare, paper, rules, rule_within,
                 perfect_within, useful_within, loss_within, trials, confidence, branch_tolerance, crossing, sizes, laws

        Raises UsageError for a value that means nothing, and for a target whose metric no log has.
        """
        options, wanted = request_of(**asked)
        return Report(self.document(targets_of(targets), options, wanted))

    def document(self, targets: Sequence[Target] = (), options: Options = Options(),
                 asked: StudyRequest = StudyRequest(), tell: Tell = quiet) -> Document:
        """The report as the record that pages and files are written from."""
        return document_of_logs(self.logs, targets, self.skipped, options, asked, tell)

    def close(self) -> None:
        """Closes the logs; columns that were read stay."""
        self._opened.close()

    def __enter__(self) -> Runs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{counted(self.trials.rows, 'trial')} in {counted(len(self.logs), 'log')}>"

    def _repr_html_(self) -> str:
        from .page.notebook import runs_html
        return runs_html(self.trials, self.skipped, len(self.logs))


def read(paths: Path | Iterable[Path], *, skip_broken: bool = False, tell: Tell = quiet) -> Runs:
    """Read logs, without torch.

    paths        a log, a directory, which means all its *.h5 files, a pattern such as ``runs/*.h5``, or several
    skip_broken  leave out logs that cannot be read; ``Runs.skipped`` names them

    Raises LogError where a log cannot be read, unless it is skipped, and where there is no trial at all.
    """
    with ExitStack() as opened:
        logs, skipped = open_logs([paths] if isinstance(paths, (str, os.PathLike)) else list(paths), skip_broken,
                                  opened, tell)
        return Runs(logs, skipped, opened.pop_all())
