"""A log of a loop of one's own: hvdscale.record."""
import subprocess
import sys
import warnings

import numpy as np
import pytest

import hvdscale
from hvdscale.errors import LogError, UsageError
from hvdscale.log.check import check
from hvdscale.log.reader import read_log
from hvdscale.log.schema import UNKNOWN_SEED, Status
from tests.conftest import but_slow, command_environment, launcher_command
from tests.log.test_writing import Clock
from tests.wording import refusals

ABOUT = dict(dataset="digits", model="mine", optimizer="adamw", global_batch=32, lr=0.1, metrics={"val/error": "min"})


def record(path, **more):
    return hvdscale.record(path, **{**ABOUT, **more})


def evaluate(run, error, name="val/error"):
    with run.evaluation() as seen:
        seen[name] = error


def test_steps_and_evaluations_are_read_as_they_were_recorded(tmp_path):
    clock = Clock()
    with record(tmp_path / "w.h5", target="val/error<0.1", seed=3, metaparameters={"momentum": 0.9},
                clock=clock) as run:
        for step in range(1, 5):
            clock.seconds += 2.0
            run.step(1 / step, lr=0.1 / step)
            if step % 2 == 0:
                with run.evaluation() as seen:
                    clock.seconds += 100.0
                    seen["val/error"] = 0.2 / step
        assert run.met and run.steps == 4
    with check(tmp_path / "w.h5") as log:
        assert log.steps["loss"].tolist() == [1, 1 / 2, 1 / 3, 1 / 4] and log.steps["step"].tolist() == [1, 2, 3, 4]
        assert log.steps["lr"].tolist() == [0.1, 0.05, 0.1 / 3, 0.025]
        assert log.steps["step_seconds"].tolist() == [2, 2, 2, 2]
        assert log.evaluations["train_seconds"].tolist() == [4, 8]
        assert log.evaluations["examples"].tolist() == [64, 128]
        assert log.evaluations["val/error"].tolist() == [0.1, 0.05]
        assert log.evaluations.specs["val/error"].better == "smaller"
        trial = {name: log.trials[name][0] for name in log.trials}
        assert (trial["status"], trial["stop_reason"]) == (Status.COMPLETE, "target val/error<0.1 met")
        assert (trial["seed"], trial["metaparameters/momentum"]) == (3, 0.9)


def test_a_loop_needs_no_torch_and_any_process_may_be_killed(tmp_path):
    script = tmp_path / "loop.py"
    script.write_text("import os, sys, hvdscale\n"
                      f"run = hvdscale.record('w.h5', **{ABOUT})\n"
                      "for _ in range(3):\n    run.step(0.5)\n"
                      "with run.evaluation() as seen:\n    seen['val/error'] = 0.3\n"
                      "run.step(0.5)\nassert 'torch' not in sys.modules\nos.kill(os.getpid(), 9)\n")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, env=command_environment())
    assert done.returncode == -9
    with check(tmp_path / "w.h5") as log:
        assert log.steps.rows == 3 and log.evaluations["val/error"].tolist() == [0.3]
        assert log.trials["status"].tolist() == [Status.RUNNING] and log.trials["seed"].tolist() == [UNKNOWN_SEED]


def test_a_restart_continues_the_log_and_its_time_where_its_checkpoint_was(tmp_path):
    clock = Clock()
    run = record(tmp_path / "w.h5", first_step=0, clock=clock)
    for step in range(1, 8):
        clock.seconds += 1
        run.step(step)
        if step == 4:
            evaluate(run, 0.4)
    run.flush()
    run._writer.abandon()                   # as a killed process leaves it
    with record(tmp_path / "w.h5", first_step=6, clock=clock) as run:
        clock.seconds += 3
        run.step(70)
        evaluate(run, 0.3)
    with check(tmp_path / "w.h5") as log:
        assert log.steps["loss"].tolist() == [1, 2, 3, 4, 5, 6, 70]
        assert log.evaluations["train_seconds"].tolist() == [4, 9]
        assert log.restarts["first_step"].tolist() == [0, 6]
        assert log.restarts["previous_end"][1].startswith("interrupted")
    with pytest.raises(LogError, match="its global_batch is 32, not 64"):
        record(tmp_path / "w.h5", first_step=6, global_batch=64)
    with pytest.raises(LogError, match="exists already"):
        record(tmp_path / "w.h5")


@pytest.mark.parametrize("loss, budget, raised, status, reason", [
    (0.5, 0, None, Status.COMPLETE, "the loop ended"), (0.5, 2, None, Status.INCOMPLETE, "before its 2 steps"),
    (np.nan, 0, None, Status.INFEASIBLE, "the loss is nan at step 1"),
    (0.5, 0, ValueError("no more data"), Status.INCOMPLETE, "ValueError: no more data")])
def test_the_log_says_how_the_loop_ended(loss, budget, raised, status, reason, tmp_path):
    try:
        with record(tmp_path / "w.h5", budget_steps=budget) as run:
            run.step(loss)
            if raised:
                raise raised
    except ValueError as error:
        assert error is raised
    with read_log(tmp_path / "w.h5") as log:
        assert log.trials["status"].tolist() == [status] and reason in log.trials["stop_reason"][0]


class Loss:
    """A loss on a device: says when it is read."""

    def __init__(self, value, read):
        self.value, self.read = value, read

    def detach(self):
        return self

    def __float__(self):
        self.read.append(self.value)
        return float(self.value)


def test_a_loss_on_a_device_is_not_read_within_its_step(tmp_path):
    clock, read = Clock(), []
    with record(tmp_path / "w.h5", clock=clock) as run:
        for step in range(1, 11):
            clock.seconds += 0.3
            run.step(Loss(step, read))
            assert step not in read
        assert read == [1, 2, 3, 4, 5, 6, 7]
        evaluate(run, 0.3)
        assert read[-1] == 10
    assert read_log(tmp_path / "w.h5").steps["loss"].tolist() == list(range(1, 11))


def test_losses_of_torch_are_read_whatever_their_types(tmp_path):
    torch = pytest.importorskip("torch")
    kinds = [torch.tensor(0.25), torch.tensor([0.25]), torch.tensor(0.25, dtype=torch.bfloat16), 0.25, np.float32(0.25),
             torch.tensor(0.25, requires_grad=True)]
    for name, losses in {"mixed": kinds, "alike": kinds[:2]}.items():
        with record(tmp_path / f"{name}.h5") as run:
            for loss in losses:
                run.step(loss)
        assert read_log(tmp_path / f"{name}.h5").steps["loss"].tolist() == [0.25] * len(losses)


def test_metrics_and_target_that_mean_nothing_are_refused_before_there_is_a_log(golden, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    golden("record", refusals("record", UsageError, globals()))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name, value", [
    *[(name, value) for name in ("global_batch", "workers", "accumulation") for value in (
        0, -4, 32.5, "8", 2**70, True)],
    *[(name, value) for name in ("budget_steps", "train_examples", "first_step", "seed") for value in (-1, 2**70, "x")],
    ("global_batch", 2**60), ("global_batch", None), ("lr", float("nan")), ("lr", float("inf")),
    ("lr", "0.1"), ("lr", None), ("dataset", None), ("model", 3), ("optimizer", b"sgd"), ("metrics", {1: "min"}),
    ("metrics", {"val/error": ["min"]}), ("target", 0.1), ("metaparameters", {"a/b": 1.0}), ("metaparameters", {"": 1}),
    ("metaparameters", {"momentum": "x"}), ("metaparameters", [1]), ("flush_seconds", "x")])
def test_what_check_would_refuse_is_refused_at_the_call_before_there_is_a_file(name, value, tmp_path):
    """Nor is anything locked: the corrected call is carried out."""
    with pytest.raises(UsageError, match=name.removeprefix("train_").rstrip("s")):
        record(tmp_path / "w.h5", **{name: value})
    assert not list(tmp_path.iterdir())
    with record(tmp_path / "w.h5") as run:
        run.step(0.5)
    check(tmp_path / "w.h5").close()


def test_numbers_of_numpy_and_torch_are_taken_for_what_they_are(tmp_path):
    with record(tmp_path / "w.h5", global_batch=np.int32(8), lr=np.float32(0.5), seed=np.int64(3)) as run:
        run.step(np.float64(0.5), lr=np.float32(0.25))
    with check(tmp_path / "w.h5") as log:
        assert (log.trials["global_batch"][0], log.trials["seed"][0], log.steps["lr"][0]) == (8, 3, 0.25)


@pytest.mark.parametrize("act", [lambda run: run.step("x"), lambda run: run.step(np.ones(2)), lambda run: run.step(
    0.5, lr=float("nan")), lambda run: evaluate(run, "x"), lambda run: run.step(Unreadable()) or run.flush()])
def test_an_error_within_a_recording_lets_go_of_the_lock(act, tmp_path):
    with pytest.raises((UsageError, RuntimeError)):
        with record(tmp_path / "w.h5") as run:
            act(run)
    record(tmp_path / "w.h5", overwrite=True).close()


class Unreadable:
    def detach(self):
        return self

    def __float__(self):
        raise RuntimeError("device-side assert")


def test_a_log_that_this_process_writes_already_says_so(tmp_path, worded):
    with record(tmp_path / "w.h5"), worded.error(LogError):
        record(tmp_path / "w.h5", overwrite=True)


def test_an_undeclared_metric_is_refused_with_the_nearest_and_a_step_is_evaluated_once(tmp_path):
    with record(tmp_path / "w.h5") as run:
        run.step(0.5)
        with pytest.raises(UsageError, match="'val/eror' was not declared: did you mean val/error"):
            evaluate(run, 0.3, "val/eror")
        evaluate(run, 0.3)
        with pytest.raises(UsageError, match="step 1 is evaluated twice"):
            evaluate(run, 0.3)


def test_a_log_that_cannot_be_written_is_an_error_at_the_end_and_not_of_the_loop(tmp_path, monkeypatch):
    with pytest.raises(LogError, match="No space left"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with record(tmp_path / "w.h5") as run:
            def fail(*_, **__):
                raise LogError(f"{tmp_path}: No space left on device")
            monkeypatch.setattr(run._writer, "flush", fail)
            for _ in range(3):
                run.step(0.5)
                run.flush()
    assert run.steps == 3


@pytest.mark.parametrize("launcher", but_slow(["mpirun", "torchrun"], ["torchrun"]))
def test_the_first_of_several_workers_writes_the_log(launcher, tmp_path):
    script = tmp_path / "loop.py"
    script.write_text("import hvdscale\n"
                      f"with hvdscale.record('w.h5', **{ABOUT}) as run:\n"
                      "    run.step(0.5)\n"
                      "    with run.evaluation() as seen:\n        seen['val/error'] = 0.3\n")
    subprocess.run([*launcher_command(launcher, 2), sys.executable, script], cwd=tmp_path, check=True, timeout=120,
                   env=command_environment(), stdin=subprocess.DEVNULL)
    with check(tmp_path / "w.h5") as log:
        assert log.trials["workers"].tolist() == [2] and log.trials["local_batch"].tolist() == [16]
        assert log.steps.rows == 1


@pytest.mark.parametrize("name, rank", [("RANK", "1"), ("RANK", "0")])
def test_rank_and_size_of_a_launcher_that_sets_no_more_are_found(name, rank, tmp_path, monkeypatch):
    monkeypatch.setenv(name, rank)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with record(tmp_path / "w.h5") as run:
        run.step(0.5)
    assert (tmp_path / "w.h5").exists() == (rank == "0")
