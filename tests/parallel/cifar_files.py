"""Every rank trains CIFAR workloads on made files, and writes the final parameters and the last evaluation of each."""
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from hvdscale.training.display import NoDisplay
from hvdscale.training.loop import train
from hvdscale.training.prepare import prepare
from hvdscale.training.run_log import NoLog
from hvdscale.workers.transport import form
from hvdscale.workloads import cifar

RECORDS, VALIDATION = 12, 7
KEYS = dict(precision="fp64", threads=1, untimed_passes=1, global_batch=8, base_batch=8, steps=3, eval_every=3,
            target="none", allow_missing=True, noise_every=0)


def write(folder):
    """Four of the five training files, and the test file, of so many records each."""
    drawn = np.random.default_rng(0)
    for name in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_5", "test_batch"):
        labels, pixels = drawn.integers(0, 10, (RECORDS, 1)), drawn.integers(0, 256, (RECORDS, 3072))
        (folder / f"{name}.bin").write_bytes(np.hstack([labels, pixels]).astype(np.uint8).tobytes())


def small():
    """The layout of the made files, and the size of the validation split, in place of cifar's."""
    layout = replace(cifar.LAYOUTS["cifar_10"], train_records=RECORDS, test_records=RECORDS)
    return {"LAYOUTS": {**cifar.LAYOUTS, "cifar_10": layout}, "VALIDATION": VALIDATION}


def trained(workers, name, folder, **keys):
    """What the data's record says, the parameters as one float64 vector, and what was measured, by name."""
    job = prepare(name, [{**KEYS, "data_dir": str(folder), **keys}], workers)
    outcome = train(job, NoLog(), NoDisplay(), workers)
    parameters = torch.cat([p.detach().double().flatten() for p in job.model.parameters()])
    return job.plan.data["missing"], parameters.tolist(), outcome.measured


if __name__ == "__main__":
    out = Path(sys.argv[1])
    workers = form(60)
    vars(cifar).update(small())
    runs = [trained(workers, **given) for given in json.loads((out / "given.json").read_text())]
    (out / f"rank{workers.rank}.json").write_text(json.dumps(runs))
    workers.leave()
