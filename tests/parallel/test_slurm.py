"""The templates of slurm/ and srun under a real Slurm of two nodes with two cores each."""
import json
import os
import re
import signal
import sys
import time

import pytest

from hvdscale.log.reader import read_log
from hvdscale.log.schema import Status
from tests import guides
from tests.conftest import launcher_command
from tests.parallel.launched_job import Job, slow_workload, until
from tests.parallel.test_hangups import ENDLESS, GONE, STARTED

AWKWARD = """it's "so" $(touch shot) `touch shot` ; touch shot.toml"""


@pytest.fixture
def submit(cluster, checkout, tmp_path):
    """Submit the template from another folder with options of sbatch and arguments; gives the ended job, its output."""
    def submit(options, *arguments, launcher="mpirun"):
        launcher_command("mpirun", 1)                                               # skips where there is none
        job = cluster.sbatch(*options, f"--export=ALL,HVDSCALE_LAUNCHER={launcher}", checkout / "slurm/train.sbatch",
                             *arguments, cwd=tmp_path)
        ended = cluster.wait(job)
        return ended, (tmp_path / f"hvdscale-{job}.out").read_text()
    return submit


@pytest.mark.slow
@pytest.mark.parametrize("launcher, transport", [
    ("srun", "auto"), ("mpirun", "auto"), ("torchrun", "auto"), ("srun", "torch"), ("mpirun", "torch")])
def test_the_template_trains_on_two_nodes_with_two_ranks_each(submit, request, tmp_path, launcher, transport):
    if launcher == "srun":
        request.getfixturevalue("pmix")
    (tmp_path / AWKWARD).write_text("steps = 4\nseed = 7\n")
    job, output = submit(["-N2", "--ntasks-per-node=2", "-c1"], "digits/fc", "--config", AWKWARD, "--set",
                         f"transport={transport}", launcher=launcher)
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0"), output
    assert f"job {job['JobId']} on n1 n2, workers a host: 2(x2), GPUs a worker: 0\n" in output
    assert "  workers        4 on cpu, 1 thread each\n" in output and "COMPLETE: budget of 4 steps spent" in output
    [path] = (tmp_path / "runs").glob(f"digits-fc-*-job{job['JobId']}.h5")
    assert len(os.listdir(tmp_path / "runs")) == 1 and f"log: runs/{path.name}" in output
    with read_log(path) as log:
        assert log.trials["status"].tolist() == [Status.COMPLETE] and log.trials["workers"].tolist() == [4]
        assert (log.trials["seed"].tolist(), log.steps.rows) == ([7], 4)
    assert not list(tmp_path.rglob("shot"))


def test_the_sbatch_command_of_the_readme_runs(submit):
    [command] = {each.command for path in guides.PATHS for each in guides.typed(path) if each.command[:6] == "sbatch"}
    options, arguments = command.removeprefix("sbatch ").split(" slurm/train.sbatch ")
    job, output = submit(options.split(), *arguments.split())
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0"), output


@pytest.mark.slow
def test_inside_an_allocation_a_series_runs_on_its_nodes(cluster, tmp_path):
    """The guide's allocation, of two cores a node."""
    launcher_command("mpirun", 1)
    [allocate] = re.findall(r"``(salloc .*?)``", guides.read("slurm/README.rst"))
    done = cluster.run(*allocate.replace("node=8", "node=2").split(), sys.executable, "-m", "hvdscale.cli.scale",
                       "digits/fc", "--workers", "4", "--steps", "2", "--out", "out", cwd=tmp_path, timeout=300)
    assert "out/report/report.html" in done.stdout
    with read_log(tmp_path / "out/w4-r1.h5") as log:
        assert (log.trials["status"].tolist(), log.trials["workers"].tolist()) == ([Status.COMPLETE], [4])
        local_workers = json.loads(log.trials["plan"][0])["execution"]["local_workers"]
    assert local_workers == (2 if cluster.layout == "hosts" else 4)


@pytest.mark.slow
@pytest.mark.parametrize("code, says, options", [
    (3, "INFEASIBLE: diverged", ["--lr", "1e30", "--lr-rule", "none"]),
    (2, "Error: --global-batch 20 is not", ["--global-batch", "20", "--local-batch", "8"])])
def test_the_exit_code_of_training_is_the_jobs(submit, code, says, options):
    job, output = submit(["-N2", "--ntasks-per-node=1"], "digits/fc", "--steps", "20", *options)
    assert (job["JobState"], job["ExitCode"]) == ("FAILED", f"{code}:0"), output
    assert output.count(says) == 1


@pytest.mark.usefixtures("pmix")
def test_a_rank_of_srun_gets_no_message_before_it_can_take_one(submit, checkout, tmp_path):
    (checkout / ".venv/bin/hvdscale-train").write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -m tests.parallel.late_news "$@"\n')
    job, output = submit(["-N2", "--ntasks-per-node=1"], tmp_path / "rank 1 joins", launcher="srun")
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0"), output
    assert (tmp_path / "rank 1 joins").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("pmix")
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_the_workers_of_srun_end_with_it(cluster, tmp_path, number):
    job = Job(tmp_path / "job", *ENDLESS, launcher=None, before=["srun", "--mpi=pmix", "-n2", "--overcommit"],
              **{**cluster.environment, "TMPDIR": "/tmp"})
    try:
        job.wait(job.noted, STARTED)
        moment = time.monotonic()
        os.kill(job.process.pid, number)
        job.wait_for_its_end(GONE)
        assert job.logged_steps() >= job.promised_steps(moment)
    finally:
        job.end()
        cluster.repair()


@pytest.mark.slow
def test_ranks_that_srun_does_not_join_are_an_error_not_lone_runs(cluster, checkout, tmp_path):
    launcher_command("mpirun", 1)
    done = cluster.run("srun", "-N2", "--mpi=none", checkout / ".venv/bin/hvdscale-train", "digits/fc", "--steps", "2",
                       check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert "srun started 2 processes without PMIx" in done.stderr and "they would be 2 separate runs" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_two_nodes_share_the_trials_of_a_sweep_under_torchrun(cluster, checkout, tmp_path):
    (tmp_path / "sweep.toml").write_text(SWEEP.replace("trials = 4", "trials = 4\nworkers_per_trial = 2"))
    job = cluster.sbatch("-N2", "--ntasks-per-node=2", "-c1", "--export=ALL,HVDSCALE_LAUNCHER=torchrun",
                         checkout / "slurm/study.sbatch", "sweep.toml", "--out", "out", cwd=tmp_path)
    ended, output = cluster.wait(job), (tmp_path / f"hvdscale-tune-{job}.out").read_text()
    assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"), output
    assert "2 groups of 2" in output
    with read_log(tmp_path / "out/sgd-b64.h5") as log:
        assert log.trials["status"].tolist() == [Status.COMPLETE] * 4 and set(log.trials["workers"]) == {2}


def test_a_launcher_that_the_template_does_not_know_is_misuse(submit):
    job, output = submit(["-n1"], "digits/fc", launcher="ssh")
    assert job["ExitCode"] == "2:0"
    assert "train.sbatch: HVDSCALE_LAUNCHER=ssh is none of mpirun, srun, torchrun" in output


SWEEP = """
workload = "digits/fc"
batch_sizes = [64]
optimizer = "sgd"
trials = 4
targets = ["val/error<0.1"]
steps = 4
evaluations = 2
prune = false
[space.lr]
scale = "log"
min = 0.01
max = 1.0
"""


@pytest.mark.parametrize("launcher", ["mpirun", *(pytest.param(each, marks=pytest.mark.slow) for each in (
    "srun", "torchrun"))])
def test_the_tasks_of_an_array_share_the_trials_of_a_sweep(cluster, checkout, request, tmp_path, launcher):
    launcher_command("mpirun", 1)
    if launcher == "srun":
        request.getfixturevalue("pmix")
    (tmp_path / AWKWARD).write_text(SWEEP)
    array = cluster.sbatch("--array=3-5:2", "-n1", "-c1", f"--export=ALL,HVDSCALE_LAUNCHER={launcher}",
                           checkout / "slurm/study.sbatch", AWKWARD, "--out", "a sweep", cwd=tmp_path)
    for task in (3, 5):
        job = cluster.wait(f"{array}_{task}")
        output = (tmp_path / f"hvdscale-tune-{job['JobId']}.out").read_text()
        assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0"), output
        assert f"job {job['JobId']} on n" in output and "1 group of 1" in output
    assert len(list((tmp_path / "a sweep/trials/sgd-b64").glob("*.claim-*"))) == 4      # none was run twice
    with read_log(tmp_path / "a sweep/sgd-b64.h5") as log:
        assert log.trials["status"].tolist() == [Status.COMPLETE] * 4
    assert (tmp_path / "a sweep/tuned.toml").exists() and not list(tmp_path.rglob("shot"))


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_the_tasks_of_an_array_that_are_warned_are_queued_again_and_go_on(cluster, checkout, tmp_path, launcher):
    launcher_command("mpirun", 1)
    (tmp_path / "slow.py").write_text(slow_workload(0.02))
    sweep = SWEEP.replace("digits/fc", "slow:workload").replace("steps = 4", "steps = 100")
    (tmp_path / "sweep.toml").write_text(sweep)
    array = cluster.sbatch("--array=0-1", "-n1", "--requeue", "-t10", f"--export=ALL,HVDSCALE_LAUNCHER={launcher}",
                           checkout / "slurm/study.sbatch", "sweep.toml", "--out", "out", cwd=tmp_path)
    until(lambda: (tmp_path / "out/trials/sgd-b64/1.claim-1").exists())
    cluster.run("scancel", "-b", "-s", "USR1", array)                   # what --signal sends
    for task in (0, 1):
        cluster.start_again(f"{array}_{task}")
    for task in (0, 1):
        ended = cluster.wait(f"{array}_{task}")
        output = (tmp_path / f"hvdscale-tune-{ended['JobId']}.out").read_text()
        assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("COMPLETED", "0:0", "1"), output
    with read_log(tmp_path / "out/sgd-b64.h5") as log:
        assert log.trials["status"].tolist() == [Status.COMPLETE] * 4
        stopped = [log.restarts["trial"].tolist().count(trial) for trial in (0, 1)]
        assert stopped == [2, 2]                        # and gone on from their checkpoints
