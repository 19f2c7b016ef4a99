"""The two ends of a run: where it starts, and how it ended."""
from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..errors import ExitCode
from ..log.schema import Status


class Stop(NamedTuple):
    """Why the loop was left: the trial's status, the reason in words, the command's exit code."""

    status: Status
    reason: str
    exit_code: ExitCode


@dataclass(frozen=True)
class Outcome:
    """How a run ended, after how many steps; what its last evaluation measured, and after how many steps."""

    stop: Stop
    step: int
    measured: dict[str, float]
    evaluated: int


@dataclass
class Start:
    """Where a run starts; as it stands: at the beginning, with a log of its own.

    checkpoint      path of the checkpoint that the run goes on from, in_folder: of its own folder; "": a new run
    step, state     the steps done there, and all that it holds, until that is put back
    log             path of the log, "": as the settings have it; log_goes_on: in a new segment, after ``previous_end``
    regrouped       whether it is an elastic job that goes on with other workers
    ended           how the run had ended, where nothing is left to do
    notes           what the user should know
    """

    checkpoint: str = ""
    in_folder: bool = False
    step: int = 0
    state: dict | None = None
    log: str = ""
    log_goes_on: bool = False
    previous_end: str = ""
    regrouped: bool = False
    ended: Stop | None = None
    notes: tuple[str, ...] = ()
