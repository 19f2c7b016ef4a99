"""Faults of the nodes, daemons and controller under jobs of a real Slurm of three nodes, as fault_table counts them.

A job of two nodes, with a checkpoint every second, is queued again, or goes on, after each of the faults, and takes at
last the steps that an undisturbed one takes, to the last bit (an elastic one: up to rounding). Whatever happens, it is
queued again or ends with its reason; no process is left, but on a node that is cut off, where no worker is; the log is
whole and has all rows but those of the last second; the newest checkpoint can be gone on from.
"""
import atexit
import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from hvdscale.errors import HvdscaleError
from hvdscale.log.check import check
from hvdscale.log.reader import read_log
from tests.conftest import ROOT, command_environment
from tests.minislurm import FINAL, MiniSlurm, missing, possible
from tests.parallel.launched_job import PROMISED_SECONDS, SLACK_SECONDS, Job, held, slow_workload
from tests.factories.runs import assert_same_columns, assert_same_state, state_of

STALL = 20                              # seconds, for the start of a busy machine's workers
NOTICED = 120                           # seconds in which Slurm gives up a node (SlurmdTimeout is 10), and clears up
STARTED = 300                           # seconds that a job may take to its first step, on a busy machine
NOTICED_BY = f"waited {STALL} s|lost communication|NODE FAILURE"        # the workers, srun or Slurm
STEPS = 300                             # for each of a job's faults
FAULTS = {}


def lacking():
    """What these faults need and this machine has not, in words; empty where it has all."""
    needed = [f"Slurm ({', '.join(missing())})"] * bool(missing())
    return " and ".join([*needed, *["root and network namespaces"] * (not possible("net"))])


def options(steps):
    return ["slow:workload", "--steps", steps, "--eval-every", steps, "--target", "none", "--log-file", "w.h5",
            "--checkpoint", "ck", "--resume", "auto", "--set", "checkpoint_every_seconds=1",
            "--set", f"stall_seconds={STALL}"]


class SlurmJob(Job):
    """A job of Slurm on two nodes, in a folder of its own."""

    def __init__(self, slurm, folder, launcher, steps, *given):
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
            "-N2", "--ntasks-per-node=1", "-c1", "-t60", "--requeue", *given,
            "--export=ALL," + ",".join(f"{name}={value}" for name, value in variables.items()),
            folder / f"clone/slurm/{template}.sbatch", *options(steps), cwd=folder)

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
        return f"COMPLETED 0:0 at last, restarts {state['Restarts']}, as an undisturbed job"


@lru_cache
def undisturbed(steps):
    """The folder of a job to which nothing happens."""
    folder = Path(tempfile.mkdtemp(prefix="fault"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "hurry").touch()
    with cluster(folder) as slurm:
        job = SlurmJob(slurm, folder, "mpirun", steps)
        assert slurm.wait(job.number, STARTED)["JobState"] == "COMPLETED", job.said()
    return folder


def cluster(folder, launcher="mpirun"):
    """Three nodes, one to spare, with addresses of their own; under an elastic job, which must find out by itself, a
    silent node is not given up for as long as by default."""
    environment = {**command_environment(), "TMPDIR": str(folder)}
    return MiniSlurm(nodes=3, cpus=2, environment=environment, layout="net",
                     settings="SlurmdTimeout=300\n" if launcher == "elastic" else "")


def fault(said, *launchers):
    """Names a function of (job, draw), which does harm to a running job and gives its outcome in words and seconds."""
    def name(function):
        for launcher in launchers:
            FAULTS[f"{said}, Slurm, {launcher}"] = function
        return function
    return name


def after(job, draw):
    """Once the job has taken steps for up to three seconds, its nodes, and that moment."""
    job.wait_for_steps()
    time.sleep(draw.uniform(0, 3))
    job.had_said, job.run = len(job.said()), job.state()["Restarts"]
    return job.hosts(), time.monotonic()


def queued_again(job, since, node, said, may_stay=False):
    """Holds a job that loses the node to its promises, until it is queued again; gives the seconds that this took.

    may_stay  whether what is no worker may be left on the node, which nobody can reach
    """
    def it_has_left():
        state = job.state()
        began_anew = state["Restarts"] != job.run and state["JobState"] == "RUNNING"
        return began_anew or state["JobState"] in ("PENDING", *FINAL)

    job.wait(it_has_left, STALL + NOTICED)
    state, took = job.state(), time.monotonic() - since
    assert state["Restarts"] != job.run, f"{state}\n{job.said()[-3000:]}"
    assert job.logged_steps() >= job.promised_steps(since), "rows are lost"
    assert re.search(said, job.said()[job.had_said:]), job.said()[-3000:]
    job.wait(lambda: not [name for name, where in job.left(run=job.run)
                          if where != node or not may_stay or name == "python"], 20)
    held(job.folder / "ck")
    return took


def back(job, node):
    """The node is idle, and none of the processes of the job's earlier start is left there."""
    job.clear(node)
    job.wait(lambda: job.is_over(node) and job.slurm.node_states()[node] == "idle", NOTICED)


power_off = partial(MiniSlurm.power_off, tell=False)


def loses(which, harm, mend, said, may_stay=False):
    """One of the job's nodes, 0 that of its script, is lost by ``harm``, and is back when the job has gone on.

    One that was cut off is started anew before the job may get it again: this Slurm tells the script's end for an hour,
    in vain, and meanwhile drains a node that it gives the job's next start.
    """
    def fault(job, draw):
        hosts, since = after(job, draw)
        harm(job.slurm, hosts[which])
        took = queued_again(job, since, hosts[which], said, may_stay)
        job.go_on()
        mend(job.slurm, hosts[which])
        back(job, hosts[which])
        if may_stay:
            power_off(job.slurm, hosts[which])
            job.slurm.power_on(hosts[which])
            back(job, hosts[which])
        return "queued again, went on", took
    return fault


for number, node in ((1, "the other node"), (0, "the batch script's node")):
    fault(f"the network of {node} down", "mpirun", "srun")(
        loses(number, MiniSlurm.cut_off, MiniSlurm.join, NOTICED_BY, may_stay=True))
    fault(f"the power of {node} off", "mpirun", "srun")(
        loses(number, power_off, MiniSlurm.power_on, NOTICED_BY if number else ""))
    fault(f"slurmd of {node} killed", "mpirun", "srun")(
        loses(number, MiniSlurm.kill_slurmd, MiniSlurm.start_slurmd, "NODE FAILURE" if number else ""))


def trains_on(job):
    """The job, which nothing should have happened to, takes further steps."""
    reached, state = job.noted_steps()[-1][0], job.state()
    job.wait(lambda: job.noted_steps()[-1][0] > reached + 10, STALL)
    assert state["JobState"] == "RUNNING", state


def daemon(which):
    def harm(job, draw):
        hosts, since = after(job, draw)
        job.slurm.kill_slurmd(hosts[which])
        trains_on(job)
        job.slurm.start_slurmd(hosts[which])
        job.wait(lambda: job.slurm.node_states()[hosts[which]] in ("mixed", "allocated"), NOTICED)
        trains_on(job)
        return "trained on", time.monotonic() - since
    return harm


fault("slurmd of the other node killed, started again", "mpirun", "srun")(daemon(1))
fault("slurmd of the batch script's node killed, started again", "mpirun", "srun")(daemon(0))


@fault("slurmctld killed, started again", "mpirun", "srun", "elastic")
def killed_controller(job, draw):
    _, since = after(job, draw)
    job.slurm.kill_slurmctld()
    time.sleep(draw.uniform(0, 3))
    job.slurm.start_slurmctld()
    trains_on(job)
    return "trained on", time.monotonic() - since


def workers(job):
    """At each of the job's starts, and after each of its losses."""
    with read_log(job.folder / "w.h5") as log:
        return log.restarts["workers"].tolist()


def loses_worker(harm, mend):
    """As ``loses``, of the other node of an elastic job, which goes on before it is queued again."""
    def fault(job, draw):
        hosts, since = after(job, draw)
        harm(job.slurm, hosts[1])
        job.begun = time.monotonic()
        job.wait(lambda: workers(job)[-1] == 1 and job.noted_steps(), STALL + NOTICED)
        took = time.monotonic() - since
        assert took < STALL + 60, f"{took} s\n{job.said()[-3000:]}"
        assert "python" not in [name for name, _ in job.left(hosts[1])], job.left()
        mend(job.slurm, hosts[1])
        job.wait(lambda: job.is_over(hosts[1]), NOTICED)
        trains_on(job)
        job.slurm.run("scancel", "-b", "-s", "USR1", job.number)
        job.wait(lambda: job.state()["JobState"] in ("PENDING", *FINAL), NOTICED)
        job.go_on()
        assert workers(job)[-3:] == [2, 1, 2], workers(job)
        return "went on with one worker; queued again, with two", took
    return fault


fault("the network of the other node down", "elastic")(loses_worker(MiniSlurm.cut_off, MiniSlurm.join))
fault("the power of the other node off", "elastic")(loses_worker(power_off, MiniSlurm.power_on))


def tried(name, times, seed=0):
    """Outcomes of a fault and how often they came, and the longest seconds from the fault to the outcome."""
    outcomes, longest, launcher = Counter(), 0.0, name.rpartition(" ")[2]
    draws = [random.Random(f"{name} {seed} {number}") for number in range(times)]
    whole = undisturbed(STEPS * times)
    while draws:
        folder = Path(tempfile.mkdtemp(prefix="fault"))
        try:
            with cluster(folder, launcher) as slurm:
                job = SlurmJob(slurm, folder, launcher, STEPS * times)
                while draws:
                    outcome, took = FAULTS[name](job, draws.pop(0))
                    outcomes[outcome] += 1
                    longest = max(longest, took)
                outcomes[job.finish(whole)] += 1
        except (AssertionError, HvdscaleError, IndexError, OSError, ValueError, RuntimeError,
                subprocess.SubprocessError) as error:
            outcomes["BROKEN: " + str(error).strip()] += 1
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return outcomes, longest
