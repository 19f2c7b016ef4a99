"""Every rank writes what the Evaluator measures of Open Images, as hexadecimal floats, for some chunk sizes."""
import json
import sys
from pathlib import Path

import torch

from hvdscale.training.evaluate import Evaluator
from hvdscale.workers.transport import form
from hvdscale.workload import load_data
from hvdscale.workloads.large import open_images

CHUNKS, SIDE = (1, 3, 256), 32


def measures(workers, folder):
    """For each chunk size, each measure of the three splits, by a ResNet-26 of an eighth of the filters."""
    workload = open_images.workload("open_images_v4", "resnet_50")
    data = load_data(workload, folder, {"side": SIDE})
    torch.manual_seed(0)
    model = workload.build(**data.model_args, depth=26, width=0.125, readout_std=1.0)
    splits = data.evaluated(len(data.train))
    found = []
    for chunk in CHUNKS:
        measured = Evaluator(workload, splits, chunk, workers, torch.device("cpu"))(model, tuple(splits))
        found.append({name: value.hex() for name, value in measured.items()})
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    workers = form(60)
    found = measures(workers, json.loads((out / "given.json").read_text()))
    (out / f"rank{workers.rank}.json").write_text(json.dumps(found))
    workers.leave()
