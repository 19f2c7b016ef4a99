"""Exact runs under real launchers: equal to one worker's to the bit, also where a run resumes on other workers."""
import json
from functools import cache
from itertools import cycle

import pytest
import torch

from hvdscale.workers.group import SingleWorker
from tests.conftest import launch_in
from tests.factories.runs import assert_same_state, state_of
from tests.parallel import toy
from tests.parallel.test_resume import Runs

STEPS, ALL_STEPS = 40, 200
EXACT = dict(exact=True, global_batch=24, augmented=True, model_args=dict(dropout=0.5, norm="ours"), ghost_batch=3)
OPTIMIZERS = [dict(optimizer="sgd"), dict(optimizer="adamw", lr=0.01, clip_norm=0.5), dict(optimizer="muon", lr=0.01),
              dict(optimizer="lars", last_batch="short"),
              dict(batch_schedule=[[0, 24], [5, 30], [12, 48]],
                   model_args=dict(dropout=0.5, norm="torch", drop="torch"))]
SLOW = pytest.mark.slow


def configurations(precisions, steps):
    """One of each optimizer, the precisions in turn; tests.update.test_exact has all optimizers in all precisions."""
    for layer, precision in zip(OPTIMIZERS, cycle(precisions)):
        given = {**EXACT, **layer, "precision": precision, "steps": steps}
        if "batch_schedule" in layer:
            given.pop("global_batch")
        yield given


@pytest.mark.parametrize("launcher, workers, precisions, steps", [
    ("mpirun", 3, ("fp32",), STEPS), pytest.param("mpirun", 2, ("fp32",), STEPS, marks=SLOW),
    *(pytest.param(launcher, workers, ("fp64", "fp32", "bf16"), ALL_STEPS, marks=SLOW) for launcher, workers in (
        ("mpirun", 4), ("horovodrun", 3), ("torchrun", 3), ("mpirun", 8), ("gloo", 2)))])
def test_every_rank_has_the_bits_of_one_worker(tmp_path, launcher, workers, precisions, steps):
    given = [*configurations(precisions, steps)]
    for rank in launch_in(tmp_path, toy.trajectories, workers, given, launcher, timeout=3000):
        for one, found in zip(given, rank):
            assert found == alone(json.dumps(one)), one


@cache
def alone(given):
    """What one worker makes of a configuration, as JSON."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [*toy.trajectory(SingleWorker(), **json.loads(given))]
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("counts", [(3, 2), pytest.param((1, 4), marks=SLOW), pytest.param((8, 1), marks=SLOW)])
def test_a_run_that_resumes_on_other_workers_has_the_bits_of_one(tmp_path, counts):
    options = ["--global-batch", "24", "--ghost-batch", "3", "--set", "exact=true", "--set", "optimizer=adamw",
               "--lr", "0.01"]
    runs, folder = Runs(tmp_path), tmp_path / "moved"
    code, output = runs.start(counts[0], folder, *options, kill="SIGTERM 0 step 24")
    assert code == 75 and "exact          the same bits at any worker count" in output, output
    code, output = runs.start(counts[1], folder, *options)
    assert code == 0 and "step 26" in output, output
    assert_same_state(state_of(runs.whole(1, *options) / "ck"), state_of(folder / "ck"))


@SLOW
def test_an_exact_run_does_not_resume_with_other_threads(tmp_path):
    runs, folder = Runs(tmp_path), tmp_path / "job"
    options = ["--global-batch", "24", "--ghost-batch", "3", "--set", "exact=true"]
    assert runs.start(1, folder, *options, "--steps", "7")[0] == 0
    code, output = runs.start(1, folder, *options, "--set", "threads=2")
    assert code != 0 and "exact.threads was 1, is now 2" in output, output
