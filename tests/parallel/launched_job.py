"""A real training job of several processes, which a test watches and does harm to."""
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from hvdscale.log.check import check
from hvdscale.training.checkpoint import listed, read
from tests.conftest import command_environment, launcher_command

PROMISED_SECONDS = 1.0          # a row older than this is in the file
SLACK_SECONDS = 0.5             # for a writer that waits for a busy machine
RANKS = ("OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", "RANK")


def slow_workload(seconds):
    """The text of a module: its ``workload`` is digits/fc, so much slower a pass until there is a file ``hurry``."""
    return f"""
import os
import time
from dataclasses import replace
from hvdscale.data.splits import Split
from hvdscale.workloads import find


class Slow(Split):
    def take(self, visits):
        if not os.path.exists("hurry"):
            time.sleep({seconds})
        return super().take(visits)


def load(data_dir):
    data = find("digits/fc").load(data_dir)
    return replace(data, train=Slow(data.train.inputs, data.train.labels))


workload = replace(find("digits/fc"), load=load)
"""


def until(ready, seconds=120):
    """Wait for what is ready."""
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.05)


class Job:
    """hvdscale-train under a launcher, in a folder of its own; its processes have NOTES in their environment.

    launcher    None: alone;  before  words that come before the command, such as nohup

    noted()     what rank 0's run_log took, and when
    alive()     ids of the processes that are left; of_rank(r) the id of one
    said()      all that was printed
    """

    def __init__(self, folder, *options, launcher="mpirun", np=2, module="tests.parallel.noted_command", before=(),
                 **environment):
        self.folder, self.notes = folder, folder / "notes"
        folder.mkdir(parents=True, exist_ok=True)
        environment = {**command_environment(), "NOTES": str(self.notes), "TMPDIR": str(folder),
                       "OMPI_MCA_btl_vader_backing_directory": str(folder),     # what a killed mpirun leaves behind
                       **environment}
        launched = launcher_command(launcher, np) if launcher else []
        command = [*before, *launched, sys.executable, "-m", module, *map(str, options)]
        with open(folder / "output", "ab") as output:
            self.process = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                            stdout=output, stderr=output)

    def said(self):
        return (self.folder / "output").read_text()

    def noted(self):
        """What was noted, as text, and when."""
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        return [(what, float(seconds)) for what, seconds in map(str.split, lines)]

    def environments(self):
        """Of the processes that are left, by their ids."""
        ours, found = f"NOTES={self.notes}".encode(), {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if ours in words:
                    found[int(pid)] = dict(word.decode().split("=", 1) for word in words if b"=" in word)
        return found

    def alive(self):
        return sorted(self.environments())

    def of_rank(self, rank):
        """The Python process of a rank: of those with its number, the last that was started."""
        return max(pid for pid, words in self.environments().items()
                   if str(rank) in (words.get(name) for name in RANKS))

    def wait(self, ready, limit):
        until = time.monotonic() + limit
        while not ready():
            assert time.monotonic() < until, f"after {limit} s: {self.alive()}\n{self.said()}"
            time.sleep(0.05)

    def wait_for_its_end(self, limit):
        """Until no process is left; gives the exit code."""
        self.wait(lambda: self.process.poll() is not None and not self.alive(), limit)
        return self.process.returncode

    def end(self):
        for pid in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def logged_steps(self, name="w.h5"):
        """Rows of /steps in the job's log, which must be whole; 0 without one."""
        if not (self.folder / name).exists():
            return 0
        log = check(self.folder / name)
        assert log.steps["step"].tolist() == list(range(1, log.steps.rows + 1))
        self.wait(lambda: log.writer() is None, 10)             # who ends has files open, and no environment
        return log.steps.rows

    def promised_steps(self, moment):
        """The steps that must be in the log, whatever happened at that moment."""
        return max((int(what) for what, seconds in self.noted()
                    if what != "end" and seconds < moment - PROMISED_SECONDS - SLACK_SECONDS), default=0)


def reason(job):
    """The line by which a job says why it ended."""
    found = re.findall(r"(?:Error|INCOMPLETE|INFEASIBLE|COMPLETE): .*", job.said())
    return found[-1] if found else ""


def held(folder):
    """The newest checkpoint is whole."""
    assert read(listed(folder)[0][1])["progress"]["steps"] >= 0
