"""Checkpoints and what a run goes on from: one worker, from the command's settings to its exit code."""
import contextlib
import errno
import json
import os
import pickle
import random
import re
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hvdscale.data.splits import Batch, Split
from hvdscale.errors import CheckpointError, HvdscaleError, LogError, PlanError
from hvdscale.log.reader import read_log
from hvdscale.log.schema import INTERRUPTED, Status
from hvdscale.log.writer import LogWriter
from hvdscale.system.files import clear_leavings, temporary_name
from hvdscale.training.checkpoint import CheckpointFolder, listed, read, write
from hvdscale.training.snapshot import RunState, capture, mapped, restore
from tests.conftest import but_slow, small_disk
from tests.parallel import toy
from tests.factories.runs import (WORKLOAD, Signalled, assert_same_columns, assert_same_state, columns_of, state_of)


def steps(folder="ck"):
    return [step for step, _ in listed(folder)]


def outcome(folder="ck"):
    with open(os.path.join(folder, "outcome")) as file:
        return json.load(file)


def assert_goes_on_exactly(train, signals, **keys):
    """Signals at these steps of one run, each followed by a resume, change nothing of what the run makes."""
    if not os.path.exists("whole"):
        assert train(**keys, checkpoint="whole", log="whole.h5") == 0
    for at in signals:
        assert train(signal_at=at, **keys) == 75
    assert train(**keys) == 0
    assert_same_columns("w.h5", "whole.h5")
    assert_same_state(state_of("ck"), state_of("whole"))


@pytest.mark.usefixtures("whole")
@pytest.mark.parametrize("signals", but_slow([[0], [8], [9], [3, 5, 11, 25]], [[0], [9]]))
def test_a_run_stopped_at_any_step_goes_on_to_the_last_bit(train, signals):
    """A signal at step s is voted on in the next one: 8 ends the run on the grid of evaluations, unevaluated."""
    assert_goes_on_exactly(train, signals)
    with read_log("w.h5") as log:
        assert len(log.segments) == 1 and log.restarts.rows == len(signals) + 1
        first = log.restarts["first_step"].tolist()
        ends = [f"stopped by a signal after step {step}" for step in first[1:]]
        assert log.restarts["previous_end"].tolist() == ["", *ends]


@pytest.mark.parametrize("keys", [
    dict(optimizer="adamw", precision="fp64", last_batch="short"), dict(lr_in_velocity=True, decay="cosine"),
    dict(optimizer="lars", accumulate=2, local_batch=4), dict(precision="fp16"),
    dict(average="ema", average_half_life=60.0, optimizer="muon"),
    dict(model_args={"norm": "torch", "dropout": 0.3, "drop": "torch"}),
    *(pytest.param(keys, marks=pytest.mark.slow) for keys in (
        dict(optimizer="lamb", clip_norm=0.1), dict(eval_every=0), dict(average="tail", average_start_steps=5)))])
def test_whatever_a_run_is_made_of_goes_on_to_the_last_bit(train, keys):
    assert_goes_on_exactly(train, [12], **keys)


class Drawing(Split):
    """A split whose batches have noise of the process's own generators."""

    def take(self, visits):
        inputs, labels = super().take(visits)
        return Batch(inputs + np.random.rand() + torch.rand(1) + random.random(), labels)


def load_drawing(data_dir):
    data = toy.load()
    np.random.seed(5), torch.manual_seed(5), random.seed(5)
    return replace(data, train=Drawing(data.train.inputs, data.train.labels))


def test_what_a_users_code_draws_from_the_process_goes_on_too(train):
    assert_goes_on_exactly(train, [4, 15], workload=replace(WORKLOAD, load=load_drawing), model_args={})


def test_seconds_count_on_from_the_checkpoint(train):
    train(signal_at=12)
    spent = read(listed("ck")[0][1])["progress"]["seconds"]
    train()
    with read_log("w.h5") as log:
        seconds = dict(zip(log.evaluations["step"], log.evaluations["train_seconds"]))
        assert seconds[10] <= spent <= seconds[20] <= seconds[30]
        np.testing.assert_allclose(seconds[30], log.steps["step_seconds"].sum(), rtol=0.5)


def damage_cut(data, share):
    return data[:int(len(data) * share)]


def damage_flip(data, share):
    at = int(len(data) * share)
    return data[:at] + bytes(byte ^ 255 for byte in data[at:at + 100]) + data[at + 100:]      # more than a gap


@pytest.mark.usefixtures("whole")
@pytest.mark.parametrize("damage, share", [
    (damage_cut, 0.3), (damage_flip, 0.5), *(pytest.param(*one, marks=pytest.mark.slow) for one in (
        (damage_cut, 0), (damage_cut, 0.999), (damage_flip, 0.2)))])
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_is_taken(train, damage, share):
    train(signal_at=18)
    assert steps() == [20, 14]
    with open("ck/step-20.pt", "rb") as file:
        data = file.read()
    with open("ck/step-20.pt", "wb") as file:
        file.write(damage(data, share))
    assert train() == 0
    said = train.said()
    assert "note: ck/step-20.pt: is damaged" in said and "from ck/step-14.pt, step 14" in said
    assert_same_columns("w.h5", "whole.h5")
    assert_same_state(state_of("ck"), state_of("whole"))


def test_where_no_checkpoint_is_whole_the_run_does_not_start_anew_by_itself(train):
    train(signal_at=18)
    for _, path in listed("ck"):
        open(path, "w").close()
    before = columns_of("w.h5")
    with pytest.raises(CheckpointError, match=r"(?s)step-20.pt: is damaged.*step-14.pt: is.*No checkpoint in ck is"):
        train()
    np.testing.assert_equal(columns_of("w.h5"), before)
    assert steps() == [20, 14]
    assert train(resume="none", overwrite=True) == 0
    assert steps() == [30, 28]


class Trap:
    def __reduce__(self):
        return os.mkdir, ("sprung",)


def test_nothing_in_a_checkpoint_is_executed(train, worded):
    train(signal_at=5)
    torch.save({"format": 1, "trap": Trap()}, "ck/step-9.pt")
    with worded.error(CheckpointError):
        train(resume="ck/step-9.pt")
    with open("ck/step-9.pt", "wb") as file:
        pickle.dump(Trap(), file)
    with worded.error(CheckpointError):
        train(resume="ck/step-9.pt")
    assert not os.path.exists("sprung")


@pytest.mark.parametrize("content, said", [
    ({"weight": torch.ones(3)}, "is a torch file, but not a checkpoint of hvdscale-train"),
    (torch.ones(3), "is a torch file, but not a checkpoint of hvdscale-train"),
    ({"format": 2}, "has checkpoint format 2, but this hvdscale reads 1")])
def test_another_file_of_torch_is_named(train, content, said):
    train(signal_at=5)
    torch.save(content, "other.pt")
    with pytest.raises(CheckpointError, match=f"other.pt: {said}"):
        train(resume="other.pt")


def test_a_checkpoint_that_is_not_there_is_named(train, worded):
    train(signal_at=5)
    with pytest.raises(CheckpointError, match="none.pt: cannot be read: No such file"):
        train(resume="none.pt")
    os.mkdir("empty")
    with worded.error(CheckpointError):
        train(resume="empty")


def test_the_newest_are_kept(train):
    assert train(keep_checkpoints=3, checkpoint_every=4) == 0
    assert steps() == [30, 28, 24]
    assert sorted(os.listdir("ck")) == ["outcome", "step-24.pt", "step-28.pt", "step-30.pt"]
    train(checkpoint="one", log="one.h5", keep_checkpoints=1)
    assert steps("one") == [30]


@pytest.mark.parametrize("keys, kept", [
    (dict(checkpoint_every=10), [30, 20, 10, 0]), (dict(checkpoint_every_epochs=1.5), [30, 20, 10, 0]),
    (dict(checkpoint_every_seconds=1e-9), list(range(30, -1, -1))), (dict(checkpoint_every_seconds=1e9), [30, 0]),
    (dict(), [30, 0])])
def test_checkpoints_come_by_steps_epochs_or_seconds_and_at_both_ends(train, keys, kept):
    train(**{"checkpoint_every": None, **keys}, keep_checkpoints=99)
    assert steps() == kept


def test_a_checkpoint_of_another_problem_is_an_error_that_names_the_fields(train, worded):
    train(signal_at=5)
    before = columns_of("w.h5")
    with worded.error(PlanError):
        train(seed=3)
    with pytest.raises(PlanError, match="model_args.norm was ours, is now not set; .*; weight_decay was 0.001, is now"):
        train(model_args={}, weight_decay=0.1)
    with pytest.raises(PlanError, match="global_batch was 8, is now 16; .*--global-batch 8 resumes it"):
        train(local_batch=16)
    np.testing.assert_equal(columns_of("w.h5"), before)
    assert train(global_batch=8) == 0


def test_a_resumed_run_keeps_the_ghost_batch_of_its_checkpoint(train):
    """Such as the one that was the default when it was written."""
    defaults = {name: value for name, value in toy.DEFAULTS.items() if name != "ghost_batch"}
    keys = dict(workload=replace(WORKLOAD, defaults=defaults), model_args={"norm": "torch"}, global_batch=40)
    train(checkpoint="whole", log="whole.h5", **keys, ghost_batch=32)
    train(signal_at=5, **keys, ghost_batch=32)
    assert train(dry_run=True, **keys) == 0 and train(**keys) == 0
    assert "ghost batch 32" in train.said()
    assert_same_columns("w.h5", "whole.h5")
    with pytest.raises(PlanError, match="ghost_batch was 32, is now 8"):
        train(**keys, ghost_batch=8)


def test_a_longer_budget_goes_on_as_if_it_had_been_the_budget_from_the_start(train, worded):
    train(checkpoint="whole", log="whole.h5", steps=50)
    assert train() == 0
    assert train(steps=50) == 0
    assert "note: budget_steps was 30, is now 50" in train.said()
    assert_same_columns("w.h5", "whole.h5")
    assert_same_state(state_of("ck"), state_of("whole"))
    with worded.error(PlanError):
        train(steps=20)


def test_a_decay_that_ends_with_the_budget_is_part_of_the_problem(train):
    train(signal_at=5, decay="linear")
    with pytest.raises(PlanError, match=r"decay_steps was 30, is now 50. .*--set decay_steps=30 keeps it"):
        train(decay="linear", steps=50)
    assert train(decay="linear", steps=50, decay_steps=30) == 0


def test_another_target_counts_at_once_and_the_last_evaluation_has_all_splits(train):
    train(eval_splits="val", keep_checkpoints=9)
    for name in ("step-28.pt", "step-30.pt"):
        os.unlink(f"ck/{name}")
    assert train(resume="ck/step-21.pt", eval_splits="val", steps=20 + 1, target="val/error<=1") == 0
    with read_log("w.h5") as log:
        assert log.evaluations["step"].tolist() == [0, 10, 20, 21]
        assert np.isfinite(log.evaluations["test/error"][-1])
        assert log.trials["stop_reason"][-1] == "target val/error<=1 met at step 21"


def test_the_user_may_go_back_to_an_older_checkpoint(train):
    train(keep_checkpoints=9)
    assert train(resume="ck/step-14.pt", steps=31) == 0
    assert "from ck/step-14.pt, step 14" in train.said()
    assert steps() == [31, 28] and columns_of("w.h5")["steps/step"].tolist() == list(range(1, 32))


def test_a_run_that_had_ended_is_left_as_it_is(train, capsys, worded):
    assert train() == 0
    with open("w.h5", "rb") as file:
        before = file.read()
    compact = temporary_name("w.h5").replace(f"-{os.getpid():x}-", "-7ffffff-")
    for left in (compact, "w.h5.lock"):             # by a process killed while it made the log compact
        open(left, "w").close()
    clear_leavings.cache_clear()                    # another process
    assert train() == 0
    worded(capsys.readouterr().out)
    with open("w.h5", "rb") as file:
        assert file.read() == before
    assert sorted(os.listdir(".")) == ["ck", "w.h5"]
    assert outcome()["exit_code"] == 0


def test_a_run_that_had_diverged_would_diverge_again_and_saves_no_model(train, capsys, worded):
    keys = dict(lr=1e30, lr_rule="none", warmup_steps=0, eval_every=0, model_args={})
    assert train(**keys) == 3
    assert steps() == [0] and outcome()["status"] == "INFEASIBLE"
    with open("w.h5", "rb") as file:
        before = file.read()
    assert train(save_model="m.pt", **keys) == 3
    worded(capsys.readouterr().out)
    assert not os.path.exists("m.pt")
    assert outcome()["exit_code"] == 3
    with open("w.h5", "rb") as file:
        assert file.read() == before


def test_the_outcome_is_there_only_once_a_run_has_ended(train, monkeypatch):
    train(signal_at=5)
    assert outcome() == {"status": "INCOMPLETE", "reason": "stopped by a signal after step 7", "exit_code": 75,
                         "job": None, "checkpoint": "ck/step-7.pt", "log": "w.h5", "failed_checkpoints": []}
    seen = []
    monkeypatch.setattr(Signalled, "warm_up", lambda *_: seen.append(os.path.exists("ck/outcome")))
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    train()
    assert seen == [False] and (outcome()["status"], outcome()["job"]) == ("COMPLETE", "17")


def test_an_error_before_training_is_the_outcome(train, monkeypatch, worded):
    train()
    with worded.error(PlanError) as raised:
        train(seed=9)
    assert outcome() == {"status": "ERROR", "reason": str(raised.value), "exit_code": 2, "job": None,
                         "checkpoint": "ck/step-30.pt", "log": "w.h5"}
    os.rename("w.h5", "moved.h5")
    with pytest.raises(LogError) as raised:
        train()
    assert outcome()["reason"] == str(raised.value) and outcome()["exit_code"] == 1
    os.rename("moved.h5", "w.h5")

    def fail(*_, **options):
        raise LogError("planted")
    with monkeypatch.context() as patched:
        patched.setattr("hvdscale.training.outputs.open_run_log", fail)
        with pytest.raises(LogError, match="planted"):
            train(steps=31)
    assert (outcome()["status"], outcome()["reason"]) == ("ERROR", "planted")
    assert train() == 0 and outcome()["status"] == "COMPLETE"


def test_the_metrics_of_an_earlier_step_are_told_with_it(train):
    train(signal_at=12)
    assert re.search("^INCOMPLETE: stopped by a signal after step 14\n  at step 10: test/cross_entropy [0-9.]+, ",
                     train.said(), re.M)
    train(signal_at=14, eval_splits="val")              # what counts now has not been measured
    assert re.search("^INCOMPLETE: stopped by a signal after step 16\n(?!  at step)", train.said(), re.M)
    train()
    assert re.search("^COMPLETE: .*\n  test/cross_entropy [0-9.]+, ", train.said(), re.M)


def test_an_outcome_that_cannot_be_written_does_not_hide_the_error(train, monkeypatch):
    train(signal_at=5)
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", raise_no_space)
        with pytest.raises(PlanError, match="seed was 0, is now 9"):
            train(seed=9)
    with CheckpointFolder("gone") as folder:
        pass
    os.rmdir("gone")
    open("gone", "w").close()
    folder.note_error(PlanError("planted"))


def test_the_outcome_names_files_whose_names_are_no_text(tmp_path):
    with CheckpointFolder(str(tmp_path / "ck")) as folder:
        folder.note_error(LogError("\udcff.h5: gone"))
        assert outcome(folder.path)["reason"] == "\udcff.h5: gone"


def test_an_error_in_a_step_is_the_outcome(train, monkeypatch):
    def fail(*_):
        raise RuntimeError("planted")
    monkeypatch.setattr(Signalled, "__call__", fail)
    with pytest.raises(RuntimeError):
        train()
    assert (outcome()["status"], outcome()["exit_code"], outcome()["reason"]) == (
        "INCOMPLETE", 1, "RuntimeError: planted")


def test_a_folder_of_another_run_is_not_taken_or_emptied_unasked(train, worded):
    train(signal_at=5)
    with worded.error(CheckpointError):
        train(resume="none", log="other.h5")
    train(checkpoint="other", log="other.h5", signal_at=12)
    with worded.error(CheckpointError):
        train(resume="other", log="other.h5")
    assert steps() == [7, 0] and steps("other") == [14, 7]
    assert train(resume="none", log="third.h5", overwrite=True) == 0
    assert steps() == [30, 28]


def test_a_folder_has_one_run_at_a_time(train, worded):
    with CheckpointFolder("ck"), worded.error(CheckpointError):
        train()
    assert train() == 0


def test_a_folder_that_cannot_be_made_is_an_error_before_the_log(train, worded):
    open("file", "w").close()
    with worded.error(CheckpointError):
        train(checkpoint="file/ck")
    assert not os.path.exists("w.h5")


def test_without_its_log_a_checkpoint_is_not_gone_on_from_unasked(train):
    train(signal_at=12)
    shutil.copytree(".", "/".join([os.getcwd(), "copy"]))
    os.unlink("w.h5")
    with pytest.raises(LogError, match="w.h5.*start a new one at step 14 with --overwrite"):
        train()
    assert train(log="other.h5", checkpoint="x", signal_at=3) == 75
    with pytest.raises(LogError, match="other.h5 is not the log of ck/step-14.pt, but of another run"):
        train(log="other.h5")
    assert train(overwrite=True) == 0
    assert "note: a new log starts at step 14" in train.said()
    with read_log("w.h5") as log:
        assert log.steps["step"].tolist() == list(range(15, 31)) and log.restarts["first_step"].tolist() == [14]


def test_the_log_is_found_where_it_was_without_being_named(train):
    train(signal_at=12)
    os.rename("w.h5", "moved.h5")
    assert train(log="moved.h5", signal_at=18) == 75
    os.rename("ck", "elsewhere")
    assert train(checkpoint="elsewhere", log=None) == 0
    assert columns_of("moved.h5")["steps/step"].tolist() == list(range(1, 31))


def test_a_checkpoint_does_not_say_what_is_written_over(train, tmp_path, worded):
    train(signal_at=12)
    (tmp_path / "precious").write_text("mine")
    state = read("ck/step-14.pt")
    write("stranger.pt", {**state, "log": {**state["log"], "path": str(tmp_path / "precious")}})
    with worded.error(LogError):
        train(resume="stranger.pt", checkpoint="new", log=None, overwrite=True)
    assert (tmp_path / "precious").read_text() == "mine"


def test_files_of_others_in_the_folder_and_behind_links_in_it_stay(train, tmp_path, worded):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "ck").mkdir()
    (tmp_path / "ck/notes.tmp").write_text("mine")
    (tmp_path / "ck/outcome").symlink_to(tmp_path / "precious")
    with worded.error(CheckpointError):
        train(signal_at=5)
    (tmp_path / "ck/outcome").unlink()
    assert train(signal_at=5) == 75
    assert (tmp_path / "precious").read_text() == (tmp_path / "ck/notes.tmp").read_text() == "mine"
    assert steps() == [7, 0] and sorted(os.listdir("ck")) == ["notes.tmp", "outcome", "step-0.pt", "step-7.pt"]


def test_a_log_without_its_checkpoints_is_not_begun_anew_unasked(train, worded):
    train(signal_at=12)
    shutil.rmtree("ck")
    with worded.error(LogError):
        train()
    assert train(overwrite=True) == 0


@pytest.mark.parametrize("where, name, previous", [(Signalled, "warm_up", ["", "RuntimeError: planted"]),
                                                   (LogWriter, "append", [INTERRUPTED])])
def test_a_run_that_ended_before_its_first_checkpoint_begins_anew_in_its_log(where, name, previous, train, monkeypatch):
    def fail(one, *_, **__):
        if isinstance(one, LogWriter):
            one.abandon()
        raise RuntimeError("planted")
    with monkeypatch.context() as patched:
        patched.setattr(where, name, fail)
        with pytest.raises((RuntimeError, HvdscaleError), match="planted"):
            train()
    assert steps() == []
    assert train() == 0
    with read_log("w.h5") as log:
        assert log.restarts["first_step"].tolist() == [0] * len(previous)
        assert log.restarts["previous_end"].tolist() == previous
        assert log.steps["step"].tolist() == list(range(1, 31))


@pytest.mark.usefixtures("whole")
def test_overwrite_beside_resume_keeps_the_log_that_the_run_goes_on_with(train):
    train(signal_at=12, overwrite=True)
    assert train(overwrite=True) == 0
    assert_same_columns("w.h5", "whole.h5")


def test_a_dry_run_says_where_the_run_would_go_on_and_changes_nothing(train, worded):
    train(signal_at=12)
    before = {name: os.stat(f"ck/{name}").st_mtime_ns for name in os.listdir("ck")}
    assert train(dry_run=True) == 0
    said = train.said()
    assert "  resumes        from ck/step-14.pt, step 14\n" in said
    worded(said)
    assert {name: os.stat(f"ck/{name}").st_mtime_ns for name in os.listdir("ck")} == before


@pytest.fixture
def disk(tmp_path):
    """A file system of little room."""
    with small_disk(tmp_path / "disk", "1m") as disk:
        yield disk


def fill(disk, but):
    """Leave so many bytes of room."""
    room = os.statvfs(disk)
    with open(disk / "filled", "wb") as file:
        file.write(bytes(room.f_bavail * room.f_frsize - but))


@contextlib.contextmanager
def full_from_step_9(disk):
    """A disk that has no more room once a run takes that step; it has again afterwards."""
    take_step = Signalled.__call__

    def step(self, step, *given):
        if step == 9:
            fill(disk, 8192)
        return take_step(self, step, *given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Signalled, "__call__", step)
        yield
    os.unlink(disk / "filled")


@pytest.mark.usefixtures("whole")
def test_a_full_disk_does_not_end_the_run_and_the_old_checkpoints_stay(train, disk):
    with full_from_step_9(disk):
        folder = str(disk / "ck")
        assert train(checkpoint=folder, signal_at=18) == 75
        said = train.said()
        assert re.search(f"Warning: {folder}/step-14.pt: cannot be written: [^;]*; the newest "
                         f"checkpoint is {folder}/step-7.pt", said)
        assert "2 of the checkpoints could not be written; the newest is " in said
        assert sorted(name for name in os.listdir(folder) if name != "outcome") == ["step-0.pt", "step-7.pt"]
        assert steps(folder) == [7, 0] and read(f"{folder}/step-7.pt")["progress"]["steps"] == 7
    assert train(checkpoint=folder) == 0
    assert_same_columns("w.h5", "whole.h5")
    assert_same_state(state_of(folder), state_of("whole"))


def test_an_unwritable_first_checkpoint_ends_the_run_before_step_1(train, disk):
    fill(disk, 8192)
    with pytest.raises(CheckpointError, match="step-0.pt: cannot be written"):
        train(checkpoint=str(disk / "ck"))
    with read_log("w.h5") as log:
        assert log.steps.rows == 0 and log.trials["status"][0] == Status.INCOMPLETE


@pytest.mark.usefixtures("whole")
def test_a_log_that_cannot_be_written_costs_no_row(train, disk):
    """A checkpoint is tried all the same; --resume names it where its steps are worth more than the log's rows."""
    with full_from_step_9(disk):
        log = str(disk / "w.h5")
        with pytest.raises(LogError, match="No space left"):
            train(log=log)
        assert steps() == [11, 7] and outcome()["reason"] == "the log could not be written"
    shutil.copytree("ck", "copy")
    shutil.copy(log, "copy.h5")
    assert train(log=log) == 0
    assert "note: ck/step-11.pt: its log ends at step 7\n" in train.said()
    assert_same_columns(log, "whole.h5")
    assert train(log="copy.h5", checkpoint="copy", resume="copy/step-11.pt") == 0
    assert columns_of("copy.h5")["steps/step"].tolist() == [*range(1, 8), *range(12, 31)]
    for folder in ("ck", "copy"):
        assert_same_state(state_of(folder), state_of("whole"))


def test_state_that_only_pickle_could_keep_is_named(worded):
    with worded.error(CheckpointError):
        mapped({"optimizer": [{"hook": lambda: 0}]}, torch.clone)
    assert mapped({"a": (np.float64(0.5), [None, True, "x"])}, torch.clone) == {"a": (0.5, [None, True, "x"])}


def test_a_captured_state_is_a_copy_and_stays_one_when_put_back():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = SimpleNamespace(model=model, optimizer=optimizer, device=torch.device("cpu"), state=dict,
                           restore=lambda state: None)

    def update():
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    update()
    state = capture(RunState(1), step)
    kept = mapped(state, torch.clone)
    update()
    assert_same_state(state, kept)
    assert restore(state, step) == RunState(1)
    update()
    assert_same_state(state, kept)


def raise_no_space(*_):
    raise OSError(errno.ENOSPC, "No space left on device")
