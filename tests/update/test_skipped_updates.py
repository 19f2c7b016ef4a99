"""Under fp16 the same updates are skipped at any number of workers and passes; the log has them and the loss scale."""
from itertools import product

import numpy as np
import pytest

from hvdscale.errors import HvdscaleError
from hvdscale.log.reader import read_log
from hvdscale.training.display import NoDisplay
from hvdscale.training.loop import train
from hvdscale.training.outputs import open_run_log
from hvdscale.training.prepare import prepare
from hvdscale.workers.group import SingleWorker
from tests.factories.random_jobs import run

IMAGES = "tests.factories.random_jobs:images"
FP16 = dict(steps=16, precision="fp16", global_batch=48, ghost_batch=3, lr=0.05, target="none", eval_every=0,
            optimizer="momentum", threads=1, loss_scale=2.0 ** 22, untimed_passes=0)


def jobs(count):
    """Jobs whose gradients overflow fp16 at their first steps, and some later."""
    for number in range(count):
        rng = np.random.default_rng(number)
        model = dict(norm=["", "ours", "group", "torch"][number % 4], drop=["", "ours"][number % 2])
        yield {**FP16, "model_args": model, "data_args": dict(augmented=bool(number % 3)), "seed": number,
               "loss_scale": 2.0 ** int(rng.integers(20, 27)), "lr": float(rng.uniform(0.01, 0.5))}


def skipped(layer, workers=1, accumulate=1):
    found = run({**layer, "accumulate": accumulate}, IMAGES, workers)
    assert not isinstance(found, HvdscaleError), found
    return found.skipped


def test_workers_and_passes_skip_the_same_updates():
    lists = []
    for layer in jobs(2):
        lists.append(skipped(layer))
        for ways in ((2, 1), (3, 1), (1, 2)):
            assert skipped(layer, *ways) == lists[-1]
    assert all(0 < len(steps) < FP16["steps"] for steps in lists)


@pytest.mark.slow
def test_twenty_jobs_skip_the_same_updates_on_one_to_eight_workers():
    lists = []
    for layer in jobs(20):
        lists.append(skipped(layer))
        for workers, accumulate in list(product(range(1, 9), (1, 2)))[1:]:
            assert skipped(layer, workers, accumulate) == lists[-1], (layer, workers, accumulate)
    assert all(lists) and len({str(steps) for steps in lists}) > 3


def test_the_log_and_the_display_have_what_was_skipped(tmp_path):
    said = []

    class Said(NoDisplay):
        def scaled(self, loss_scale, skipped):
            said.append((skipped, loss_scale))
    layer = {**next(jobs(1)), "log": str(tmp_path / "a.h5")}
    job = prepare(IMAGES, [layer], SingleWorker())
    with open_run_log(job, SingleWorker()) as run_log:
        train(job, run_log, Said(), SingleWorker())
        run_log.close()
    with read_log(layer["log"]) as log:
        flags, scales = np.array(log.steps["skipped_updates"]), np.array(log.steps["loss_scale"])
    assert flags.sum() == len(skipped(layer)) > 0 and set(flags) == {0.0, 1.0}
    np.testing.assert_array_equal(scales, layer["loss_scale"] / 2.0 ** (np.cumsum(flags) - flags))
    assert said == [(count, scale) for count, scale in zip(np.cumsum(flags).tolist(), scales.tolist())]


def test_runs_without_fp16_have_no_such_columns(tmp_path):
    layer = dict(steps=2, global_batch=8, lr=0.1, target="none", threads=1, log=str(tmp_path / "b.h5"))
    with open_run_log(prepare(IMAGES, [layer], SingleWorker()), SingleWorker()) as run_log:
        run_log.close()
    with read_log(layer["log"]) as log:
        assert "loss_scale" not in log.steps.columns
