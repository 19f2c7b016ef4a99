"""Every rank writes what the Evaluator gives it of the toy workload, and which examples it measured itself."""
import json
import sys
from collections import Counter
from pathlib import Path

import torch

from hvdscale.training.evaluate import Evaluator
from hvdscale.update.model import make_model
from hvdscale.workers.transport import form
from tests.parallel import toy

CHUNKS = (1, 4, 256)


def evaluations(workers):
    """For each chunk size: the measures as hexadecimal floats, and for each split how often each example was taken."""
    model = make_model(toy.WORKLOAD, toy.settled(1), torch.device("cpu"))
    data, found = toy.load(), []
    for chunk in CHUNKS:
        splits = {name: toy.Counted(split.inputs, split.labels, Counter())
                  for name, split in [("train", data.train), ("val", data.val), ("test", data.test)]}
        measured = Evaluator(toy.WORKLOAD, splits, chunk, workers, torch.device("cpu"))(model, tuple(splits))
        found.append([{name: value.hex() for name, value in measured.items()},
                      {name: [split.taken[i] for i in range(len(split))] for name, split in splits.items()}])
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    workers = form(60)
    (Path(sys.argv[1]) / f"rank{workers.rank}.json").write_text(json.dumps(evaluations(workers)))
    workers.leave()
