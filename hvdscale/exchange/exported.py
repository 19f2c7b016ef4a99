"""What exports share: the log, the folder that they write, and what they say of a trial.

    with exporting("w8.h5", "w8") as (log, folder): ...         w8 appears whole, or not at all
"""
from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..errors import LogError
from ..log.check import refuse_unsound_trials
from ..log.reader import Log, read_log
from ..system.files import whole_folder, writing

METAPARAMETERS = "metaparameters/"


@contextlib.contextmanager
def exporting(path, out) -> Iterator[tuple[Log, str]]:
    """The log, and a temporary folder that is renamed to ``out`` on success and removed otherwise.

    Raises LogError if ``out`` exists or cannot be written, and for invalid /trials.
    """
    out = os.fspath(out).rstrip("/") or "/"
    with read_log(path) as log:
        if os.path.lexists(out):
            raise LogError(f"{out}: exists already; choose another name, or remove it")
        with writing(out):
            os.makedirs(os.path.dirname(out) or ".", exist_ok=True)
            with whole_folder(out) as folder:
                refuse_unsound_trials(log)
                yield log, folder


def row_of(log: Log, row: int) -> dict[str, Any]:
    """A row of /trials, its numbers as Python's own."""
    values = {name: log.trials[name][row] for name in log.trials}
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}


def metaparameters_of(row: dict[str, Any]) -> dict[str, float]:
    """The metaparameters that are known in a row of /trials."""
    return {name.removeprefix(METAPARAMETERS): value for name, value in row.items()
            if name.startswith(METAPARAMETERS) and not math.isnan(value)}


def start_seconds(log: Log, trial: int) -> float:
    """The start of a trial's first process, in seconds since 1970; 0: unknown, as of an imported log."""
    times = log.restarts["time"][log.restarts["trial"] == trial]
    return float(np.nanmin(times)) if len(times) and not np.isnan(times).all() else 0.0
