"""Every rank calls a function of a test with the worker group and what given.json holds, and writes what it gives.

    mpirun -np 4 python -m tests.parallel.ranks MODULE FUNCTION FOLDER          TRANSPORT=torch: not by Horovod
"""
import importlib
import json
import os
import sys
from pathlib import Path

import torch

from hvdscale.training.display import NoDisplay
from hvdscale.training.loop import train
from hvdscale.training.prepare import prepare
from hvdscale.training.run_log import NoLog
from hvdscale.workers.transport import form


def trained(workers, name, **keys):
    """The parameters of a float64 run as one vector, and what was measured, by name."""
    job = prepare(name, [{"precision": "fp64", "threads": 1, "untimed_passes": 1, **keys}], workers)
    outcome = train(job, NoLog(), NoDisplay(), workers)
    parameters = torch.cat([p.detach().double().flatten() for p in job.model.parameters()])
    return parameters.tolist(), outcome.measured


if __name__ == "__main__":
    module, name, folder = sys.argv[1:]
    torch.set_num_threads(1)
    workers, out = form(60, os.environ.get("TRANSPORT", "auto")), Path(folder)
    found = getattr(importlib.import_module(module), name)(workers, json.loads((out / "given.json").read_text()))
    (out / f"rank{workers.rank}.json").write_text(json.dumps(found))
    workers.leave()
