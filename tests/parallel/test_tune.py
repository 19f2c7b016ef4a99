"""hvdscale-tune in processes: any number of them, killed or not, finds the same."""
import os
import random
import signal
import subprocess
import time

import pytest

from hvdscale.log.reader import read_log
from hvdscale.plan.settings import read_toml
from hvdscale.system.cores import usable_cores
from tests.conftest import launcher_command
from tests.parallel.launched_job import until
from tests.parallel.test_cores import executions
from tests.parallel.sweeps import (assert_same_sweep, carry_out, exit_code, kill_after, search_in, start, sweep_file,
                                   tune)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The sweep as one process carries it out, and what that printed."""
    folder = tmp_path_factory.mktemp("alone")
    code, printed = carry_out(sweep_file(folder, high="0.4", repeats=1), folder / "out")
    assert code == 0
    return folder / "out", printed


@pytest.mark.parametrize("ranks, workers, launcher", [
    (4, 2, "torchrun"), *(pytest.param(*few, marks=pytest.mark.slow) for few in (
        (2, 1, "mpirun"), (4, 1, "mpirun"), (2, 2, "mpirun"), (2, 1, "torchrun"), (4, 2, "mpirun")))])
def test_any_number_of_ranks_and_groups_finds_the_same(tmp_path, run, alone, ranks, workers, launcher):
    sweep = sweep_file(tmp_path, high="0.4", repeats=1, workers_per_trial=workers)
    tune(run, sweep, tmp_path / "out", ranks=ranks, launcher=launcher)
    assert set(executions(tmp_path / "out")) == {(workers, ranks, len(usable_cores()))}
    split = ("trials/workers", "trials/local_batch", "restarts/workers") if workers > 1 else ()
    assert_same_sweep(tmp_path / "out", alone[0], split, 1e-9 if workers > 1 else 0)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_torchrun_goes_on_with_a_sweep_that_lost_a_worker_or_was_stopped(tmp_path, monkeypatch, number):
    """A killed worker is started again with all others; what a signal to torchrun stopped, the same command resumes."""
    sweep = sweep_file(tmp_path, settings="model_args = {slow = 0.004}", high="0.4", repeats=1)
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert exit_code(start(sweep, whole)) == 0
    monkeypatch.setenv("PET_MAX_RESTARTS", "1")
    job = start(sweep, out, launched=launcher_command("torchrun", 2))
    until(lambda: len(list(out.glob("trials/*/*.claim-1"))) > 2)
    workers = subprocess.run(["pgrep", "-P", str(job.pid)], capture_output=True, text=True, check=True).stdout.split()
    os.kill(job.pid if number == signal.SIGTERM else int(workers[1]), number)
    printed = job.communicate(timeout=300)[0]
    assert job.returncode == (1 if number == signal.SIGTERM else 0), printed
    if job.returncode:
        assert exit_code(start(sweep, out, launched=launcher_command("torchrun", 2))) == 0
    assert_same_sweep(out, whole, ("restarts/*",))


def test_the_printed_lines_tell_plan_progress_and_what_was_found(alone):
    out, printed = alone
    assert "2 studies, each of 6 feasible trials" in printed
    assert "sweep: 14 of 14 trials done" in printed
    assert "sgd, B = 16: 6 feasible" in printed and "next: hvdscale-report" in printed


@pytest.mark.slow
@pytest.mark.parametrize("kills, ranks", [(1, 1), (20, 1), (10, 4)])
def test_killed_and_started_again_it_finds_the_same(tmp_path, kills, ranks):
    """Alone, or by mpirun in groups of two, whose ranks may still live when it is started again."""
    chosen, launched = random.Random(kills), launcher_command("mpirun", ranks) if ranks > 1 else ()
    sweep = sweep_file(tmp_path, settings="model_args = {slow = 0.004}", high="0.4", repeats=1,
                       workers_per_trial=min(ranks, 2))
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert exit_code(start(sweep, whole, launched=launched)) == 0
    for _ in range(kills):
        kill_after(start(sweep, out, launched=launched), chosen.uniform(2.5, 8))
    last = start(sweep, out, launched=launched)
    printed = last.communicate()[0]
    assert last.returncode == 0, printed
    assert_same_sweep(out, whole, ("restarts/*",))


def test_tuned_toml_gives_the_trial_again(tmp_path, here, alone):
    out, _ = alone
    tuned = read_toml(out / "tuned.toml")
    evidence = tuned["evidence"]["64"]
    words = ["hvdscale-train", "tests.parallel.quadratic:workload", "--lr-rule", "tuned", "--metaparameters",
             out / "tuned.toml"]
    done = here(*words, "--global-batch", 64, "--steps", 48, "--eval-every", 2, "--target", "val/loss<0.001", "--seed",
                evidence["trial"], "--log", tmp_path / "again.h5")
    assert f"met at step {evidence['steps']}" in done.stdout
    done = here(*words, "--global-batch", 32, check=False)
    assert done.returncode == 2 and "tuned batches: 16, 64" in done.stderr


@pytest.mark.slow
def test_a_trial_that_kills_its_process_is_given_up_alone(tmp_path, run):
    space = "[space.'model_args.width']\nvalues = [1, 2]\n"
    sweep = sweep_file(tmp_path, batch_sizes="[64]", trials=3)
    sweep.write_text(sweep.read_text() + space)
    done = tune(run, sweep, tmp_path / "out", ranks=2, KILL_AT_WIDTH="2")
    search = search_in(tmp_path / "out", "sgd-b64")
    assert len(search.feasible) == 3 and len(search.draws) > 3
    assert "was killed by SIGKILL (out of memory?); another takes its place" in done.stderr + done.stdout
    assert "failed: " in done.stdout and "was killed, time after time" in done.stdout


@pytest.mark.slow
def test_a_signal_stops_the_trial_and_the_command_goes_on_with_it(tmp_path):
    sweep = sweep_file(tmp_path, batch_sizes="[64]", settings="model_args = {slow = 0.03}", high="0.4")
    whole, out = tmp_path / "whole", tmp_path / "out"
    other, first = start(sweep, whole), start(sweep, out)
    until(lambda: list(out.glob("trials/*/0.json")))
    time.sleep(0.5)                                             # in the steps of the second
    first.send_signal(signal.SIGTERM)
    printed = first.communicate()[0]
    assert first.returncode == 75 and "the same command resumes" in printed, printed
    assert not list(out.glob("owners/*")) and list(out.glob("trials/*/*.released-1"))
    assert list(out.glob("checkpoints/sgd-b64-*/step-*.pt"))
    assert [exit_code(start(sweep, out)), exit_code(other)] == [0, 0]
    assert_same_sweep(out, whole, ("restarts/*",))
    assert not list(out.glob("checkpoints/*"))
    with read_log(out / "sgd-b64.h5") as log:
        assert sum(log.restarts["first_step"] > 0) == 1
