"""CIFAR's workloads, augmented, with a file missing, are the same problem at any worker count."""
from dataclasses import replace

import numpy as np
import pytest

from hvdscale.workers.group import SingleWorker
from hvdscale.workloads import cifar
from tests.conftest import whole_threads
from tests.parallel.ranks import trained

RECORDS, VALIDATION = 12, 7
KEYS = dict(global_batch=8, base_batch=8, steps=3, eval_every=3, target="none", allow_missing=True, noise_every=0)
GIVEN = [dict(name="cifar_10/resnet_8", model_args={"width": 0.25}),
         dict(name="cifar_10/alexnet", model_args={"width": 0.25, "norm": "all", "dropout": 0.5}, ghost_batch=4)]


def write(folder):
    """Four of the five training files, and the test file, of so many records each."""
    drawn = np.random.default_rng(0)
    for name in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_5", "test_batch"):
        labels, pixels = drawn.integers(0, 10, (RECORDS, 1)), drawn.integers(0, 256, (RECORDS, 3072))
        (folder / f"{name}.bin").write_bytes(np.hstack([labels, pixels]).astype(np.uint8).tobytes())


def trained_jobs(workers, given):
    """With the layout of the made files, and the size of the validation split, in place of cifar's."""
    layout = replace(cifar.LAYOUTS["cifar_10"], train_records=RECORDS, test_records=RECORDS)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cifar, "LAYOUTS", {**cifar.LAYOUTS, "cifar_10": layout})
        patched.setattr(cifar, "VALIDATION", VALIDATION)
        return [trained(workers, **KEYS, **job) for job in given]


@pytest.mark.slow
@pytest.mark.parametrize("np_", [2, 3])
def test_any_worker_count_trains_the_same_on_the_files_that_there_are(launch, tmp_path, np_):
    write(tmp_path)
    given = [{**job, "data_dir": str(tmp_path)} for job in GIVEN]
    ranks = launch(trained_jobs, np_, given)
    assert all(rank == ranks[0] for rank in ranks)
    with whole_threads():
        alone = trained_jobs(SingleWorker(), given)
    for job, (parameters, measured, missing), (wanted, wanted_measured, _) in zip(given, ranks[0], alone):
        assert missing == ["data_batch_4.bin"]
        assert np.linalg.norm(np.subtract(parameters, wanted)) <= 1e-9 * np.linalg.norm(wanted), job
        assert measured == pytest.approx(wanted_measured, rel=1e-8, nan_ok=True)
