"""What a check found: a record, free of any rendering."""
from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import HvdscaleError, WorkersError

PASSED, WARNED, FAILED, NOT_APPLICABLE = "passed", "warned", "failed", "not applicable"
ENDED = "an error of the job's own code ended this check"


@dataclass(frozen=True)
class Finding:
    """One check's outcome.

    looked_at   what was compared and came out, in words; of a check that is not applicable, why
    differs     of a check that failed or warns: what differs from what
    cause       what usually does it;  remedy: the next move
    by, limit   how far apart, relative to the larger side, and how far is allowed; None: no number says it
    rows        lines that are printed whatever the outcome, as a table
    """

    check: str
    verdict: str
    looked_at: str
    differs: str = ""
    by: float | None = None
    limit: float | None = None
    cause: str = ""
    remedy: str = ""
    rows: tuple[tuple[str, ...], ...] = ()


def carried_out(name: str, check: Callable[[], Finding]) -> Finding:
    """The check's finding; a failed one where the job's own code raises inside it."""
    try:
        return check()
    except WorkersError:
        raise
    except Exception as error:
        differs = str(error) if isinstance(error, HvdscaleError) else _said(error)
        return Finding(name, FAILED, ENDED, differs,
                       cause="what the check asks of the job is what a run on another number of workers asks of it",
                       remedy="fix the error; `hvdscale-train WORKLOAD --steps 2` may show it, too")


def _said(error: Exception) -> str:
    """The error in a line, and where it was raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"
