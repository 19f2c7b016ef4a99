"""Prints how far the trajectories of several workers lie from one worker's, as shares of the norm of all parameters.

    python -m tests.parallel.trajectory_table [WORKERS ...]        from the repository's root; 1 2 3 4 8 by default

The toy workload with batch-norm, dropout and augmentation on; a global batch of 48; after 1 and after 100 steps.
"""
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from hvdscale.workers.group import SingleWorker
from tests.conftest import LAUNCHERS, command_environment
from tests.parallel import toy

GHOSTS, PASSES, PRECISIONS, STEPS = (4, 12, "global"), (1, 2), ("fp64", "fp32", "bf16", "fp16"), (1, 100)


def configurations():
    for precision, steps, ghost, passes in itertools.product(PRECISIONS, STEPS, GHOSTS, PASSES):
        cut = ghost == "global" and passes > 1              # a group is not cut into passes of one worker
        if not cut and (precision != "fp16" or ghost == 4 and passes == 1):         # nor shared by workers in fp16
            yield dict(steps=steps, precision=precision, ghost_batch=ghost, accumulate=passes, global_batch=48,
                       augmented=True, model_args=dict(dropout=0.5, norm="ours"))


def launched(workers, given):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "given.json").write_text(json.dumps(given))
        subprocess.run([*LAUNCHERS["mpirun"](workers), sys.executable, "-m", "tests.parallel.ranks", toy.__name__,
                        "trajectories", folder], check=True, env=command_environment())
        return json.loads((Path(folder) / "rank0.json").read_text())


def main(counts):
    torch.set_num_threads(1)
    given = list(configurations())
    references = [toy.trajectory(SingleWorker(), **{**c, "accumulate": 1}) for c in given]
    names = [f"{c['precision']} {c['steps']:>3} ghost {c['ghost_batch']} k={c['accumulate']}" for c in given]
    runs = {workers: launched(workers, given) for workers in counts}
    print(f"{'':24}" + "".join(f"W={workers:<10}" for workers in counts) + "(parameters, then buffers)")
    for i, (name, reference) in enumerate(zip(names, references)):
        for what in (1, 2):
            far = [np.linalg.norm(np.subtract(runs[w][i][what], reference[what])) / np.linalg.norm(reference[what])
                   for w in counts]
            print(f"{name if what == 1 else '':24}" + "".join(f"{value:<12.1e}" for value in far))


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [1, 2, 3, 4, 8])
