"""Evaluation over real workers: the same to the last bit at any worker count, and every example measured once."""
import numpy as np
import pytest
import torch

from hvdscale.workers.group import SingleWorker
from tests.parallel.evaluations import CHUNKS, evaluations


@pytest.fixture(scope="module")
def alone():
    """What one worker without a launcher measures."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield [measured for measured, _ in evaluations(SingleWorker())]
    torch.set_num_threads(threads)


@pytest.mark.parametrize("np_", [3, *(pytest.param(w, marks=pytest.mark.slow) for w in (1, 2, 5))])
def test_every_example_is_measured_once_with_one_workers_means(launch, alone, np_):
    ranks = launch("evaluations", np_)
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
