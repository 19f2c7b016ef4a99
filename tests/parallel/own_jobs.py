"""Every rank writes the final parameters, and the last evaluation, of each job of users' own that it is given."""
import json
import sys
from pathlib import Path

import torch

from hvdscale.training.display import NoDisplay
from hvdscale.training.loop import train
from hvdscale.training.prepare import prepare
from hvdscale.training.run_log import NoLog
from hvdscale.workers.transport import form

JOBS = "tests.factories.jobs"


def trained(workers, name, **keys):
    """The parameters as one float64 vector, and what was measured, by name."""
    job = prepare(f"{JOBS}:{name}", [{"precision": "fp64", "threads": 1, "untimed_passes": 1, **keys}], workers)
    outcome = train(job, NoLog(), NoDisplay(), workers)
    parameters = torch.cat([p.detach().double().flatten() for p in job.model.parameters()])
    return parameters.tolist(), outcome.measured


if __name__ == "__main__":
    out = Path(sys.argv[1])
    workers = form(60)
    runs = [trained(workers, **given) for given in json.loads((out / "given.json").read_text())]
    (out / f"rank{workers.rank}.json").write_text(json.dumps(runs))
    workers.leave()
