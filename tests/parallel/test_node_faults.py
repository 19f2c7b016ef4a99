"""A job of two of the three nodes of a real Slurm loses one, and is queued again, or goes on if it is elastic.

It takes at last the steps that an undisturbed one takes, to the last bit (an elastic one: up to rounding). No process
is left, but on a node that is cut off, where no worker is; the log has all rows but those of the last second; the
newest checkpoint, of which there is one a second, can be gone on from.
"""
import contextlib
import os
import random
import re
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from hvdscale.log.check import check
from hvdscale.log.reader import read_log
from tests.conftest import ROOT, command_environment, lacks, launcher_command
from tests.minislurm import FINAL, MiniSlurm, missing, possible
from tests.factories.runs import assert_same_columns, assert_same_state, state_of
from tests.parallel.launched_job import PROMISED_SECONDS, SLACK_SECONDS, Job, held, slow_workload

STALL = 20                              # seconds, for the start of a busy machine's workers
NOTICED = 120                           # seconds in which Slurm gives up a node (SlurmdTimeout is 10), and clears up
STARTED = 300                           # seconds that a job may take to its first step, on a busy machine
NOTICED_BY = f"waited {STALL} s|lost communication|NODE FAILURE"        # the workers, srun or Slurm
STEPS = 300
OPTIONS = ["slow:workload", "--steps", STEPS, "--eval-every", STEPS, "--target", "none", "--log-file", "w.h5",
           "--checkpoint", "ck", "--resume", "auto", "--set", "checkpoint_every_seconds=1",
           "--set", f"stall_seconds={STALL}"]
pytestmark = pytest.mark.slow


class SlurmJob(Job):
    """A job of Slurm on two nodes, in a folder of its own."""

    def __init__(self, slurm, folder, launcher):
        self.slurm, self.folder, self.notes, self.launcher = slurm, folder, folder / "notes", launcher
        self.begun = time.monotonic()
        commands = folder / "clone/.venv/bin"
        commands.mkdir(parents=True)
        (folder / "clone/slurm").symlink_to(ROOT / "slurm")
        (commands / "hvdscale-train").write_text(
            f'#!/bin/sh\nexec "{sys.executable}" -m tests.parallel.noted_command "$@"\n')
        (commands / "hvdscale-train").chmod(0o755)
        (folder / "slow.py").write_text(slow_workload(0.25))
        template = "elastic" if launcher == "elastic" else "train"
        variables = {"NOTES": self.notes, "HVDSCALE_LAUNCHER": launcher, "HVDSCALE_INTERFACE": "eth0"}
        self.number = slurm.sbatch(
            "-N2", "--ntasks-per-node=1", "-c1", "-t60", "--requeue",
            "--export=ALL," + ",".join(f"{name}={value}" for name, value in variables.items()),
            folder / f"clone/slurm/{template}.sbatch", *OPTIONS, cwd=folder)

    def said(self):
        path = self.folder / f"hvdscale-{self.number}.out"
        return path.read_text() if path.exists() else ""

    def state(self):
        return self.slurm.described(self.number)

    def wait(self, ready, limit):
        until = time.monotonic() + limit
        while not ready():
            if time.monotonic() > until:
                state = {name: self.state()[name] for name in ("JobState", "Reason", "ExitCode", "Restarts")}
                raise AssertionError(f"after {limit} s: {state} {self.left()}\n{self.said()[-3000:]}")
            time.sleep(1)

    def left(self, node=None, run=None):
        """Names of the processes that are left, on the node or on all, of one of its starts or of all; and where."""
        found = []
        for pid, words in self.environments().items():
            where, of = words.get("SLURMD_NODENAME"), words.get("SLURM_RESTART_COUNT", "0")
            if node in (None, where) and run in (None, of):
                with contextlib.suppress(OSError):
                    found.append((Path(f"/proc/{pid}/comm").read_text().strip(), where))
        return found

    def clear(self, node):
        """End what of the job's earlier start is no worker, as cgroups would."""
        for pid, words in self.environments().items():
            if (words.get("SLURMD_NODENAME"), words.get("SLURM_RESTART_COUNT", "0")) == (node, self.run):
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{pid}/comm").read_text() == "srun\n":
                        os.kill(pid, signal.SIGKILL)

    def is_over(self, node=None):
        """Whether none is left, but for srun: mpirun's own outlives it on a node that was cut off, as this Slurm, which
        has no cgroups, knows a job's processes by their parents."""
        return not [name for name, _ in self.left(node) if name != "srun"]

    def noted_steps(self):
        """Those since the job's last start, and when."""
        return [(int(what), seconds) for what, seconds in self.noted() if what != "end" and seconds > self.begun]

    def wait_for_steps(self):
        """Until the start's first steps are taken."""
        self.wait(lambda: len(self.noted_steps()) > 3 or self.state()["JobState"] in FINAL, STARTED)
        assert self.noted_steps(), f"{self.state()}\n{self.said()[-3000:]}"

    def promised_steps(self, moment):
        until = moment - PROMISED_SECONDS - SLACK_SECONDS
        return max((step for step, seconds in self.noted_steps() if seconds < until), default=0)

    def hosts(self):
        """Its nodes, that of the batch script first."""
        state = self.state()
        names = self.slurm.run("scontrol", "show", "hostnames", state["NodeList"]).stdout.split()
        return sorted(names, key=lambda name: name != state["BatchHost"])

    def go_on(self):
        """Start anew what is queued again, unless Slurm has done so: it may wait two minutes."""
        self.begun = time.monotonic()
        if self.state()["JobState"] == "PENDING":
            self.slurm.start_again(self.number)
        self.wait_for_steps()

    def finish(self, whole):
        """Its end is that of the undisturbed job in that folder."""
        (self.folder / "hurry").touch()
        self.wait(lambda: self.state()["JobState"] in FINAL, STARTED)
        state = self.state()
        assert (state["JobState"], state["ExitCode"]) == ("COMPLETED", "0:0"), f"{state}\n{self.said()[-3000:]}"
        self.wait(self.is_over, NOTICED)
        if self.launcher == "elastic":
            one, other = check(self.folder / "w.h5"), check(whole / "w.h5")
            assert one.trials["global_batch"].tolist() == other.trials["global_batch"].tolist()
            assert one.steps["step"].tolist() == other.steps["step"].tolist()
            assert np.allclose(one.steps["loss"], other.steps["loss"], rtol=1e-3)
        else:
            assert_same_columns(self.folder / "w.h5", whole / "w.h5")
            assert_same_state(state_of(self.folder / "ck"), state_of(whole / "ck"))


@contextlib.contextmanager
def submitted(launcher, folder):
    """A job on a cluster of three nodes, one to spare, with addresses of their own; under an elastic job, which must
    find out by itself, a silent node is not given up for as long as by default."""
    lacking = [*missing(), *["root and network namespaces"] * (not possible("net"))]
    if lacking:
        lacks("slurm-net", f"needs {', '.join(lacking)}")
    launcher_command("horovodrun" if launcher == "elastic" else "mpirun", 1)
    environment = {**command_environment(), "TMPDIR": str(folder)}
    with MiniSlurm(nodes=3, cpus=2, environment=environment, layout="net",
                   settings="SlurmdTimeout=300\n" if launcher == "elastic" else "") as slurm:
        yield SlurmJob(slurm, folder, launcher)


@pytest.fixture
def folder():
    """On the disk, as each node has a /dev/shm of its own."""
    with tempfile.TemporaryDirectory(prefix="fault", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def undisturbed():
    """The folder of a job to which nothing happens."""
    with tempfile.TemporaryDirectory(prefix="fault", dir="/tmp") as folder:
        with submitted("mpirun", Path(folder)) as job:
            (job.folder / "hurry").touch()
            job.wait(lambda: job.state()["JobState"] in FINAL, STARTED)
        yield Path(folder)


def after_some_steps(job):
    """Once the job has taken steps for up to three seconds, its nodes, and that moment."""
    job.wait_for_steps()
    time.sleep(random.uniform(0, 3))
    job.had_said, job.run = len(job.said()), job.state()["Restarts"]
    return job.hosts(), time.monotonic()


def assert_queued_again(job, since, node, said, may_stay):
    """Holds a job that loses the node to its promises, until it is queued again.

    may_stay  whether what is no worker may be left on the node, which nobody can reach
    """
    def it_has_left():
        state = job.state()
        began_anew = state["Restarts"] != job.run and state["JobState"] == "RUNNING"
        return began_anew or state["JobState"] in ("PENDING", *FINAL)

    job.wait(it_has_left, STALL + NOTICED)
    assert job.state()["Restarts"] != job.run, f"{job.state()}\n{job.said()[-3000:]}"
    assert job.logged_steps() >= job.promised_steps(since), "rows are lost"
    assert re.search(said, job.said()[job.had_said:]), job.said()[-3000:]
    job.wait(lambda: not [name for name, where in job.left(run=job.run)
                          if where != node or not may_stay or name == "python"], 20)
    held(job.folder / "ck")


def wait_for_its_return(job, node):
    """The node is idle, and none of the processes of the job's earlier start is left there."""
    job.clear(node)
    job.wait(lambda: job.is_over(node) and job.slurm.node_states()[node] == "idle", NOTICED)


power_off = partial(MiniSlurm.power_off, tell=False)
CABLE, POWER = (MiniSlurm.cut_off, MiniSlurm.join), (power_off, MiniSlurm.power_on)


@pytest.mark.parametrize("launcher, number, harm, mend, said", [
    ("mpirun", 1, *CABLE, NOTICED_BY), ("srun", 1, *CABLE, NOTICED_BY), ("mpirun", 0, *CABLE, NOTICED_BY),
    ("mpirun", 1, *POWER, NOTICED_BY), ("srun", 0, *POWER, "")])
def test_a_job_that_loses_a_node_is_queued_again_and_goes_on_exactly(
        undisturbed, folder, launcher, number, harm, mend, said):
    """Node 0 is that of the script. One that was cut off is started anew before the job may get it again: this Slurm
    tells the script's end for an hour, in vain, and meanwhile drains a node that it gives the job's next start."""
    with submitted(launcher, folder) as job:
        hosts, since = after_some_steps(job)
        harm(job.slurm, hosts[number])
        assert_queued_again(job, since, hosts[number], said, may_stay=harm is MiniSlurm.cut_off)
        job.go_on()
        mend(job.slurm, hosts[number])
        wait_for_its_return(job, hosts[number])
        if harm is MiniSlurm.cut_off:
            power_off(job.slurm, hosts[number])
            job.slurm.power_on(hosts[number])
            wait_for_its_return(job, hosts[number])
        job.finish(undisturbed)


def workers(job):
    """At each of the job's starts, and after each of its losses."""
    with read_log(job.folder / "w.h5") as log:
        return log.restarts["workers"].tolist()


@pytest.mark.parametrize("harm, mend", [CABLE, POWER])
def test_an_elastic_job_goes_on_without_a_node_and_with_it_when_queued_again(undisturbed, folder, harm, mend):
    with submitted("elastic", folder) as job:
        hosts, since = after_some_steps(job)
        harm(job.slurm, hosts[1])
        job.begun = time.monotonic()
        job.wait(lambda: workers(job)[-1] == 1 and job.noted_steps(), STALL + NOTICED)
        assert time.monotonic() - since < STALL + 60, job.said()[-3000:]
        assert "python" not in [name for name, _ in job.left(hosts[1])], job.left()
        mend(job.slurm, hosts[1])
        job.wait(lambda: job.is_over(hosts[1]), NOTICED)
        reached = job.noted_steps()[-1][0]
        job.wait(lambda: job.noted_steps()[-1][0] > reached + 10, STALL)
        job.slurm.run("scancel", "-b", "-s", "USR1", job.number)
        job.wait(lambda: job.state()["JobState"] in ("PENDING", *FINAL), NOTICED)
        job.go_on()
        assert workers(job)[-3:] == [2, 1, 2], workers(job)
        job.finish(undisturbed)
