"""When a trial of a log began."""
from __future__ import annotations

import numpy as np

from ..log.reader import Log


def start_seconds(log: Log, trial: int) -> float:
    """The start of a trial's first process, in seconds since 1970; 0: unknown, as of an imported log."""
    times = log.restarts["time"][log.restarts["trial"] == trial]
    return float(np.nanmin(times)) if len(times) and not np.isnan(times).all() else 0.0
