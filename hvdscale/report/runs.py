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
from tempfile import TemporaryDirectory
from typing import Any

from ..analysis.metric_direction import check_direction
from ..analysis.report_data import Options, analyse, refuse_unknown
from ..analysis.studies import studies_of
from ..analysis.trials import read_trials
from ..analysis.versions import versions_of
from ..errors import LogError
from ..exchange.csv_tables import is_tables
from ..exchange.runs.formats import has_runs, is_archive
from ..exchange.runs.into_log import import_runs
from ..formatting.numbers import counted
from ..formatting.progress import Tell, quiet
from ..log.check import refuse_unsound, refuse_unsound_trials
from ..log.plan_text import refuse_wrong_plans
from ..log.reader import Log, read_log
from ..log.segments import expand, find_logs
from ..target import Target
from .document import MOST_EVALUATIONS, Document, document_of, document_of_studies, facts_of, imported_said
from .file_names import Path
from .frames import Frame
from .request import request_of, targets_of
from .results import Report
from .about import StudyRequest

CONTINUE = "--skip-broken (skip_broken=True in Python) continues without logs that cannot be read"
LONG_BYTES = 100 << 20      # of a log, beyond which reading it takes a while


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
        return imported_said(self.logs)

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
        logs, skipped = _open_all([paths] if isinstance(paths, (str, os.PathLike)) else list(paths), skip_broken,
                                  opened, tell)
        return Runs(logs, skipped, opened.pop_all())


def document_of_logs(logs: Sequence[Log], targets: Sequence[Target] = (), skipped: Sequence[str] = (),
                     options: Options = Options(), asked: StudyRequest = StudyRequest(), tell: Tell = quiet
                     ) -> Document:
    """The report of logs that are open, and stay so while the document is used."""
    for target in targets:
        check_direction(target, logs)
    evaluations = sum(log.evaluations.rows for log in logs)
    tell(f"sorting {evaluations:,} evaluations by trial", long=evaluations > MOST_EVALUATIONS)
    facts, versions = [facts_of(log) for log in logs], versions_of(logs)
    studies = studies_of(logs, versions.of)
    if asked.paper or evaluations > MOST_EVALUATIONS:
        refuse_unknown(targets, {name for study in studies for name in study.evaluations.columns})
        return document_of_studies(studies, targets, facts, skipped, options, asked, tell, versions.notes)
    trials = [trial for log in logs for trial in read_trials(log, versions.of)]
    tell(f"holding {counted(len(trials), 'trial')} against their targets")
    groups = analyse([trial for trial in trials if not trial.branch], targets, options)
    branches = [trial for trial in trials if trial.branch]
    return document_of(groups, facts, skipped, options, studies, asked, tell, branches, versions.notes)


def _open_all(paths: Sequence[Path], skip_broken: bool, opened: ExitStack,
              tell: Tell = quiet) -> tuple[list[Log], list[str]]:
    """(logs, messages about those skipped) of all logs among files and directories, open until ``opened`` closes.

    Raises LogError where a log cannot be read, unless it is to be skipped, and where there is nothing to report.
    """
    for path in expand(paths):
        _refuse_outer(path)
    found = {path: _log_of_runs(path, opened) for path in expand(paths)}
    names = find_logs(log or path for path, log in found.items())
    shown = {log: path for path, log in found.items()}
    logs, skipped = [], []
    for at, name in enumerate(names, 1):
        tell(f"reading log {at} of {len(names)}: {name}",
             long=os.path.exists(name) and os.path.getsize(name) > LONG_BYTES)
        try:
            log = opened.enter_context(read_log(name))
            log.path = shown.get(name, name)
            (refuse_unsound if log.evaluations.rows <= MOST_EVALUATIONS else refuse_unsound_trials)(log)
            refuse_wrong_plans(log)
            logs.append(log)
            skipped += left_out_of(log)
        except LogError as error:
            if not skip_broken:
                rest = f"\n{CONTINUE}" if len(names) > 1 else ""
                raise LogError(f"{error}{rest}") from error
            skipped.append(str(error))
    if not names:
        raise LogError(f"no logs (*.h5) in {', '.join(map(str, paths)) or 'an empty list of paths'}; 'hvdscale-log "
                       "import' makes logs of what other programs wrote")
    if not sum(log.trials.rows for log in logs):
        raise LogError(f"{', '.join(names)}: no trial that can be read, so there is nothing to report yet"
                       + "".join(f"\n{message}" for message in skipped))
    return logs, skipped


def _log_of_runs(path: str, opened: ExitStack) -> str | None:
    """The log, for as long as ``opened`` is, of a folder with runs of other programs; None of any other path.

    Raises LogError, naming the command that imports it, for what can be imported and is no folder of runs.
    """
    if not os.path.exists(path) or path.endswith(".h5") or os.path.isdir(path) and find_logs([path]):
        return None
    runs = not is_tables(path) and not is_archive(path) and has_runs(path)
    if runs and os.path.isdir(path):
        folder = opened.enter_context(TemporaryDirectory())
        log = os.path.join(folder, "runs.h5")
        import_runs([path], log)
        return log
    if runs or is_tables(path) or is_archive(path):
        raise LogError(f"{path}: is no log; 'hvdscale-log import {path} LOG.h5' makes one of it, to report on")
    return None


def left_out_of(log: Log, most: int = 10) -> list[str]:
    """Messages about the trials that an import left out of a log."""
    note = log.attributes.get("skipped")
    if not isinstance(note, dict) or not isinstance(note.get("count"), int) or not isinstance(note.get("first"), list):
        return []
    said = [f"{log.path}: left out when it was imported: {message}" for message in note["first"][:most]]
    rest = note["count"] - len(said)
    return said + [f"{log.path}: left out when it was imported: {rest:,} more"] * (rest > 0)


def _refuse_outer(path: Path, most: int = 8) -> None:
    """LogError where a directory has no log of its own while those in it have: what lies apart is not mixed unasked."""
    if not os.path.isdir(path) or find_logs([path]):
        return
    within = []
    for folder, inner, _ in os.walk(path):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        count = len(find_logs([folder]))
        within += [f"\n  {folder}: {counted(count, 'log')}"] if count else []
    if within:
        more = f"\n  and {len(within) - most} more" if len(within) > most else ""
        raise LogError(f"no logs (*.h5) in {os.fspath(path)} itself, but in directories in it; name those to report on "
                       f"together:{''.join(within[:most])}{more}")
