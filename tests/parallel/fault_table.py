"""Prints what becomes of real jobs when something goes wrong: fault, times tried, outcome, seconds until the end.

    python -m tests.parallel.fault_table [TIMES [FAULT ...]]     from the repository's root; 10 times each by default

Jobs of two workers, digits/fc, with a checkpoint every second; the moment is drawn. Whatever happens, the job ends
with its reason or goes on, within the stall time; no process is left; the log is whole, and has all rows but those of
the last second; the newest checkpoint can be gone on from. What breaks that is printed as BROKEN. Those of the nodes,
under Slurm, stand in node_faults; they take Slurm, and root.
"""
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
from functools import partial
from pathlib import Path

from hvdscale.errors import HvdscaleError
from hvdscale.training.checkpoint import listed
from tests.conftest import small_disk
from tests.parallel import node_faults
from tests.parallel.launched_job import Job, held, reason
from tests.factories.runs import assert_same_columns, assert_same_state, state_of

STALL, GONE, ENDLESS = 8, 30, 10**6     # seconds, seconds that a launcher may take to clear up, steps
STARTED = 120                           # seconds that a job may take to its first step, on a busy machine
KEPT = ["--target", "none", "--log-file", "w.h5", "--checkpoint", "ck", "--set", "checkpoint_every_seconds=1",
        "--set", f"stall_seconds={STALL}"]
KILLED = r"signal 9|SIGKILL|a worker was lost|exit code -9|exit code 137"
FAULTS = {}


def fault(said, launchers=("mpirun",)):
    """Names a function of (folder, draw, launcher), which gives its outcome in words, for each launcher."""
    def name(function):
        for launcher in launchers:
            FAULTS[f"{said}, {launcher}"] = partial(function, launcher=launcher)
        return function
    return name


@contextlib.contextmanager
def running(folder, *options, workload="digits/fc", kept=KEPT, **how):
    """A job, none of whose processes outlives this."""
    job = Job(folder, workload, *kept, *options, **how)
    try:
        yield job
    finally:
        job.end()


@contextlib.contextmanager
def started(folder, draw, *options, steps=ENDLESS, **how):
    """A job that has taken steps for up to two seconds."""
    with running(folder, "--steps", steps, "--eval-every", steps, *options, **how) as job:
        job.wait(job.noted, STARTED)
        time.sleep(draw.uniform(0, 2))
        yield job


def ended(job, since, said, within=STALL + GONE, log="w.h5", checkpoints="ck"):
    """Holds the job to its promises; gives the outcome, and the seconds that its end took."""
    code = job.wait_for_its_end(within)
    took = time.monotonic() - since
    assert code != 0 and re.search(said, job.said()), f"exit {code}\n{job.said()}"
    assert job.logged_steps(log) >= job.promised_steps(since), "rows are lost"
    held(job.folder / checkpoints)
    return "ended with its reason", took


def whole(folder, *options, steps):
    """An undisturbed job, to compare with."""
    with running(folder, "--steps", steps, "--eval-every", steps, *options) as job:
        assert job.wait_for_its_end(STARTED) == 0, job.said()
    return job


def kill(which, number=signal.SIGKILL):
    def harm(folder, draw, launcher):
        with started(folder, draw, launcher=launcher) as job:
            since = time.monotonic()
            os.kill(job.process.pid if which == "launcher" else job.of_rank(which), number)
            if which == "launcher":
                return "ended", ended(job, since, "")[1]
            return ended(job, since, f"has waited {STALL} s" if number == signal.SIGSTOP else KILLED)
    return harm


fault("kill -9 of rank 0", ("mpirun", "gloo", "torchrun"))(kill(0))
fault("kill -9 of rank 1", ("mpirun", "gloo", "torchrun"))(kill(1))
fault("kill -9 of the launcher", ("mpirun", "gloo", "torchrun"))(kill("launcher"))
fault("a stopped rank 0", ("mpirun", "gloo", "torchrun"))(kill(0, signal.SIGSTOP))
fault("a stopped rank 1", ("mpirun", "gloo", "torchrun"))(kill(1, signal.SIGSTOP))


@fault("kill -9 of the launcher", ("horovodrun",))
def killed_horovodrun(folder, draw, launcher):
    """Its mpirun is left, and the job with it."""
    with started(folder, draw, steps=8000, launcher=launcher) as job:
        since = time.monotonic()
        os.kill(job.process.pid, signal.SIGKILL)
        job.wait_for_its_end(STARTED)
        assert job.logged_steps() == 8000, job.said()
        held(folder / "ck")
        return "went on to its end under its mpirun", time.monotonic() - since


def fill(disk):
    """Takes all the room that is left."""
    with contextlib.suppress(OSError), open(disk / "filled", "wb") as file:
        while True:
            file.write(bytes(4096))
            file.flush()


@fault("disk full while logging")
def full_log(folder, draw, launcher):
    with (small_disk(folder / "disk", "4m") as disk,
          started(folder, draw, "--log-file", "disk/w.h5", launcher=launcher) as job):
        since = time.monotonic()
        fill(disk)
        return ended(job, since, "No space left", within=60, log="disk/w.h5")


@fault("disk full while checkpointing")
def full_checkpoint(folder, draw, launcher):
    with (small_disk(folder / "disk", "4m") as disk,
          started(folder, draw, "--checkpoint", "disk/ck", steps=8000, launcher=launcher) as job):
        since = time.monotonic()
        fill(disk)
        job.wait(lambda: "cannot be written" in job.said(), 60)
        os.unlink(disk / "filled")
        code = job.wait_for_its_end(STARTED)
        assert code == 0 and job.logged_steps() == 8000, job.said()
        held(disk / "ck")
        return "went on, and said so", time.monotonic() - since


@fault("a folder that is read-only")
def read_only(folder, draw, launcher):
    with small_disk(folder / "disk", "1m") as disk:
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        where = draw.choice([("--log-file", "disk/w.h5"), ("--checkpoint", "disk/ck")])
        since = time.monotonic()
        with running(folder, "--steps", 50, *where, launcher=launcher) as job:
            assert job.wait_for_its_end(STARTED) == 1 and "Read-only file system" in reason(job), job.said()
        assert not job.noted()
        return "ended with its reason", time.monotonic() - since


@fault("a folder that becomes read-only")
def becomes_read_only(folder, draw, launcher):
    """That of the checkpoints, under a mount: it holds a file that is open for writing."""
    with started(folder, draw, steps=3000, launcher=launcher) as job:
        since, place = time.monotonic(), folder / "ck"
        subprocess.run(["mount", "--bind", place, place], check=True)
        try:
            subprocess.run(["mount", "-o", "remount,bind,ro", place], check=True)
            job.wait(lambda: "cannot be written" in job.said(), STARTED)
            code = job.wait_for_its_end(STARTED)
        finally:
            subprocess.run(["umount", "-l", place], check=True)
        assert code == 0 and "Traceback" not in job.said() and job.logged_steps() == 3000, job.said()
        held(place)
        return "went on, and said so", time.monotonic() - since


@fault("a log that others read")
def read_while_written(folder, draw, launcher):
    program = ("import sys, time, h5py\nfrom hvdscale.log.reader import read_log\nwhile True:\n"
               "    read_log('w.h5').steps['loss']\n    time.sleep(0.01)\n"
               "    with open('w.h5', 'rb') as file: file.read()\n"
               "    try: h5py.File('w.h5').close()\n    except OSError: pass\n")
    with started(folder, draw, steps=3000, launcher=launcher) as job:
        since = time.monotonic()
        reader = subprocess.Popen([sys.executable, "-c", program], cwd=folder)
        try:
            code = job.wait_for_its_end(STARTED)
            assert code == 0 and job.logged_steps() == 3000 and reader.poll() is None, job.said()
        finally:
            reader.kill()
            reader.wait()
        return "went on", time.monotonic() - since


@fault("two jobs given one log")
def two_jobs(folder, draw, launcher):
    with started(folder, draw, launcher=launcher) as first:
        since = time.monotonic()
        with running(folder / "second", "--log-file", "../w.h5", draw.choice(["--overwrite", "--seed=1"]),
                     kept=()) as second:
            assert second.wait_for_its_end(STARTED) == 1 and "w.h5" in reason(second), second.said()
        took, taken = time.monotonic() - since, len(first.noted())
        time.sleep(3)                       # rows of the last second may be lost in its end
        first.end()
        assert first.logged_steps() > taken, first.said()
        return "the second ended with its reason, the first went on", took


@fault("a checkpoint cut off")
def cut_checkpoint(folder, draw, launcher):
    undisturbed = whole(folder / "whole", steps=6000)
    with started(folder, draw, steps=6000, launcher=launcher) as job:
        job.wait(lambda: len(listed(folder / "ck")) > 1, STARTED)
        os.kill(job.of_rank(0), signal.SIGKILL)
        job.wait_for_its_end(STALL + GONE)
    newest = Path(listed(folder / "ck")[0][1])
    os.truncate(newest, draw.randrange(newest.stat().st_size))
    since = time.monotonic()
    with running(folder, "--steps", 6000, "--eval-every", 6000, "--resume", "auto") as again:
        assert again.wait_for_its_end(STARTED) == 0 and f"{newest.name}: is damaged" in again.said(), again.said()
    assert_same_columns(folder / "w.h5", undisturbed.folder / "w.h5")
    assert_same_state(state_of(folder / "ck"), state_of(undisturbed.folder / "ck"))
    return "named; went on from the one before, exactly", time.monotonic() - since


@fault("a clock that jumps")
def jumping_clock(folder, draw, launcher):
    since = time.monotonic()
    with running(folder, "--steps", 3000, "--eval-every", 100, launcher=launcher,
                 CLOCK=f"{draw.uniform(-1, 1) * 86400:.0f}") as job:
        assert job.wait_for_its_end(STARTED) == 0 and job.logged_steps() == 3000, job.said()
    held(folder / "ck")
    return "went on", time.monotonic() - since


@fault("locks refused by the file system")
def refused_locks(folder, draw, launcher):
    since = time.monotonic()
    with running(folder, "--steps", 100, launcher=launcher, FLOCK="refused") as job:
        assert job.wait_for_its_end(STARTED) == 1 and "take_over=true" in reason(job), job.said()
    with running(folder, "--steps", 100, "--set", "take_over=true", launcher=launcher, FLOCK="refused") as again:
        assert again.wait_for_its_end(STARTED) == 0 and again.logged_steps() == 100, again.said()
    return "ended with its reason; went on with take_over", time.monotonic() - since


@fault("a data file that disappears")
def lost_data(folder, draw, launcher):
    data = folder / "data"
    made_photographs(data)
    with running(folder, "--data-dir", "data", "--data-arg", "side=32", "--model-arg", "width=0.1", "--local-batch", 4,
                 "--steps", ENDLESS, "--eval-every", 0, workload="imagenet/resnet_50", launcher=launcher) as job:
        job.wait(job.noted, STARTED)
        since = time.monotonic()
        lost = draw.choice(sorted(data.glob("train/*")))        # all of a class: some are set apart, and not read
        shutil.rmtree(lost)
        return ended(job, since, re.escape(lost.name), within=60)


def made_photographs(data):
    """Two classes of eight pictures for training, and two each for validation."""
    import numpy as np
    from PIL import Image
    random_pixels = np.random.default_rng(0)
    for split, count in (("train", 8), ("val", 2)):
        for synset in ("n00000001", "n00000002"):
            (data / split / synset).mkdir(parents=True)
            for number in range(count):
                pixels = random_pixels.integers(0, 255, (40, 40, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(data / split / synset / f"{synset}_{number}.JPEG")


def tried(name, times, seed=0):
    """Outcomes of a fault and how often they came, and the longest seconds from the fault to the end."""
    outcomes, longest = Counter(), 0.0
    for number in range(times):
        folder = Path(tempfile.mkdtemp(prefix="fault"))
        try:
            outcome, took = FAULTS[name](folder / "job", random.Random(f"{name} {seed} {number}"))
            longest = max(longest, took)
        except (AssertionError, HvdscaleError, IndexError, OSError, ValueError) as error:
            outcome = "BROKEN: " + str(error).strip()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        outcomes[outcome] += 1
    return outcomes, longest


def main(times, chosen):
    of_nodes = [] if node_faults.lacking() else node_faults.FAULTS
    faults = {**dict.fromkeys(FAULTS, tried), **dict.fromkeys(of_nodes, node_faults.tried)}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))       # no disk and no cluster outlives this
    for name in chosen or faults:
        outcomes, longest = faults[name](name, times)
        for outcome, count in outcomes.items():
            print(f"{name:36} {count:3} of {times}  {outcome}; {longest:.1f} s at most", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 10, sys.argv[2:])
