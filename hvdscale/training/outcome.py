"""The two ends of a run: where it starts, and how it ended."""

from dataclasses import dataclass, field
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
    """How and after how many steps a run ended; what its last evaluation measured, and after how many steps."""

    stop: Stop
    step: int
    measured: dict[str, float]
    evaluated: int


@dataclass
class Start:
    """Where a run starts; by default at the beginning, with a new log."""

    checkpoint: str = ""            # path of the checkpoint to resume from; "": a new run
    in_folder: bool = False         # whether it is in the run's folder
    step: int = 0                   # done by then
    state: dict | None = None       # until it is restored
    log: str = ""                   # path; "": from the settings
    log_continues: bool = False     # in a new segment, after ``previous_end``
    previous_end: str = ""
    ended: Stop | None = None       # how the run ended, if nothing is left to do
    accepted: dict[str, str] = field(default_factory=dict)      # earlier jobs that count as this: what differed, by key
    notes: tuple[str, ...] = ()     # lines for the user
    news: str = ""                  # what the display says in place of the plan, if anything
