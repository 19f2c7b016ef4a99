"""Real jobs under torchrun that lose a worker or the agent, are signalled or diverge: none hangs, none is repeated."""
import json
import os
import re
import signal
import subprocess
import time

import pytest

from hvdscale.log.reader import read_log
from tests.minislurm import free_ports
from tests.parallel.launched_job import Job, held
from tests.parallel.test_resume import Runs, assert_same_run

STALL, STARTED, GONE = 8, 120, 30
ENDLESS = ["--steps", 10**6, "--eval-every", 10**6, "--target", "none", "--log-file", "w.h5", "--checkpoint", "ck",
           "--set", f"stall_seconds={STALL}"]
HANDLED = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"


@pytest.fixture
def restarting(monkeypatch):
    """torchrun starts the workers once more."""
    monkeypatch.setenv("PET_MAX_RESTARTS", "1")


@pytest.fixture
def started(tmp_path):
    """Start an endless job, with more of torchrun's variables; gives it after some steps."""
    jobs = []

    def started(**environment):
        jobs.append(Job(tmp_path / "job", "digits/fc", *ENDLESS, launcher="torchrun", **environment))
        jobs[0].wait(jobs[0].noted, STARTED)
        return jobs[0]
    yield started
    for job in jobs:
        job.end()


@pytest.mark.slow
def test_a_killed_worker_is_started_again_and_the_job_resumes_to_the_last_bit(restarting, tmp_path):
    runs = Runs(tmp_path)
    code, output = runs.start(2, tmp_path / "killed", kill="SIGKILL 1 step 16", launcher="torchrun")
    assert code == 0 and re.search(r"resumes +from ck/step-14.pt", output), output
    assert_same_run(tmp_path / "killed", runs.whole(2))


@pytest.mark.slow
@pytest.mark.parametrize("starts", [
    [("SIGTERM 0 loading 0", [], "COMPLETE: budget of 60 steps spent")],    # torchrun sends it when it loses a worker
    [("SIGTERM 1 step 16", [], "need not start it again. INCOMPLETE: stopped by a signal after step 18"),
     ("", [], "resumes        from ck/step-18.pt")],
    [("", ["--lr", "1e30"], "need not start it again. INFEASIBLE: diverged: the loss is nan at step 3")]])
def test_a_run_is_repeated_by_torchrun_unless_it_had_ended_for_good(restarting, tmp_path, starts):
    for kill, options, said in starts:
        code, output = Runs(tmp_path).start(2, tmp_path / "job", *options, kill=kill, launcher="torchrun")
        assert code == 0 and said in output, output


@pytest.mark.parametrize("number, variables, code", [
    (signal.SIGUSR1, {}, -signal.SIGUSR1), *(pytest.param(*one, marks=pytest.mark.slow) for one in (
        (signal.SIGKILL, {}, -signal.SIGKILL), (signal.SIGTERM, {}, 1), (signal.SIGINT, {}, 1),
        (signal.SIGUSR1, {"PET_SIGNALS_TO_HANDLE": HANDLED}, 1)))])
def test_workers_whose_agent_is_signalled_or_dead_keep_a_checkpoint_and_end(started, number, variables, code):
    job = started(**variables)
    os.kill(job.process.pid, number)
    assert job.wait_for_its_end(STALL if code < 0 else STALL + GONE) == code, job.said()
    assert json.loads((job.folder / "ck/outcome").read_text())["exit_code"] == 75 and job.logged_steps()
    held(job.folder / "ck")


@pytest.mark.slow
def test_a_job_that_loses_a_node_keeps_its_global_batch(tmp_path):
    """Two agents on one host stand for two nodes."""
    agent = ["torchrun", "--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "3", "--rdzv-backend", "c10d",
             "--rdzv-endpoint", f"localhost:{free_ports(1)[0]}", "--rdzv-id", "j", "--rdzv-conf", "last_call_timeout=5",
             "--no-python"]
    job = ["digits/fc", *ENDLESS, "--steps", 5000, "--resume", "auto", "--set", "checkpoint_every=100"]
    nodes = [Job(tmp_path, *job, launcher=None, before=agent)]
    try:
        time.sleep(2)                   # the first holds the store by which they meet
        nodes.append(Job(tmp_path, *job, launcher=None, before=agent))
        nodes[0].wait((tmp_path / "ck/step-200.pt").exists, STARTED)
        worker = subprocess.run(["pgrep", "-P", str(nodes[1].process.pid)], capture_output=True, text=True).stdout
        for pid in (nodes[1].process.pid, int(worker)):
            os.kill(pid, signal.SIGKILL)
        assert nodes[0].process.wait(STARTED) == 0, nodes[0].said()
    finally:
        for node in nodes:
            node.end()
    with read_log(tmp_path / "w.h5") as log:
        assert log.restarts["workers"].tolist() == [2, 1] and log.trials["global_batch"].tolist() == [32]
        assert log.steps["step"].tolist() == list(range(1, 5001))
