"""W&B's calls of a script, so that one changed import gives it a log: ``import hvdscale.recorders.wandb as wandb``.

``init`` begins a folder runs/NAME, ``log`` writes a row of JSON there, and ``finish`` makes the log runs/NAME.h5 of it,
as ``hvdscale-log import`` does, or says why not. Of several processes rank 0 writes.
"""

import atexit
import json
import os
import sys
import time
from typing import Any

from ..errors import HvdscaleError
from ..exchange.runs.into_log import import_runs
from ..workers.launch import place

config: dict[str, Any] = {}
run: Any = None


class Run:
    def __init__(self, folder: str, settings: dict[str, Any]) -> None:
        self.config, self._folder, self._step, self._start, self._file = settings, folder, -1, time.monotonic(), None
        if not place().rank and os.environ.get("RANK", "0") == "0":
            os.makedirs(folder)
            self._file = open(os.path.join(folder, "metrics.jsonl"), "w", encoding="utf-8")

    def log(self, data: dict[str, Any], step: int | None = None, **_: Any) -> None:
        self._step = self._step + 1 if step is None else int(step)
        row = {name: float(value.detach() if hasattr(value, "detach") else value) for name, value in data.items()
               if hasattr(value, "__float__")}
        if self._file:
            self._file.write(json.dumps({"step": self._step, "seconds": time.monotonic() - self._start, **row}) + "\n")

    def finish(self, *_: Any, **__: Any) -> None:
        if self._file:
            self._file = self._file.close()
            with open(os.path.join(self._folder, "config.json"), "w", encoding="utf-8") as file:
                json.dump({**self.config, **config}, file, default=str)
            try:
                import_runs([self._folder], f"{self._folder}.h5")
            except HvdscaleError as error:
                print(f"{error}\nhvdscale-log import {self._folder} LOG.h5 has options for it", file=sys.stderr)


def init(project: str = "run", name: str | None = None, config: dict[str, Any] | None = None, dir: str = "runs",
         **_: Any) -> Run:
    """Begins a run in dir/NAME; W&B's other arguments have no effect."""
    global run, log, finish
    name = name or f"{project}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    run = Run(os.path.join(dir, name), dict(config or {}))
    log, finish = run.log, run.finish
    atexit.register(finish)
    return run


log = finish = None         # of the run that was begun last
