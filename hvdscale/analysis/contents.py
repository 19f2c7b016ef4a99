"""What logs hold together: their trials and their studies, versions of one job apart."""
from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from ..log.reader import Log
from .jobs import versions_of
from .studies import Study, studies_of
from .trials import Trial, read_trials


class Contents:
    """Of logs that are open, and stay so while this is used; LogError where a plan's entries are of the wrong type.

    notes   what differs between versions of a job, in words
    """

    def __init__(self, logs: Sequence[Log]) -> None:
        self.logs, self._versions = logs, versions_of(logs)
        self.notes = self._versions.notes

    @cached_property
    def studies(self) -> tuple[Study, ...]:
        """By workload and global batch."""
        return studies_of(self.logs, self._versions)

    @cached_property
    def read(self) -> list[Trial]:
        """Every trial, each made of its own rows."""
        return [trial for log in self.logs for trial in read_trials(log, self._versions)]

    @property
    def trials(self) -> list[Trial]:
        """Those that are no branch of a run."""
        return [trial for trial in self.read if not trial.branch]

    @property
    def branches(self) -> list[Trial]:
        return [trial for trial in self.read if trial.branch]
