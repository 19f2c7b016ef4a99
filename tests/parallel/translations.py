"""Every rank writes the parameters and the last evaluation of a small model that learns to translate made sentences."""
import json
import sys
from pathlib import Path

import torch

from hvdscale.training.display import NoDisplay
from hvdscale.training.loop import train
from hvdscale.training.prepare import prepare
from hvdscale.training.run_log import NoLog
from hvdscale.workers.transport import form

KEYS = dict(precision="fp64", threads=1, untimed_passes=1, steps=8, global_batch=10, ghost_batch=4, base_batch=10,
            lr=0.01, warmup_steps=0, eval_batch=5, eval_every=8, data_args=dict(vocabulary="word", longest=5),
            model_args=dict(layers=1, width=16, hidden=16, heads=2, dropout=0.3))


def trained(workers, **keys):
    """The parameters as one float64 vector, and what was measured, by name."""
    job = prepare("multi30k/transformer", [{**KEYS, **keys}], workers)
    outcome = train(job, NoLog(), NoDisplay(), workers)
    return torch.cat([p.detach().flatten() for p in job.model.parameters()]).tolist(), outcome.measured


if __name__ == "__main__":
    out = Path(sys.argv[1])
    workers = form(60)
    found = trained(workers, **json.loads((out / "given.json").read_text()))
    (out / f"rank{workers.rank}.json").write_text(json.dumps(found))
    workers.leave()
