"""Which way a metric gets better, and whether a target asks for that.

    check_direction(Target.parse("val/error>0.1"), logs)     -> UsageError: write 'val/error<0.1'
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import UsageError
from ..log.schema import BETTER, LARGER, SMALLER
from ..target import Target

OTHER_WAY = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def better(column: str, logs: Sequence) -> str:
    """SMALLER or LARGER, as the logs say of the column ``split/metric``, else as its name is known for; "": unknown.

    logs  what log.reader.read_log gives
    """
    said = {spec.better for log in logs for spec in [getattr(log.evaluations, "specs", {}).get(column)] if spec} - {""}
    if len(said) == 1:
        return said.pop()
    return "" if said else BETTER.get(column.partition("/")[2], "")


def check_direction(target: Target, logs: Sequence) -> None:
    """Raise UsageError for a target that a metric meets by getting worse; of an unknown one nothing is said."""
    way = better(target.column, logs)
    if way and target.minimizes != (way == SMALLER):
        meant = replace(target, comparison=OTHER_WAY[target.comparison])
        raise UsageError(f"target {str(target)!r}: a {way} {target.column} is better, and this asks for a "
                         f"{LARGER if way == SMALLER else SMALLER} one; write {str(meant)!r}")
