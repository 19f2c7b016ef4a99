"""Evaluation over real workers: the same to the last bit at any worker count, and every example measured once."""
from collections import Counter

import numpy as np
import pytest
import torch

from hvdscale.training.evaluate import Evaluator
from hvdscale.update.model import make_model
from hvdscale.workers.group import SingleWorker
from tests.conftest import whole_threads
from tests.parallel import toy

CHUNKS = (1, 4, 256)


def evaluations(workers, _):
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


@pytest.fixture(scope="module")
def alone():
    """What one worker without a launcher measures."""
    with whole_threads():
        torch.set_num_threads(1)
        return [measured for measured, _ in evaluations(SingleWorker(), None)]


@pytest.mark.parametrize("np_", [3, *(pytest.param(w, marks=pytest.mark.slow) for w in (1, 2, 5))])
def test_every_example_is_measured_once_with_one_workers_means(launch, alone, np_):
    ranks = launch(evaluations, np_)
    for i in range(len(CHUNKS)):
        for rank in ranks:
            assert rank[i][0] == alone[i]
        for split in ranks[0][i][1]:
            measured = np.sum([rank[i][1][split] for rank in ranks], axis=0)
            assert (measured == 1).all(), (CHUNKS[i], split)


def test_chunks_of_any_size_give_the_same_errors(alone):
    """The error is a ratio of whole numbers, so that no order of addition shows."""
    for split in ("train", "val", "test"):
        assert len({measured[f"{split}/error"] for measured in alone}) == 1
