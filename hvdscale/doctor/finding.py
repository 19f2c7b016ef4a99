"""What a check found: a plain record, without formatting."""
from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from ..errors import HvdscaleError, WorkersError

ENDED = "the job's own code raised an error, which ended this check"


class Verdict(str, Enum):
    """The outcome of a check. It passes only if it saw what it judges; else that was unseen, or there was nothing to
    judge. It warns of what has an innocent reading as well."""

    PASSED = "passed"
    WARNED = "warned"
    FAILED = "failed"
    UNSEEN = "unseen"
    NOT_APPLICABLE = "not applicable"

    __str__ = str.__str__


@dataclass(frozen=True)
class Finding:
    """One check's outcome.

    looked_at   what was compared, in words; for a check that saw nothing or does not apply, why
    differs     for a check that failed or warns: what differs from what
    cause       the usual cause;  remedy: the next move
    by, limit   the difference relative to the larger side, and the allowed one; None: no number measures it
    rows        a table that is printed whatever the outcome
    where       file:line of the call that it is about
    """

    check: str
    verdict: Verdict
    looked_at: str
    differs: str = ""
    by: float | None = None
    limit: float | None = None
    cause: str = ""
    remedy: str = ""
    rows: tuple[tuple[str, ...], ...] = ()
    where: str = ""


def carried_out(name: str, check: Callable[[], Finding]) -> Finding:
    """Run the check; an error raised by the job's own code becomes a failed finding."""
    try:
        return check()
    except WorkersError:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        differs = str(error) if isinstance(error, HvdscaleError) else (
            f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})")
        return Finding(name, Verdict.FAILED, ENDED, differs,
                       cause="the check calls the job as a run on another number of workers would",
                       remedy="fix the error; `hvdscale-train WORKLOAD --steps 2` may show it too")


def trace_cause(finding: Finding, findings: Sequence[Finding], explains: Mapping[str, Collection[str]]) -> Finding:
    """The finding, with the cause of the first other failure that explains it.

    explains  by check: the checks that fail where it does
    """
    found = {source.check: source for source in findings}
    for check, explained in explains.items():
        source = found.get(check)
        if source and finding.verdict == source.verdict == Verdict.FAILED and finding.check in explained and (
                source.looked_at != ENDED):
            return replace(finding, cause=source.cause, remedy=f"see the check {check!r} first")
    return finding
