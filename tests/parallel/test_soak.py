"""A study for half an hour, whose jobs, launchers and ranks are killed at random moments."""
import os
import random
import signal
import time
from collections import Counter

import pytest

from tests.parallel.launched_job import Job
from tests.parallel.sweeps import assert_same_sweep, sweep_file

RUNS = " running"       # what is printed of a study once one of its trials has begun
CLEARED = 60            # seconds that what is left of a job may take to its end
SLOW = "model_args = {slow = 0.15}\ncheckpoint_every_seconds = 2"   # 25 s a trial on any machine


def tune(folder, sweep, out, ranks):
    """Workers in groups of two, which take the sweep's trials in turn."""
    return Job(folder, sweep, "--out", out, np=ranks, module="hvdscale.cli.tune")


def wait(job, ready):
    """Until it is ready, or the job has ended."""
    while job.process.poll() is None and not ready():
        time.sleep(0.1)


def kill(job, what, draw):
    """Kill all of a job, or a part of it, after which the rest must end by itself."""
    if what == "job":
        return job.end()
    ranks = [pid for pid in job.alive() if pid != job.process.pid]
    os.kill(job.process.pid if what == "launcher" else draw.choice(ranks), signal.SIGKILL)
    job.wait_for_its_end(CLEARED)


def under_kills(folder, sweep, out, draw):
    """Start the study again and again until it has ended; how often which part was killed."""
    killed = Counter()
    while True:
        job = tune(folder, sweep, out, draw.choice([2, 4]))
        before = job.said().count(RUNS)
        wait(job, lambda: job.said().count(RUNS) > before)      # ten jobs killed at its start would give a trial up
        end = time.monotonic() + draw.uniform(2, 40)
        wait(job, lambda: time.monotonic() > end)
        if job.process.poll() is not None:
            assert job.wait_for_its_end(CLEARED) == 0, job.said()
            return killed
        what = draw.choice(["job", "launcher", "rank", "rank"])
        kill(job, what, draw)
        killed[what] += 1


@pytest.mark.slow
def test_a_study_under_kills_for_half_an_hour_is_the_undisturbed_one(tmp_path):
    soak(tmp_path, trials=88)


def soak(folder, trials):
    sweep = sweep_file(folder, settings=SLOW, high="0.4", trials=trials, repeats=2, workers_per_trial=2)
    undisturbed = tune(folder / "undisturbed", sweep, folder / "whole", ranks=4)
    began = time.monotonic()
    killed = under_kills(folder / "killed", sweep, folder / "out", random.Random(1))
    minutes = (time.monotonic() - began) / 60
    assert killed.keys() == {"job", "launcher", "rank"}, killed
    assert undisturbed.wait_for_its_end(3600) == 0, undisturbed.said()
    assert_same_sweep(folder / "out", folder / "whole", ("restarts/*",))
    print(f"{minutes:.0f} min, killed: {dict(killed)}")
    return minutes, killed
