"""A job of two workers ends with its reason, or goes on, whatever happens to it: its log keeps all rows but those of
the last second, and its newest checkpoint is whole. What a full disk, a damaged checkpoint or refused locks do to one
worker is in tests/training and tests/log."""
import contextlib
import os
import random
import re
import shutil
import signal
import time

import numpy as np
import pytest

from tests.conftest import small_disk
from tests.parallel.launched_job import Job, held, reason

SLOW = pytest.mark.slow
STALL, GONE, ENDLESS = 8, 30, 10**6     # seconds, seconds that a launcher may take to clear up, steps
STARTED = 120                           # seconds that a job may take to its first step, on a busy machine
KEPT = ["--target", "none", "--log-file", "w.h5", "--checkpoint", "ck", "--set", "checkpoint_every_seconds=1",
        "--set", f"stall_seconds={STALL}"]
KILLED = r"signal 9|SIGKILL|a worker was lost|exit code -9|exit code 137"


@contextlib.contextmanager
def running(folder, *options, workload="digits/fc", kept=KEPT, **how):
    """A job, none of whose processes outlives this."""
    job = Job(folder, workload, *kept, *options, **how)
    try:
        yield job
    finally:
        job.end()


@contextlib.contextmanager
def started(folder, *options, **how):
    """An endless job that has taken steps for up to two seconds, and the time then."""
    with running(folder, "--steps", ENDLESS, "--eval-every", ENDLESS, *options, **how) as job:
        job.wait(job.noted, STARTED)
        time.sleep(random.uniform(0, 2))
        yield job, time.monotonic()


def assert_ended(job, since, said, within=STALL + GONE, log="w.h5"):
    """The job ends with its reason, and has kept what it promises."""
    code = job.wait_for_its_end(within)
    assert code != 0 and re.search(said, job.said()), f"exit {code}\n{job.said()}"
    assert job.logged_steps(log) >= job.promised_steps(since), "rows are lost"
    held(job.folder / "ck")


@pytest.mark.parametrize("moment, seconds", [("steps", 4), *(
    pytest.param(*one, marks=SLOW) for one in 5 * [("start", 4), ("steps", 4), ("end", 0.3)])])
def test_a_job_that_loses_any_of_its_processes_ends_with_its_log(tmp_path, moment, seconds):
    """mpirun, too, at most so many seconds after the job's start, its first step, or its last."""
    steps = 60 if moment == "end" else ENDLESS              # an evaluation would flush the log
    with running(tmp_path / "job", "--log-file", "w.h5", "--steps", steps, "--eval-every", steps, kept=()) as job:
        if moment == "steps":
            job.wait(job.noted, STARTED)
        if moment == "end":
            job.wait(lambda: job.noted()[-1:] and job.noted()[-1][0] == "end", STARTED)
        time.sleep(random.uniform(0, seconds))
        killed = time.monotonic()
        with contextlib.suppress(ProcessLookupError, IndexError):       # a job that has ended
            os.kill(random.choice(job.alive()), signal.SIGKILL)
        assert job.wait_for_its_end(2 * GONE) != 0 or moment == "end"
        assert job.logged_steps() >= job.promised_steps(killed)


@SLOW
@pytest.mark.parametrize("number, rank, launcher, said", [
    (signal.SIGKILL, 0, "gloo", KILLED), (signal.SIGKILL, 1, "torchrun", KILLED),
    (signal.SIGSTOP, 0, "mpirun", f"has waited {STALL} s"), (signal.SIGSTOP, 1, "torchrun", f"has waited {STALL} s")])
def test_a_job_whose_rank_is_killed_or_stopped_ends_with_the_reason(tmp_path, number, rank, launcher, said):
    with started(tmp_path / "job", launcher=launcher) as (job, since):
        os.kill(job.of_rank(rank), number)
        assert_ended(job, since, said)


@SLOW
def test_a_disk_that_fills_up_under_the_log_ends_all_ranks(tmp_path):
    with (small_disk(tmp_path / "job/disk", "4m") as disk,
          started(tmp_path / "job", "--log-file", "disk/w.h5") as (job, since)):
        with contextlib.suppress(OSError), open(disk / "filled", "wb") as file:
            while True:
                file.write(bytes(4096))
                file.flush()
        assert_ended(job, since, "No space left", within=60, log="disk/w.h5")


@SLOW
@pytest.mark.parametrize("option", ["--overwrite", "--seed=1"])
def test_a_second_job_on_one_log_ends_and_the_first_goes_on(tmp_path, option):
    with started(tmp_path / "job") as (first, _):
        with running(tmp_path / "job/second", "--log-file", "../w.h5", option, kept=()) as second:
            assert second.wait_for_its_end(STARTED) == 1 and "w.h5" in reason(second), second.said()
        taken = int(first.noted()[-1][0])
        time.sleep(3)                       # rows of the last second may be lost in its end
        first.end()
        assert first.logged_steps() > taken, first.said()


@SLOW
@pytest.mark.parametrize("jump", [-40000, 40000])
def test_a_clock_that_jumps_costs_no_row(tmp_path, jump):
    with running(tmp_path / "job", "--steps", 3000, "--eval-every", 100, CLOCK=str(jump)) as job:
        assert job.wait_for_its_end(STARTED) == 0 and job.logged_steps() == 3000, job.said()
    held(tmp_path / "job/ck")


@SLOW
def test_a_data_file_that_disappears_is_named_by_all_ranks(tmp_path):
    from PIL import Image
    pixels, data = np.random.default_rng(0), tmp_path / "job/data"
    for split, count in (("train", 8), ("val", 2)):
        for synset in ("n00000001", "n00000002"):
            (data / split / synset).mkdir(parents=True)
            for number in range(count):
                Image.fromarray(pixels.integers(0, 255, (40, 40, 3), dtype=np.uint8)).save(
                    data / split / synset / f"{synset}_{number}.JPEG")
    with started(tmp_path / "job", "--data-dir", "data", "--data-arg", "side=32", "--model-arg", "width=0.1",
                 "--local-batch", 4, workload="imagenet/resnet_50") as (job, since):
        shutil.rmtree(data / "train/n00000002")         # all of a class: some are set apart, and not read
        assert_ended(job, since, "n00000002", within=60)
