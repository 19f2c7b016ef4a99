"""One rank of a script that is timed: the record that it leaves."""
from __future__ import annotations

import json
import math
import resource
from typing import Any, NoReturn

import torch

from ..system.files import write_whole
from ..watch.rank import RUNNING, STOPPED, Rank
from ..watch.runner import record_of
from ..workers.launch import Process
from .clock import UpdateClock


def main() -> NoReturn:
    """Run the script as this rank, and end with its record."""
    rank = Rank()

    def save(state: str, error: str) -> None:
        record = what_was_seen(clock, rank.process, state, error)
        write_whole(record_of(rank.place, rank.process.rank), json.dumps(record), sync=False)

    def stop() -> NoReturn:
        save(STOPPED, "")
        rank.leave()
    clock = UpdateClock(rank.task["warm_up"], rank.task["updates"], stop)
    rank.run([clock], save, details=False)


def what_was_seen(clock: UpdateClock, process: Process, state: str, error: str) -> dict[str, Any]:
    """What this rank knows of the run, for its file."""
    on_gpu = clock.device.type == "cuda"
    memory = torch.cuda.max_memory_allocated(clock.device) if on_gpu else \
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"rank": process.rank, "workers": process.size, "local_workers": process.local_size, "state": state,
            "error": error, "made": clock.made, "optimizer": clock.optimizer, "rate": clock.rate,
            "device": torch.cuda.get_device_name(clock.device) if on_gpu else "cpu", "memory": memory,
            "parameters": clock.parameters, "watts": clock.watts if math.isfinite(clock.watts) else None,
            "threads": torch.get_num_threads(), "remarks": clock.remarks, "torch": torch.__version__,
            "updates": clock.timed() if state != RUNNING else {}}


if __name__ == "__main__":
    main()
