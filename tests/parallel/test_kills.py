"""A real training job with one of its processes killed at a random moment: all end, and the log keeps its promise."""
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hvdscale.log.check import check
from tests.conftest import command_environment, launcher_command

# a moment lies at most so many seconds after this: the job's start, its first step, its last
MOMENTS = {"start": 4.0, "steps": 4.0, "end": 0.3}
STEPS = {"start": 10**6, "steps": 10**6, "end": 60}
PROMISED_SECONDS = 1.0          # a row older than this is in the file
SLACK_SECONDS = 0.5             # for a writer that waits for a busy machine
GONE_SECONDS = 10               # after which no process of the job is left


class Job:
    """hvdscale-train digits/cnn on two workers; its processes are those with its NOTES in their environment."""

    def __init__(self, folder, moment):
        self.folder, self.notes = folder, folder / "notes"
        folder.mkdir()
        environment = {**command_environment(), "NOTES": str(self.notes), "TMPDIR": str(folder),
                       "OMPI_MCA_btl_vader_backing_directory": str(folder)}     # what a killed mpirun leaves behind
        command = [*launcher_command("mpirun", 2), sys.executable, "-m", "tests.parallel.noted_command", "digits/cnn",
                   "--log", "w.h5", "--steps", STEPS[moment],
                   "--eval-every", STEPS[moment]]                               # an evaluation would flush the log
        with open(folder / "output", "wb") as output:
            self.process = subprocess.Popen([str(word) for word in command], cwd=folder, env=environment,
                                            stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def noted(self):
        """What was noted, as text, and when."""
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        return [(what, float(seconds)) for what, seconds in map(str.split, lines)]

    def alive(self):
        """Ids of the processes that are left."""
        ours, found = f"NOTES={self.notes}".encode(), []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if ours in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    found.append(int(pid))
        return sorted(found)

    def wait(self, ready, limit):
        until = time.monotonic() + limit
        while not ready():
            assert time.monotonic() < until, f"{self.alive()}\n{(self.folder / 'output').read_text()}"
            time.sleep(0.01)

    def end(self):
        for pid in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def kill_one_process(job, moment, draw):
    """Kill mpirun or a rank, and wait until none is left; gives the second of the kill."""
    if moment == "steps":
        job.wait(job.noted, 60)
    if moment == "end":
        job.wait(lambda: job.noted()[-1:] and job.noted()[-1][0] == "end", 60)
    time.sleep(draw.uniform(0, MOMENTS[moment]))
    killed = time.monotonic()
    with contextlib.suppress(ProcessLookupError, IndexError):       # a job that has ended
        os.kill(draw.choice(job.alive()), signal.SIGKILL)
    job.wait(lambda: job.process.poll() is not None and not job.alive(), GONE_SECONDS)
    assert job.process.returncode != 0 or moment == "end"
    return killed


def logged_steps(job):
    """Rows of /steps in the job's log, which must be whole; 0 without one."""
    if not (job.folder / "w.h5").exists():
        return 0
    log = check(job.folder / "w.h5")
    assert log.steps["step"].tolist() == list(range(1, log.steps.rows + 1))
    job.wait(lambda: log.writer() is None, GONE_SECONDS)        # who ends has files open, and no environment
    return log.steps.rows


@pytest.mark.parametrize("kills", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_a_job_that_loses_a_process_ends_and_its_log_has_all_but_the_last_second(kills, tmp_path):
    pytest.importorskip("sklearn")
    for number in range(kills):
        moment = list(MOMENTS)[number % len(MOMENTS)]
        job = Job(tmp_path / str(number), moment)
        try:
            killed = kill_one_process(job, moment, random.Random(f"job{number}"))
        finally:
            job.end()
        old = [int(what) for what, seconds in job.noted()
               if what != "end" and seconds < killed - PROMISED_SECONDS - SLACK_SECONDS]
        assert logged_steps(job) >= max(old, default=0)
