"""Real jobs whose terminal is closed, or whose launcher is signalled or killed: they keep a checkpoint and end."""
import json
import os
import re
import signal
import sys
import time

import pytest

from tests.parallel.launched_job import Job, held
from tests.parallel.sweeps import sweep_file
from tests.parallel.test_ports import assert_no_worker_listens

STALL, STARTED, GONE = 30, 180, 120
ENDLESS = ["digits/fc", "--steps", 10**6, "--eval-every", 10**6, "--target", "none", "--log-file", "w.h5",
           "--set", f"stall_seconds={STALL}"]
ON_TERMINAL = [sys.executable, "-c", "import pty, sys; pty.spawn(sys.argv[1:])"]
SLOW = pytest.mark.slow


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Start a job and wait until it is ``ready``, by default until it takes steps; none of its processes is left.

    Where mpirun leaves time for a checkpoint, which it spends twice and whole, that is enough on a busy machine.
    """
    monkeypatch.setenv("OMPI_MCA_odls_base_sigkill_timeout", "6")
    jobs = []

    def started(*options, ready=Job.noted, **given):
        jobs.append(Job(tmp_path / "job", *(options or (*ENDLESS, "--checkpoint", "ck")), **given))
        jobs[0].wait(lambda: ready(jobs[0]), STARTED)
        return jobs[0]
    yield started
    for job in jobs:
        job.end()


def assert_stopped(job):
    """No process is left, and the job can resume where it stopped."""
    job.wait_for_its_end(GONE)
    outcome = json.loads((job.folder / "ck/outcome").read_text())
    assert outcome["exit_code"] == 75 and "stopped by a signal" in outcome["reason"], job.said()
    held(job.folder / "ck")
    assert f"step-{job.logged_steps()}.pt" in os.listdir(job.folder / "ck")


@pytest.mark.parametrize("launcher", [None, *(pytest.param(each, marks=SLOW) for each in (
    "mpirun", "horovodrun", "gloo", "torchrun"))])
def test_a_job_whose_terminal_is_closed_keeps_a_checkpoint_and_ends(started, launcher):
    job = started(launcher=launcher, before=ON_TERMINAL)
    job.process.kill()
    assert_stopped(job)


@pytest.mark.parametrize("launcher, number", [
    ("mpirun", signal.SIGHUP), *(pytest.param(*each, marks=SLOW) for each in (
        (None, signal.SIGHUP), ("horovodrun", signal.SIGHUP), ("gloo", signal.SIGHUP), ("torchrun", signal.SIGHUP),
        ("horovodrun", signal.SIGKILL), ("horovodrun", signal.SIGTERM), ("gloo", signal.SIGKILL)))])
def test_a_job_whose_launcher_is_signalled_keeps_a_checkpoint_and_ends(started, launcher, number):
    job = started(launcher=launcher)
    if launcher in ("mpirun", "gloo"):
        assert_no_worker_listens(job)
    os.kill(job.process.pid, number)
    assert_stopped(job)


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--set", "transport=torch"]])
def test_a_job_whose_mpirun_is_killed_ends_with_a_log_that_can_be_read(started, options):
    job = started(*ENDLESS, *options, launcher="mpirun")
    moment = time.monotonic()
    job.process.kill()
    job.wait_for_its_end(GONE)
    assert job.logged_steps() >= job.promised_steps(moment)


@pytest.mark.slow
def test_a_job_under_nohup_goes_on_when_its_terminal_is_closed(started):
    job = started(launcher=None, before=["nohup"])
    steps = len(job.noted())
    os.kill(job.process.pid, signal.SIGHUP)
    job.wait(lambda: len(job.noted()) > steps + 5, STARTED)
    assert job.process.poll() is None


@pytest.mark.slow
def test_a_job_whose_output_is_read_no_more_keeps_a_checkpoint_and_ends(started):
    """As where ssh without a terminal is cut off."""
    job = started(launcher=None, before=["sh", "-c", '"$@" | head -n 1', "sh"])
    assert_stopped(job)


@pytest.mark.slow
@pytest.mark.parametrize("launcher, number, workers", [
    ("mpirun", signal.SIGKILL, 1), ("horovodrun", signal.SIGKILL, 1), ("gloo", signal.SIGKILL, 1),
    ("torchrun", signal.SIGKILL, 1), ("horovodrun", signal.SIGHUP, 1), ("mpirun", signal.SIGHUP, 1),
    (None, signal.SIGHUP, 1), ("mpirun", signal.SIGKILL, 2), ("torchrun", signal.SIGKILL, 2)])
def test_a_sweep_whose_launcher_is_killed_ends(started, tmp_path, launcher, number, workers):
    """A trial takes longer than the time that mpirun waits before it passes SIGHUP on as SIGTERM."""
    sweep = sweep_file(tmp_path, settings="model_args = {slow = 0.5}", high="0.4", workers_per_trial=workers)
    job = started(sweep, "--out", "out", launcher=launcher, module="hvdscale.cli.tune",
                  ready=lambda job: list(job.folder.glob("out/trials/*/*.claim-1")))
    os.kill(job.process.pid, number)
    job.wait_for_its_end(GONE)
    assert not list(job.folder.glob("out/*.h5"))            # it was cut short


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun", "horovodrun-gloo", "torchrun"])
def test_the_workers_of_a_series_end_with_it(started, launcher):
    job = started("digits/fc", "--steps", 10**6, "--eval-every", 10**6, "--target", "none", "--workers", 2,
                  "--launcher", launcher, "--out", "out", launcher=None, module="hvdscale.cli.scale",
                  ready=lambda job: re.search("^  step", job.said(), re.M))
    job.process.kill()
    job.wait_for_its_end(GONE)


@pytest.mark.slow
def test_the_processes_of_a_doctor_end_with_it(started, tmp_path):
    """Those that simulate other ranks, here in a load that takes forever."""
    (tmp_path / "job").mkdir()
    (tmp_path / "job/endless.py").write_text(
        "import os, time\n"
        "from tests.factories.jobs import Tokens\n\n\n"
        "class Endless(Tokens):\n"
        "    def load(self, data_dir):\n"
        "        if 'OMPI_COMM_WORLD_RANK' in os.environ:\n"
        "            open(f'loads-{os.getpid()}', 'w').close()\n"
        "            time.sleep(1000)\n"
        "        return super().load(data_dir)\n\n\n"
        "workload = Endless()\n")
    job = started("endless:workload", launcher=None, module="hvdscale.cli.doctor",
                  ready=lambda job: len(list(job.folder.glob("loads-*"))) == 2)
    job.process.kill()
    job.wait_for_its_end(GONE)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun", "gloo", "torchrun"])
def test_the_processes_of_a_doctor_of_a_script_end_with_its_launcher(started, tmp_path, launcher):
    (tmp_path / "endless.py").write_text(
        f"import os, time\nopen(f'{tmp_path}/runs-{{os.getpid()}}', 'w').close()\ntime.sleep(1000)\n")
    job = started("script", tmp_path / "endless.py", launcher=launcher, module="hvdscale.cli.doctor",
                  TMPDIR=str(tmp_path), ready=lambda job: len(list(tmp_path.glob("runs-*"))) == 2)
    job.process.kill()
    job.wait_for_its_end(GONE)
