"""One rank of a script that is timed, which ends with a record of what it knows of the run; and torch's own traces of a
few updates of each rank, as Perfetto (ui.perfetto.dev) shows them, and what they say."""

import gzip
import json
import re
import resource
import threading
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.autograd import DeviceType

from ..system.files import write_whole
from ..watch.rank import Rank
from ..watch.runner import MADE, RECORD, RUNNING, STOPPED, TRACE, TRACED, file_of
from .clock import Span, UpdateClock, united, within

MOST = 3                # operators that are named
COMMUNICATION = re.compile(r"ncclDevKernel|ncclKernel|(?:gloo|mpi|ucc|xccl):")
OPERATOR = re.compile(r"(?!autograd::|c10d::|torch::)\w+::\w")          # and neither a module nor a section
COLLECTIVE = "Comms Id"         # of a kernel in a trace, the same on all ranks: torch 2.12 and later, over NCCL


def main() -> NoReturn:
    rank = Rank()

    def save(state: str, error: str) -> None:
        process, on_gpu = rank.process, clock.device.type == "cuda"
        memory = torch.cuda.max_memory_allocated(clock.device) if on_gpu else (
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        record = {
            "rank": process.rank, "workers": process.size, "local_workers": process.local_size, "state": state,
            "error": error, "made": clock.made, "optimizer": clock.optimizer, "rate": clock.rate,
            "device": torch.cuda.get_device_name(clock.device) if on_gpu else "cpu", "memory": memory,
            "parameters": clock.parameters, **clock.used(), "threads": torch.get_num_threads(),
            "torch": torch.__version__, "remarks": clock.remarks, "line": clock.long.line(),
            "operators": profile and profile.operators, "updates": clock.timed() if state != RUNNING else {}}
        write_whole(file_of(rank.place, process.rank, RECORD), json.dumps(record), sync=False)

    def stop() -> None:
        if profile is None or profile.update_ends():
            save(STOPPED, "")
            rank.leave()
    profile = Profile(file_of(rank.place, rank.process.rank, TRACE)) if rank.task["profile"] else None

    def tell() -> None:
        while True:
            time.sleep(1)
            (rank.place / MADE).write_text(str(clock.made))
    clock = UpdateClock(rank.task["warm_up"], rank.task["updates"], stop, rank.process.local_size)
    if rank.process.rank == 0:
        threading.Thread(target=tell, daemon=True).start()
    rank.run([clock], save, details=False)


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
            found = sorted(((getattr(average, time), average.key) for average in self._profile.key_averages()
                            if OPERATOR.match(average.key)), reverse=True)
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
        whole, hidden = sum(end - begin for begin, end in spans), sum(within(computing, *span) for span in spans)
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


if __name__ == "__main__":
    main()
