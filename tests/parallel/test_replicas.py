"""Replicas make the same updates on any number of workers, also in a job that is killed, resumed and moved."""
import functools
import json
import re

import numpy as np
import pytest

from hvdscale.log.reader import read_log
from hvdscale.workers.group import SingleWorker
from tests.conftest import launch_in
from tests.parallel import toy
from tests.parallel.test_resume import Runs, assert_same_run, parameters
from tests.parallel.test_trajectory import EVERYTHING, TORCHS_OWN, norm_of_difference

DILOCO = dict(outer="nesterov", optimizer="adamw", lr=0.01, clip_norm=0.5)
# of several replicas a worker, of one each, and of one that several workers compute together
CONFIGURATIONS = [dict(dict(steps=10, precision="fp64", global_batch=24), **one) for one in (
    dict(replicas=4, sync_every=4, **DILOCO, **EVERYTHING), dict(replicas=4, sync_every=3, **TORCHS_OWN),
    dict(replicas=2, sync_every=3, **DILOCO, **EVERYTHING, ghost_batch=12),
    dict(replicas=2, sync_every=4, accumulate=2, average="ema", average_half_life=50.0),
    dict(replicas=1, sync_every="1 epoch", **DILOCO, **EVERYTHING),
    dict(replicas=4, sync_every=2, exchange="bf16", **DILOCO, **EVERYTHING),
    dict(replicas=2, sync_every=2, exchange="powersgd:1", **DILOCO))]
CONFIGURATIONS += [dict(steps=10, precision="fp64", batch_schedule=[[0, 8], [4, 16], [7, 24]], replicas=4, sync_every=3,
                        **DILOCO)]


@functools.cache
def alone(configuration):
    return toy.trajectory(SingleWorker(), **json.loads(configuration))


@pytest.mark.parametrize("launcher, np_", [
    ("mpirun", 4), ("torchrun", 4), *(pytest.param(*one, marks=pytest.mark.slow) for one in (
        ("mpirun", 2), ("torchrun", 2), ("horovodrun", 2), ("gloo", 4)))])
def test_any_worker_count_makes_the_updates_of_one_worker(tmp_path, launcher, np_):
    ranks = launch_in(tmp_path, toy.trajectories, np_, CONFIGURATIONS, launcher, HOROVOD_DYNAMIC_PROCESS_SETS="1")
    assert all(rank == ranks[0] for rank in ranks)                      # to the last bit
    for configuration, got in zip(CONFIGURATIONS, ranks[0]):
        reference = alone(json.dumps(configuration))
        for what in (1, 2):                 # parameters, buffers
            assert norm_of_difference(got, reference, what) <= 1e-10, configuration
        np.testing.assert_allclose(got[0], reference[0], rtol=1e-9)


# synchronized at steps 8, 16, 24, ...; kept at 7, 14, 21, ..., within rounds
REPLICAS = ["--precision", "fp64", "--global-batch", "8", "--replicas", "2", "--sync-every", "8", "--lr", "0.01",
            "--optimizer", "adamw", "--set", "outer=nesterov", "--set", "average=tail", "--set", "exchange=powersgd:2"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("runs"))


@pytest.mark.slow
@pytest.mark.parametrize("np_, kills", [
    (1, ["SIGKILL 0 step 30", "SIGTERM 0 step 43"]), (2, ["SIGKILL 1 step 19"]),
    (4, ["SIGKILL 3 step 12", "SIGTERM 2 step 29"])])
def test_a_job_killed_within_a_round_makes_what_the_uninterrupted_one_makes(runs, tmp_path, np_, kills):
    folder = tmp_path / "killed"
    for kill in (*kills, ""):
        code, output = runs.start(np_, folder, *REPLICAS, kill=kill)
        assert (code == 0) == (not kill), output
    assert re.search(r"resumes +from ck/step-\d+.pt", output)
    assert_same_run(folder, runs.whole(np_, *REPLICAS))


def test_a_job_moves_within_a_round_to_other_numbers_of_workers(runs, tmp_path):
    folder, whole = tmp_path / "moved", runs.whole(1, *REPLICAS)
    for np_, kill in ((2, "SIGKILL 1 step 19"), (4, "SIGKILL 3 step 37"), (1, "")):
        code, output = runs.start(np_, folder, *REPLICAS, "--save-model", "end.pt", kill=kill)
    assert code == 0, output
    assert np.linalg.norm(parameters(folder) - parameters(whole)) <= 1e-10 * np.linalg.norm(parameters(whole))
    with read_log(folder / "w.h5") as log, read_log(whole / "w.h5") as reference:
        assert log.restarts["workers"].tolist() == [2, 4, 1]
        for name in ("loss", "replica_distance", "outer_step", "exchange_error"):
            np.testing.assert_allclose(log.steps[name], reference.steps[name], rtol=1e-9, err_msg=name)
        synchronized = np.isfinite(log.steps["outer_step"])
        assert log.steps["step"][synchronized].tolist() == list(range(8, 61, 8))
        assert (log.steps["replica_distance"][synchronized] > 0).all()
    saved = (folder / "end.pt").read_bytes()
    (folder / "end.pt").unlink()
    code, output = runs.start(1, folder, *REPLICAS, "--save-model", "end.pt")
    assert "had already ended" in output and (folder / "end.pt").read_bytes() == saved
