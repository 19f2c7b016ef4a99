"""Every exception that hvdscale raises on purpose.

A message names the rule broken, the values met, what would be accepted and the next move. The commands print it
without a traceback and exit with ``exit_code``.
"""

import os
import sysconfig
import traceback
from enum import IntEnum

_LIBRARIES = tuple(os.path.join(folder, "") for folder in (
    os.path.dirname(__file__), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))))
TRACEBACK = "HVDSCALE_TRACEBACK"        # variable; 1: tracebacks of the user's own code are printed


def describe_raised(error: Exception | SystemExit) -> str:
    """An error of the user's own code in a line, with the innermost line of that code, or else of any, it came from."""
    frame = (_own_frames(error) or traceback.extract_tb(error.__traceback__))[-1]
    return "; ".join([f"{type(error).__name__}: {' '.join(str(error).split())} ({frame.filename}:{frame.lineno})",
                      *getattr(error, "__notes__", ())])


def is_of_user_code(error: Exception | SystemExit) -> bool:
    """Whether the user's own code raised it, or a note says what of that code is at fault."""
    return bool(_own_frames(error) or getattr(error, "__notes__", ()))


def _own_frames(error: Exception | SystemExit) -> list[traceback.FrameSummary]:
    return [frame for frame in traceback.extract_tb(error.__traceback__)
            if not frame.filename.startswith((*_LIBRARIES, "<"))]


class ExitCode(IntEnum):
    """What the commands end with."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    DIVERGED = 3
    REGRESSION = 4
    OPEN = 5                # neither better nor worse nor alike for sure
    PREEMPTED = 75          # stopped by a signal; the same command resumes
    INTERRUPTED = 130       # as a shell reports SIGINT
    BROKEN_PIPE = 141       # as a shell reports SIGPIPE


class HvdscaleError(Exception):
    """Something the user can fix; the command ends with exit code 1."""

    exit_code = ExitCode.FAILED


class UsageError(HvdscaleError):
    """An option, configuration key or target that means nothing or contradicts another; exit code 2."""

    exit_code = ExitCode.USAGE


class SignalEnd(BaseException):
    """The end of a command by the signal, its argument. A SystemExit is what the user's own code raises."""


class OutputError(HvdscaleError):
    """Standard output that cannot be written, such as to a full disk."""


class UnknownNameError(UsageError, KeyError):
    """A column, table or figure asked for by a name that none has."""

    __str__ = Exception.__str__         # not KeyError's, which quotes the message


class PlanError(UsageError):
    """Numbers asked for that cannot all hold at this worker count."""


class RanksDifferError(PlanError):
    """What the ranks settled, found or built is not the same."""


class DataError(HvdscaleError):
    """A data set file that is missing, truncated or not what its name says."""


class WorkloadError(UsageError):
    """A workload of the user's own that is not one, or gives what the training cannot use."""


class TrialsError(HvdscaleError):
    """Trials that all fail alike, so that no more are worth starting."""


class LogError(HvdscaleError):
    """A log that cannot be read, written or taken over."""


class CheckpointError(HvdscaleError):
    """A checkpoint that cannot be read or written, or that its run cannot resume from."""


class WorkersError(HvdscaleError):
    """The worker group cannot be formed."""


class CommunicationError(WorkersError):
    """A job that communicates where the workers do not act together."""


class WorkerLostError(WorkersError):
    """A worker ended or was cut off, so that the ranks cannot agree on an error any more."""


class FaultError(WorkersError):
    """What went wrong on one rank while the others wait for it: they cannot be notified, and lose it."""


class StoppedError(FaultError):
    """A signal before the first step or after the last, where no vote is taken."""

    exit_code = ExitCode.PREEMPTED
