"""torch's own traces of a few updates of each rank, as Perfetto (ui.perfetto.dev) shows them, and what they say."""
from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType

from ..watch.runner import TRACED
from .clock import Span, united, within

MOST = 3                # operators that are named
COMMUNICATION = re.compile(r"ncclDevKernel|ncclKernel|(?:gloo|mpi|ucc|xccl):")
OPERATOR = re.compile(r"(?!autograd::|c10d::|torch::)\w+::\w")          # and neither a module nor a section
COLLECTIVE = "Comms Id"         # of a kernel in a trace, the same on all ranks: torch 2.12 and later, over NCCL


class Profile:
    """Traces TRACED updates into a file, after those that are timed."""

    def __init__(self, path: Path) -> None:
        self._path, self._left = path, TRACED
        self._profile: torch.profiler.profile | None = None
        # once the trace is whole: those that took longest by themselves, on the GPU if there is one, and their seconds
        # an update
        self.operators: list[tuple[str, float]] | None = None

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
            on_gpu = any(event.device_type == DeviceType.CUDA for event in self._profile.events())
            time = "self_device_time_total" if on_gpu else "self_cpu_time_total"
            found = sorted(((getattr(one, time), one.key) for one in self._profile.key_averages()
                            if OPERATOR.match(one.key)), reverse=True)
            self.operators = [(name, 1e-6 / TRACED * spent) for spent, name in found[:MOST] if spent]
        return not self._left


def communication_of(traces: Sequence[Path]) -> list[dict[str, float]]:
    """Of each rank's trace the seconds an update of all communication that torch runs, of what of it no computing hid
    (exposed), and of waiting in it for ranks that came later: as they leave a collective together, what it took beyond
    the rank that was in it for the shortest time."""
    ranks = [_read(json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]) for path in traces]
    shortest = {key: min(sent[key][1] - sent[key][0] for sent, _ in ranks)
                for key in ranks[0][0] if all(key in sent for sent, _ in ranks)}
    found = []
    for sent, computing in ranks:
        spans = united([*sent.values()])
        whole = sum(end - begin for begin, end in spans)
        hidden = sum(within(computing, *span) for span in spans)
        seconds = {"communication": whole, "exposed": whole - hidden, "hidden": hidden,
                   "late": sum(sent[key][1] - sent[key][0] - least for key, least in shortest.items())}
        found.append({name: 1e-6 / TRACED * spent for name, spent in seconds.items()})
    return found


def _read(events: Iterable[dict[str, Any]]) -> tuple[dict[Hashable, Span], list[Span]]:
    """The collectives of a trace, by what is equal on all ranks, their id or else their place in the order of their
    kind, and the spans in which something is computed, on the GPU where there is one."""
    events = sorted((event for event in events if event.get("ph") == "X"), key=lambda event: event["ts"])
    on_gpu = [event for event in events if event["cat"] == "kernel"]
    sent, computed, seen = {}, [], Counter[str]()
    for event in on_gpu or events:
        name, span = event["name"], (event["ts"], event["ts"] + event["dur"])
        if COMMUNICATION.match(name):
            seen[name] += 1
            sent[event.get("args", {}).get(COLLECTIVE) or (name, seen[name])] = span
        elif on_gpu or OPERATOR.match(name):
            computed.append(span)
    return sent, united(computed)
