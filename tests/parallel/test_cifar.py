"""CIFAR's workloads, augmented, with a file missing, are the same problem at any worker count."""
import numpy as np
import pytest
import torch

from hvdscale.workers.group import SingleWorker
from hvdscale.workloads import cifar
from tests.parallel.cifar_files import small, trained, write

GIVEN = [dict(name="cifar_10/resnet_8", model_args={"width": 0.25}),
         dict(name="cifar_10/alexnet", model_args={"width": 0.25, "norm": "all", "dropout": 0.5}, ghost_batch=4)]


@pytest.mark.slow
@pytest.mark.parametrize("np_", [2, 3])
def test_any_worker_count_trains_the_same_on_the_files_that_there_are(launch, tmp_path, monkeypatch, np_):
    for name, value in small().items():
        monkeypatch.setattr(cifar, name, value)
    write(tmp_path)
    given = [{**job, "folder": str(tmp_path)} for job in GIVEN]
    ranks = launch("cifar_files", np_, given)
    assert all(rank == ranks[0] for rank in ranks)
    threads = torch.get_num_threads()
    for job, (missing, parameters, measured) in zip(given, ranks[0]):
        _, wanted, wanted_measured = trained(SingleWorker(), **job)
        assert missing == ["data_batch_4.bin"]
        assert np.linalg.norm(np.subtract(parameters, wanted)) <= 1e-9 * np.linalg.norm(wanted), job
        assert measured == pytest.approx(wanted_measured, rel=1e-8, nan_ok=True)
    torch.set_num_threads(threads)
