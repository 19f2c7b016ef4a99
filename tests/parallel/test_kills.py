"""A real training job with one of its processes killed at a random moment: all end, and the log keeps its promise."""
import contextlib
import os
import random
import signal
import time

import pytest

from tests.parallel.launched_job import Job

# a moment lies at most so many seconds after this: the job's start, its first step, its last
MOMENTS = {"start": 4.0, "steps": 4.0, "end": 0.3}
STEPS = {"start": 10**6, "steps": 10**6, "end": 60}
STARTED_SECONDS = 240           # by which a job has taken its few steps, on a busy machine
GONE_SECONDS = 60               # after which no process of the job is left: half the stall time, on a busy machine


def kill_one_process(job, moment, draw):
    """Kill mpirun or a rank, and wait until none is left; gives the second of the kill."""
    if moment == "steps":
        job.wait(job.noted, STARTED_SECONDS)
    if moment == "end":
        job.wait(lambda: job.noted()[-1:] and job.noted()[-1][0] == "end", STARTED_SECONDS)
    time.sleep(draw.uniform(0, MOMENTS[moment]))
    killed = time.monotonic()
    with contextlib.suppress(ProcessLookupError, IndexError):       # a job that has ended
        os.kill(draw.choice(job.alive()), signal.SIGKILL)
    code = job.wait_for_its_end(GONE_SECONDS)
    assert code != 0 or moment == "end"
    return killed


@pytest.mark.parametrize("moments", [["steps"], pytest.param(20 * list(MOMENTS), marks=pytest.mark.slow)],
                         ids=["once", "60 times"])
def test_a_job_that_loses_a_process_ends_with_its_log_but_for_a_second(moments, tmp_path):
    pytest.importorskip("sklearn")
    for number, moment in enumerate(moments):
        job = Job(tmp_path / str(number), "digits/cnn", "--log", "w.h5", "--steps", STEPS[moment],
                  "--eval-every", STEPS[moment])                    # an evaluation would flush the log
        try:
            killed = kill_one_process(job, moment, random.Random(f"job{number}"))
        finally:
            job.end()
        assert job.logged_steps() >= job.promised_steps(killed)
