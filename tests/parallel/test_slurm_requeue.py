"""Jobs of slurm/ that are stopped, preempted or lose a node, those that submit others, and shellcheck."""
import json
import re
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from hvdscale.log.reader import read_log
from hvdscale.log.schema import Status
from tests import guides
from tests.conftest import ROOT, command_environment, lacks, launcher_command
from tests.factories.timed_scripts import SLOW
from tests.minislurm import possible
from tests.parallel.conftest import two_nodes
from tests.parallel.launched_job import slow_workload, until
from tests.parallel.test_slurm import AWKWARD

TEMPLATES = sorted((ROOT / "slurm").glob("*.sbatch"))
PATIENT = "KillWait=30\n"
PREEMPTING = PATIENT + """\
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=high Nodes=ALL PriorityTier=9 State=UP
PartitionName=low Nodes=ALL PriorityTier=1 GraceTime=20 PreemptMode=REQUEUE State=UP
"""
STEPS = 150
# the guide's arguments of hvdscale-train, and options of sbatch, for a job that is queued again
[KEPT, QUEUED] = re.findall(r"``((?:--checkpoint|--requeue) [^`]*)``", guides.read("slurm/README.rst"))
JOB = ["--steps", STEPS, "--target", "none", "--save-model", "m.pt", "--log", "w.h5", *KEPT.split()]


def test_the_templates_are_clean():
    for path in TEMPLATES:
        subprocess.run(["bash", "-n", path], check=True)
    if shutil.which("shellcheck") is None:
        lacks("shellcheck", "needs shellcheck (Debian: apt install shellcheck)")
    done = subprocess.run(["shellcheck", *TEMPLATES], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_templates_that_are_queued_again_do_it_alike():
    for function in ("queue_again", "node_lost"):
        found = [re.search(rf"^{function}\(\) .*?^}}", path.read_text(), re.M | re.S) for path in TEMPLATES]
        written = [re.sub(r"\w+\.sbatch: .*", "", match[0]) for match in found if match]
        assert (len(written), len(set(written))) == (3, 1)


@pytest.fixture(params=["mpirun", "srun", "torchrun"])
def launcher(request):
    """What starts the workers of a job; srun where Slurm has PMIx."""
    if request.param == "srun":
        request.getfixturevalue("pmix")
    return request.param


def start(cluster, checkout, folder, *options, template="train", arguments=JOB, **environment):
    """Submit the slow job; gives its number once it has its first checkpoint."""
    launcher_command("mpirun", 1)
    (folder / "slow.py").write_text(slow_workload(0.02))
    variables = "".join(f",{name}={value}" for name, value in environment.items())
    job = cluster.sbatch("-N2", "--ntasks-per-node=1", "-t10", *QUEUED.split(), f"--export=ALL{variables}", *options,
                         checkout / f"slurm/{template}.sbatch", "slow:workload", *arguments, cwd=folder)
    until(lambda: (folder / "DIR/step-0.pt").exists())
    return job


def ended(cluster, job, folder, name="hvdscale"):
    """The ended job, and what it printed."""
    return cluster.wait(job), (folder / f"{name}-{job}.out").read_text()


def check_same(folder, np_=2):
    """Hold log and parameters against those of a job that nothing happened to."""
    command = [*launcher_command("mpirun", np_), sys.executable, "-m", "hvdscale.cli.train", "slow:workload", *JOB[:4],
               "--save-model", "alone.pt", "--log", "alone.h5"]
    subprocess.run([str(word) for word in command], cwd=folder, check=True, env=command_environment(),
                   stdout=subprocess.DEVNULL)
    with read_log(folder / "alone.h5") as alone, read_log(folder / "w.h5") as log:
        assert log.trials["status"].tolist() == [Status.COMPLETE]
        for table, column in (("steps", "step"), ("steps", "loss"), ("evaluations", "val/error")):
            assert np.array_equal(*(getattr(each, table)[column] for each in (alone, log))), column
    expected, found = (torch.load(folder / name, weights_only=True) for name in ("alone.pt", "m.pt"))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_job_of_any_name_goes_on_exactly_after_a_warning(cluster, checkout, tmp_path):
    """Of one task, as test_resume has the exact return of two workers."""
    job = start(cluster, checkout, tmp_path, "-J", AWKWARD, "-N1")
    cluster.run("scancel", "-b", "-s", "USR1", job)                     # what --signal=B:USR1@ sends
    cluster.start_again(job)
    state, output = ended(cluster, job, tmp_path, AWKWARD)
    assert (state["JobState"], state["ExitCode"], state["Restarts"]) == ("COMPLETED", "0:0", "1"), output
    check_same(tmp_path, np_=1)
    shown = cluster.run(sys.executable, "-m", "hvdscale.cli.log", "show", "w.h5", cwd=tmp_path).stdout
    assert "stopped by a signal after step" in shown
    assert not list(tmp_path.rglob("shot"))


# stands in for hvdscale-train and hvdscale-tune: stopped each time, with something more to show in the first two runs
STOPPED = """#!/bin/bash
run=$((${SLURM_RESTART_COUNT:-0} + 1))
mkdir -p DIR
touch DIR/step-$((run > 2 ? 2 : run)).pt
echo '{ "exit_code": 75, "status": "INCOMPLETE" }' >DIR/outcome
exit 75
"""


@pytest.mark.parametrize("template, option, says", [
    ("train", "--checkpoint", "without a step more (DIR/step-2.pt)"),
    pytest.param("study", "--out", "without a trial or checkpoint more", marks=pytest.mark.slow)])
def test_a_job_that_gets_no_further_is_not_queued_again_for_ever(cluster, checkout, tmp_path, template, option, says):
    launcher_command("mpirun", 1)
    for name in ("train", "tune"):
        (checkout / f".venv/bin/hvdscale-{name}").write_text(STOPPED)
    job = cluster.sbatch("-n1", "--requeue", "--export=ALL,HVDSCALE_REQUEUES=1", checkout / f"slurm/{template}.sbatch",
                         f"{option}=DIR", cwd=tmp_path)
    for _ in range(2):
        cluster.start_again(job)
    state, output = ended(cluster, job, tmp_path, "hvdscale" if template == "train" else "hvdscale-tune")
    assert (state["JobState"], state["ExitCode"], state["Restarts"]) == ("FAILED", "75:0", "2"), output
    assert output.count(f"{template}.sbatch: queued again 1 times {says}, so not once more") == 1


@pytest.mark.slow
def test_a_job_that_is_cancelled_keeps_a_checkpoint_and_is_not_queued_again(checkout, tmp_path, launcher):
    with two_nodes(settings=PATIENT) as cluster:
        job = start(cluster, checkout, tmp_path, HVDSCALE_LAUNCHER=launcher, OMPI_MCA_odls_base_sigkill_timeout=30)
        time.sleep(1)
        cluster.run("scancel", job)
        until(lambda: (tmp_path / "DIR/outcome").exists())
        assert cluster.wait(job)["JobState"] == "CANCELLED"
    told = json.loads((tmp_path / "DIR/outcome").read_text())
    assert told["exit_code"] == 75 and told["job"] == job and (tmp_path / told["checkpoint"]).exists()


@pytest.mark.slow
def test_a_job_is_queued_again_before_its_time_limit(cluster, checkout, tmp_path, launcher):
    job = start(cluster, checkout, tmp_path, "--signal=B:USR1@5", HVDSCALE_LAUNCHER=launcher,
                arguments=["--steps", 100000, *JOB[2:]])
    end = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 45))
    cluster.run("scontrol", "update", f"jobid={job}", f"EndTime={end}")
    cluster.start_again(job, limit=100)
    told = json.loads((tmp_path / "DIR/outcome").read_text())
    assert told["exit_code"] == 75 and told["checkpoint"] != "DIR/step-0.pt" and told["job"] == job
    cluster.run("scancel", job)
    assert cluster.wait(job)["JobState"] == "CANCELLED"


@pytest.mark.slow
def test_a_preempted_job_goes_on_exactly(checkout, tmp_path, launcher):
    with two_nodes(settings=PREEMPTING) as cluster:
        job = start(cluster, checkout, tmp_path, "-plow", HVDSCALE_LAUNCHER=launcher)
        time.sleep(1)
        cluster.sbatch("-N2", "--exclusive", "-phigh", "--wrap", "sleep 1", cwd=tmp_path)
        cluster.start_again(job, limit=150)
        state, output = ended(cluster, job, tmp_path)
    assert (state["JobState"], state["ExitCode"], state["Restarts"]) == ("COMPLETED", "0:0", "1"), output
    check_same(tmp_path)


@pytest.mark.parametrize("way, launcher", [
    ("sbatch", "mpirun"), *(pytest.param("bash", each, marks=pytest.mark.slow) for each in ("mpirun", "torchrun"))])
def test_one_job_at_several_worker_counts_ends_with_one_report(cluster, checkout, tmp_path, way, launcher):
    launcher_command(launcher, 1)
    given = [checkout / "slurm/scaling.sbatch", "1,2", AWKWARD, "-J", AWKWARD, "--ntasks-per-node=1", "--", "digits/fc",
             "--steps", "6"]
    if way == "sbatch":
        job = cluster.sbatch("-n1", "-c2", *given, cwd=tmp_path)
        state, output = ended(cluster, job, tmp_path, "hvdscale-scaling")
        assert state["JobState"] == "COMPLETED", output
    else:
        output = cluster.run("env", f"HVDSCALE_LAUNCHER={launcher}", "bash", *given, cwd=tmp_path).stdout
    one, two, report = re.findall(r"^job (\d+): ", output, re.M)
    states = [cluster.wait(job) for job in (one, two, report)]
    shown = (tmp_path / f"{AWKWARD}-{report}.out").read_text()
    assert [state["JobState"] for state in states] == ["COMPLETED"] * 3, [o.read_text() for o in tmp_path.glob("*.out")]
    assert [state["NumTasks"] for state in states] == ["1", "2", "1"]
    assert states[2]["StartTime"] >= max(state["EndTime"] for state in states[:2])
    out = tmp_path / AWKWARD
    for workers in (1, 2):
        with read_log(out / f"w{workers}-r1.h5") as log:
            assert (log.trials["workers"].tolist(), log.steps.rows) == ([workers], 6)
            transport = json.loads(log.trials["plan"][0])["execution"]["transport"]
            assert transport == ("torch" if launcher == "torchrun" else "horovod")
    assert "By worker count" in shown and (out / "report/report.html").exists()
    assert not list(tmp_path.rglob("shot"))


@pytest.mark.slow
def test_a_script_is_timed_by_a_job_for_each_worker_count(cluster, checkout, tmp_path):
    launcher_command("torchrun", 1)
    (tmp_path / "train.py").write_text(SLOW)
    output = cluster.run("env", "HVDSCALE_LAUNCHER=torchrun", "bash", checkout / "slurm/scaling.sbatch", "1,2", AWKWARD,
                         "--ntasks-per-node=1", "--", "script", "train.py", "--updates", "12", "--", "--slow", "serial",
                         cwd=tmp_path).stdout
    jobs = re.findall(r"^job (\d+): ", output, re.M)
    shown = [(cluster.wait(job), (tmp_path / f"{name}-{job}.out").read_text())
             for job, name in zip(jobs, ("hvdscale", "hvdscale", "hvdscale-report"))]
    assert [state["JobState"] for state, _ in shown] == ["COMPLETED"] * 3, shown
    assert "Rank 0 alone spends" in " ".join(shown[2][1].split())
    for workers in (1, 2):
        with read_log(tmp_path / AWKWARD / f"w{workers}-r1.h5") as log:
            assert (log.trials["workers"].tolist(), log.steps.rows) == ([workers], 12)
            assert json.loads(log.trials["plan"][0])["execution"]["local_workers"] == 1
    assert not list(tmp_path.rglob("shot"))


def test_words_that_scaling_cannot_mean_are_misuse(checkout, tmp_path):
    for words in (["1,2", "out"], ["0,1", "out", "--", "digits/fc"], ["1", "--", "digits/fc"]):
        done = subprocess.run(["bash", checkout / "slurm/scaling.sbatch", *words], cwd=tmp_path, capture_output=True,
                              text=True)
        assert done.returncode == 2 and "COUNTS FOLDER [OPTION OF SBATCH]... --" in done.stderr


@pytest.fixture(scope="module")
def machines():
    """A cluster whose nodes horovodrun knows for several machines."""
    if not possible("net"):
        lacks("slurm-net", "needs root and network namespaces")
    with two_nodes(layout="net") as machines:
        yield machines


ELASTIC = ["--local-batch", 16, "--set", "stall_seconds=20", *JOB]


@pytest.mark.slow
def test_an_elastic_job_spans_nodes_without_ssh_and_goes_on_after_a_warning(machines, checkout, tmp_path):
    launcher_command("horovodrun", 1)
    folder = tmp_path / AWKWARD
    folder.mkdir()
    job = start(machines, checkout, folder, "-c1", template="elastic", arguments=ELASTIC, HVDSCALE_INTERFACE="eth0")
    machines.run("scancel", "-b", "-s", "USR1", job)
    machines.start_again(job)
    state, output = ended(machines, job, folder)
    assert (state["JobState"], state["ExitCode"], state["Restarts"]) == ("COMPLETED", "0:0", "1"), output
    with read_log(folder / "w.h5") as log:
        assert log.trials["status"].tolist() == [Status.COMPLETE]
        assert log.steps["step"].tolist() == list(range(1, STEPS + 1))
        assert log.restarts["workers"].tolist() == [2, 2]
        assert json.loads(log.trials["plan"][0])["execution"]["local_workers"] == 1
    assert not list(tmp_path.rglob("shot"))
