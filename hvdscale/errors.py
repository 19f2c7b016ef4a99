"""Every exception that hvdscale raises on purpose.

A message names the rule broken, the values met, what would be accepted and the next move. The commands print it
without a traceback and exit with ``exit_code``.
"""


class HvdscaleError(Exception):
    """Something the user can mend; the command ends with exit code 1."""

    exit_code = 1


class UsageError(HvdscaleError):
    """An option, configuration key or target that means nothing or contradicts another; exit code 2."""

    exit_code = 2


class PlanError(UsageError):
    """Numbers asked for that cannot all hold at this worker count."""


class DataError(HvdscaleError):
    """A data set file that is missing, truncated or not what its name says."""


class LogError(HvdscaleError):
    """A log that cannot be read, written or taken over."""


class WorkersError(HvdscaleError):
    """The worker group cannot be formed."""


class WorkerLostError(WorkersError):
    """A worker ended or was cut off; the one error that the ranks cannot agree on any more."""
