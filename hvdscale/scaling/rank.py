"""One rank of a script that is timed, started as the script would be: python -m hvdscale.scaling.rank TASK SCRIPT ...

TASK is a folder, in which task.json says what to do; the rank leaves rank<R>.json there.
"""
from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch._dynamo  # noqa: F401  as the first optimizer would, for a second

from ..system.files import write_whole
from ..watch.script import failure_of, run_script
from ..watch.watch import watching
from ..workers.launch import Process, place
from .clock import UpdateClock

TOGETHER_SECONDS = 10.0             # that a rank which has ended waits for the others
RUNNING, STOPPED, ENDED, FAILED = "running", "stopped", "ended", "failed"


def main() -> NoReturn:
    """Run the script as this rank, and end with its record."""
    folder, script, arguments = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    task, process = json.loads((folder / "task.json").read_text()), place()

    def stop() -> NoReturn:
        save(STOPPED, "")
        leave(folder, process)
    clock = UpdateClock(task["warm_up"], task["updates"], stop)

    def save(state: str, error: str) -> None:
        record = record_of(clock, process, state, error)
        write_whole(folder / f"rank{process.rank}.json", json.dumps(record), sync=False)
    save(RUNNING, "")
    with watching([clock], process.local_size, process.size, details=False):
        error = failure_of(run_script(script, arguments))
    save(FAILED if error else ENDED, error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(bool(error)))


def record_of(clock: UpdateClock, process: Process, state: str, error: str) -> dict[str, Any]:
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


def leave(folder: Path, process: Process) -> NoReturn:
    """End this process together with the others, so that none of them loses a message that it waits for."""
    (folder / f"rank{process.rank}.done").touch()
    until = time.monotonic() + TOGETHER_SECONDS
    while time.monotonic() < until and len(list(folder.glob("rank*.done"))) < process.size:
        time.sleep(0.01)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
