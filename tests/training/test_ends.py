"""How a run ends: whatever cuts its end short or keeps it from being written, the same command completes it."""
import os
import re
import sys

import numpy as np
import pytest
import torch

from hvdscale.errors import CheckpointError, LogError
from hvdscale.log.reader import read_log
from hvdscale.log.schema import Status
from hvdscale.training import checkpoint
from hvdscale.training.checkpoint import listed
from hvdscale.training.loop import Loop
from hvdscale.training.run_log import RunLog
from tests.factories.runs import assert_same_columns, assert_same_state, state_of
from tests.training.test_checkpoint import outcome, raise_no_space, steps

AVERAGED = dict(average="tail", average_start_steps=2)


def model(path):
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize("how, every", [
    ("target", 40), *(pytest.param(*one, marks=pytest.mark.slow) for one in (
        ("steps", 40), ("steps", 1), ("target", 1)))])
def test_a_run_killed_at_a_write_of_its_end_is_completed_by_the_same_command(how, every, run):
    """Log and weights to the last bit, the model, the outcome, and no file too many."""
    kills = int(run(sys.executable, "-m", "tests.training.killed_at_end", how, every, timeout=3600).stdout.split()[-1])
    assert kills >= 80 // every


@pytest.mark.parametrize("keys, following", [
    (dict(checkpoint=None, resume=None, checkpoint_every=None),
     "with --overwrite restarts at step 0, .* 14 steps .* --checkpoint .*"),
    (dict(resume=None), "with --resume auto resumes at step 14"), ({}, "resumes at step 14")])
def test_a_run_that_a_signal_stopped_says_whether_it_can_be_resumed_and_how(train, keys, following):
    assert train(signal_at=12, **keys) == 75
    assert re.fullmatch(f"next: the same command {following}", train.said().splitlines()[-1])


class Halving(torch.optim.SGD):
    """Evaluates half of its weights."""

    halved = False

    def eval(self):
        self.scale(0.5)

    def train(self):
        self.scale(2.0)

    @torch.no_grad()
    def scale(self, factor):
        if self.halved == (factor > 1):
            for group in self.param_groups:
                torch._foreach_mul_(group["params"], factor)
            self.halved = not self.halved


@pytest.mark.parametrize("keys", [dict(), AVERAGED, dict(optimizer=f"{__name__}:Halving")])
def test_a_run_that_had_ended_writes_the_model_that_is_asked_for_later(train, capsys, keys):
    assert train(checkpoint="whole", log="whole.h5", save_model="whole.pt", **keys) == 0
    assert train(**keys) == 0
    assert train(save_model="m.pt", **keys) == 0
    assert f"\nmodel: m.pt{', the averaged weights' * ('average' in keys)}\n" in capsys.readouterr().out
    assert_same_state(model("m.pt"), model("whole.pt"))
    assert_same_columns("w.h5", "whole.h5")


def test_a_model_that_cannot_be_written_is_written_by_the_same_command(train, monkeypatch):
    def refuse(*given):
        raise CheckpointError("m.pt: cannot be written: No space left on device")
    train(checkpoint="whole", log="whole.h5", save_model="whole.pt")
    with monkeypatch.context() as patched:
        patched.setattr("hvdscale.training.prepare.save_weights", refuse)
        for _ in range(2):
            with pytest.raises(CheckpointError, match="m.pt: cannot be written"):
                train(save_model="m.pt")
            assert (outcome()["status"], outcome()["exit_code"]) == ("ERROR", 1)
    assert train(save_model="m.pt") == 0 and outcome()["status"] == "COMPLETE"
    assert_same_state(model("m.pt"), model("whole.pt"))


@pytest.mark.usefixtures("whole")
def test_a_last_checkpoint_that_cannot_be_written_is_an_error(train, monkeypatch):
    write = checkpoint.write

    def refuse_the_last(path, state):
        if path.endswith("step-30.pt"):
            raise CheckpointError(f"{path}: cannot be written: No space left on device")
        write(path, state)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "write", refuse_the_last)
        with pytest.raises(CheckpointError, match="step-30.pt: cannot be written.*last checkpoint is missing"):
            train()
    assert (outcome()["status"], outcome()["exit_code"], steps()) == ("COMPLETE", 1, [28, 21])
    assert train() == 0 and outcome()["exit_code"] == 0
    assert "had ended at step 30, but without a checkpoint of its last weights; the steps after 28 are" in train.said()
    assert_same_columns("w.h5", "whole.h5")
    assert_same_state(state_of("ck"), state_of("whole"))


@pytest.mark.usefixtures("whole")
@pytest.mark.parametrize("lost", [1, 2])
def test_a_log_that_says_complete_without_the_last_weights_is_gone_on_with(train, lost):
    """As a killed run of an earlier version left it."""
    train(keep_checkpoints=9)
    for _, path in listed("ck")[:lost]:
        os.unlink(path)
    assert train(keep_checkpoints=9, save_model="m.pt") == 0
    assert_same_columns("w.h5", "whole.h5")
    assert_same_state(state_of("ck"), state_of("whole"))
    assert os.path.exists("m.pt")


def test_the_log_says_complete_once_the_last_weights_are_saved(train, monkeypatch):
    seen = []
    end = RunLog.end
    monkeypatch.setattr(RunLog, "end", lambda log, *given: (seen.append(steps()[0]), end(log, *given)))
    train()
    assert seen == [30] and outcome()["status"] == "COMPLETE"


@pytest.mark.usefixtures("whole")
def test_a_log_that_cannot_be_merged_is_merged_by_the_same_command(train, monkeypatch):
    train(signal_at=12)
    with monkeypatch.context() as patched:
        patched.setattr("hvdscale.log.compact_file.SafeFile.sync", raise_no_space)
        with pytest.raises(LogError, match="w.h5: .*No space left"):
            train(save_model="m.pt")
    assert os.path.exists("w.1.h5") and outcome()["exit_code"] == 1
    assert train(save_model="m.pt") == 0
    assert sorted(os.listdir()) == ["ck", "m.pt", "w.h5", "whole", "whole.h5"]
    assert_same_columns("w.h5", "whole.h5")


def test_seconds_that_are_spent_are_spent_after_a_kill_too(train, monkeypatch):
    class Killed(Exception):
        pass

    def killed(*_):
        raise Killed
    with monkeypatch.context() as patched:
        patched.setattr(RunLog, "end", killed)
        with pytest.raises(Killed):
            train(steps=None, seconds=0.2)
    last = steps()[0]
    assert train(steps=None, seconds=0.2) == 0
    with read_log("w.h5") as log:
        assert (log.trials["status"][0], log.steps["step"][-1], steps()[0]) == (Status.COMPLETE, last, last)
        assert log.evaluations["step"].tolist()[-1] == last and np.isfinite(log.evaluations["test/error"][-1])


@pytest.mark.usefixtures("whole")
def test_a_target_that_is_met_ends_the_run_after_a_kill_too(train, monkeypatch):
    with read_log("whole.h5") as log:
        target = f"train/cross_entropy<={log.evaluations['train/cross_entropy'][2]}"
    train(checkpoint="short", log="short.h5", target=target, eval_splits="val")

    def end(loop, stop):
        loop.checkpoints.save(loop.done, loop.take_step)
        raise RuntimeError("killed")
    with monkeypatch.context() as patched:
        patched.setattr(Loop, "end", end)
        with pytest.raises(RuntimeError, match="killed"):
            train(target=target, eval_splits="val")
    assert train(target=target, eval_splits="val") == 0
    assert steps()[0] == steps("short")[0] == 20
    assert_same_columns("w.h5", "short.h5")
