"""One rank of a script that is timed, which ends with a record of what it knows of the run."""
from __future__ import annotations

import json
import resource
import threading
import time
from typing import NoReturn

import torch

from ..system.files import write_whole
from ..watch.rank import Rank
from ..watch.runner import MADE, RECORD, RUNNING, STOPPED, TRACE, file_of
from .clock import UpdateClock
from .profile import Profile


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
        if profile is not None and not profile.update_ends():
            return
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


if __name__ == "__main__":
    main()
