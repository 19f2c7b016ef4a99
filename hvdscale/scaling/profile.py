"""torch's own trace of a few updates of a rank, as Perfetto (ui.perfetto.dev) shows it, and what it says in short."""
from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType

from ..watch.runner import TRACED
from .clock import united, within

MOST = 3                # operators that are named
COMMUNICATION = re.compile(r"ncclDevKernel|ncclKernel|(?:gloo|mpi|ucc|xccl):")
OPERATOR = re.compile(r"(?!autograd::|c10d::|torch::)\w+::\w")          # and neither a module nor a section


class Profile:
    """Traces TRACED updates into a file, after those that are timed."""

    def __init__(self, path: Path) -> None:
        self._path, self._left = path, TRACED
        self._profile: torch.profiler.profile | None = None
        self.found: dict[str, Any] | None = None        # once the trace is whole: see summary_of

    def update_ends(self) -> bool:
        """Begin at the end of an update, and write the file at that of the last; whether it is written."""
        if self._profile is None:
            self._profile = torch.profiler.profile()
            self._profile.start()
            return False
        self._left -= 1
        if not self._left:
            self._profile.stop()
            self._profile.export_chrome_trace(str(self._path))
            self.found = summary_of(self._profile)
        return not self._left


def summary_of(profile: torch.profiler.profile) -> dict[str, Any]:
    """Seconds an update: of the MOST operators that took longest by themselves, on the GPU where there is one, of all
    communication that torch runs, and of what of it no computing hid."""
    events = profile.events()
    on_gpu = [event for event in events if event.device_type == DeviceType.CUDA]
    time = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    operators = sorted(((getattr(one, time), one.key) for one in profile.key_averages() if OPERATOR.match(one.key)),
                       reverse=True)[:MOST]
    communication = united(_spans(event for event in events if COMMUNICATION.match(event.name)))
    computing = united(_spans(event for event in on_gpu or events if not COMMUNICATION.match(event.name)
                              and (on_gpu or OPERATOR.match(event.name))))
    sent = sum(end - begin for begin, end in communication)
    hidden = sum(within(computing, begin, end) for begin, end in communication)
    each = 1e-6 / TRACED
    return {"operators": [[name, each * spent] for spent, name in operators if spent],
            "communication": each * sent, "exposed": each * (sent - hidden)}


def _spans(events: Iterable[Any]) -> list[tuple[float, float]]:
    return [(event.time_range.start, event.time_range.end) for event in events]
