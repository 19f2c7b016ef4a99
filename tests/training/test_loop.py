"""Runs of one worker, from settings to log: how they end, and what the log then says."""
import json
import os
import re
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch.utils.data import default_collate

from hvdscale.analysis.trials import read_trials
from hvdscale.cli.log import main as show_log
from hvdscale.cli.report import main as report
from hvdscale.errors import DataError, ExitCode, LogError, PlanError, UsageError
from hvdscale.log.reader import read_log
from hvdscale.log.schema import Status
from hvdscale.plan.batch_schedule import BatchSchedule
from hvdscale.plan.plan import Plan
from hvdscale.plan.shards import Stream
from hvdscale.system.cores import usable_cores
from hvdscale.target import Target
from hvdscale.training.display import NoDisplay
from hvdscale.training.outputs import open_run_log
from hvdscale.training.prepare import prepare
from hvdscale.training.loop import train as train_job
from hvdscale.training.run_log import NoLog
from hvdscale.update.model import bound_to_passes, check_groups
from hvdscale.update.step import DataParallelStep
from hvdscale.workers.group import SingleWorker
from hvdscale.workload import MapSplit
from hvdscale.workloads.large import language
from hvdscale.workloads.large.tokens import IGNORED
from tests.parallel import toy
from tests.factories import jobs as made_jobs


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Train a workload under these keys; gives the outcome, and the log as it is read afterwards."""
    monkeypatch.setattr("hvdscale.training.prepare.find", {"toy/net": toy.WORKLOAD, "digits/fc": digits()}.__getitem__)
    threads = torch.get_num_threads()

    def train(workload="toy/net", display=NoDisplay(), **keys):
        keys = {"threads": 1, "log": str(tmp_path / f"{len(list(tmp_path.iterdir()))}.h5"), **keys}
        job = prepare(workload, [keys], SingleWorker())
        with open_run_log(job, SingleWorker()) as run_log:
            outcome = train_job(job, run_log, display, SingleWorker())
            run_log.close()
        with read_log(keys["log"]) as log:
            return outcome, log
    yield train
    torch.set_num_threads(threads)


def digits():
    from hvdscale.workloads import find
    return find("digits/fc")


def evaluated_at(log):
    return log.evaluations["step"].tolist()


@pytest.mark.parametrize("said, threads", [("3", 3), ("2,1", 2), ("0", None), ("many", None), ("", None)])
def test_omp_num_threads_says_the_threads_unless_they_are_typed(said, threads, monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    try:
        assert prepare("digits/fc", [{"threads": 1}], SingleWorker()).plan.threads == 1
        assert prepare("digits/fc", [{}], SingleWorker()).plan.threads == (threads or len(usable_cores()))
    finally:
        torch.set_num_threads(before)


def test_the_default_workload_trains_to_its_target(train):
    pytest.importorskip("sklearn")
    outcome, log = train("digits/fc")
    plan = json.loads(log.trials["plan"][0])
    target = Target.parse(plan["measurement"]["target"])
    met = target.met_by(log.evaluations[target.column])
    assert met.tolist() == [False] * (len(met) - 1) + [True]
    assert outcome.stop == (Status.COMPLETE, f"target {target} met at step {outcome.step}", ExitCode.DONE)
    assert outcome.step < plan["measurement"]["budget_steps"]
    check_log(log, outcome)


@pytest.mark.parametrize("last_batch", ["carry", "short", "drop"])
def test_a_run_to_its_budget_leaves_a_row_of_every_step_and_evaluation(train, last_batch):
    outcome, log = train(steps=23, eval_every=5, last_batch=last_batch, decay="linear", end_lr_factor=0.1)
    assert outcome.stop == (Status.COMPLETE, "budget of 23 steps spent", ExitCode.DONE)
    assert evaluated_at(log) == [0, 5, 10, 15, 20, 23]
    check_log(log, outcome)


def check_log(log, outcome):
    """What holds of any log of a run that was not interrupted."""
    trials, steps, evaluations = log.trials, log.steps, log.evaluations
    plan = json.loads(trials["plan"][0])
    problem = {**plan["problem"], "decay_at": tuple(plan["problem"]["decay_at"])}
    for name in ("batch_schedule", "batch_lr_factors"):
        problem[name] = problem[name] and tuple(map(tuple, problem[name]))
    measurement = {**plan["measurement"], "eval_splits": tuple(plan["measurement"]["eval_splits"])}
    settled = Plan(**problem, **measurement, **plan["execution"])
    assert (trials.rows, trials["status"][0], trials["stop_reason"][0]) == (1, outcome.stop.status, outcome.stop.reason)
    for column, field in [("dataset", "dataset"), ("model", "model"), ("optimizer", "optimizer"), ("seed", "seed"),
                          ("global_batch", "global_batch"), ("local_batch", "local_batch"), ("workers", "workers"),
                          ("accumulation", "accumulate"), ("ghost_batch", "ghost_batch"),
                          ("budget_steps", "budget_steps")]:
        assert trials[column][0] == getattr(settled, field)
    for name, value in settled.metaparameters().items():
        np.testing.assert_equal(trials[f"metaparameters/{name}"][0], value)
    assert (log.restarts.rows, log.restarts["first_step"][0], log.restarts["previous_end"][0]) == (1, 0, "")
    assert "startup_seconds" in log.restarts

    assert steps["step"].tolist() == list(range(1, outcome.step + 1))
    assert steps["lr"].tolist() == [settled.schedule.lr_at(step) for step in range(outcome.step)]
    assert np.isfinite(steps["loss"]).all() and (steps["step_seconds"] > 0).all()
    parts = [steps[part] for part in ("data_seconds", "compute_seconds", "communication_seconds")]
    np.testing.assert_allclose(np.sum(parts, axis=0), steps["step_seconds"], rtol=1e-9)

    grid = [step for step in range(outcome.step + 1) if settled.evaluates_at(step)]
    assert evaluated_at(log) == grid
    assert evaluations["examples"].tolist() == [settled.stream.examples_before(step) for step in grid]
    spent = np.concatenate([[0], np.cumsum(steps["step_seconds"])])[evaluations["step"]]
    assert (evaluations["train_seconds"] >= spent).all() and evaluations["train_seconds"][0] == 0
    assert len(outcome.measured) == 6                       # two metrics of three splits
    for name, value in outcome.measured.items():
        assert evaluations[name][-1] == value


RAMP = [[0, 8], [9, 12], [20, 16]]


@pytest.mark.parametrize("keys", [dict(), dict(batch_schedule_lr="seesaw", noise_every=3), dict(eval_every_epochs=1.0),
                                  dict(optimizer="adam", lr_rule="adam_sqrt", clip_norm=0.5)])
def test_a_batch_that_grows_is_in_the_log_step_by_step(train, keys):
    keys = dict(dict(steps=30, eval_every=5), **keys)
    if "eval_every_epochs" in keys:
        del keys["eval_every"]
    outcome, log = train(batch_schedule=RAMP, **keys)
    check_log(log, outcome)
    assert log.steps["global_batch"].tolist() == [8] * 9 + [12] * 11 + [16] * 10
    if "noise_every" in keys:
        measured = np.isfinite(log.steps["local_sqnorm"])
        assert log.steps["local_examples"][measured].tolist() == (log.steps["global_batch"][measured] / 2).tolist()


def test_until_its_first_change_a_growing_batch_is_the_constant_one_to_the_bit(train):
    keys = dict(steps=30, noise_every=3, warmup_steps=5, model_args=dict(norm="ours", dropout=0.3))
    _, constant = train(global_batch=8, **keys)
    _, one_piece = train(batch_schedule=[[0, 8]], **keys)
    _, grown = train(batch_schedule=RAMP, **keys)
    for name in constant.steps:
        if not name.endswith("_seconds"):
            np.testing.assert_array_equal(one_piece.steps[name], constant.steps[name])
            np.testing.assert_array_equal(grown.steps[name][:9], constant.steps[name][:9])
    assert "global_batch" not in one_piece.steps.columns
    assert grown.steps["loss"][9] != constant.steps["loss"][9]


@pytest.mark.parametrize("share", [0.05, 0.4])
def test_a_busy_host_is_in_the_log_and_marks_its_times(train, monkeypatch, share):
    monkeypatch.setattr("hvdscale.system.cores.CoreClock.look", lambda self: (share, 2 * share))
    _, log = train(steps=30)
    [trial] = read_trials(log)
    assert trial.without_core == pytest.approx(share) and trial.crowded == (share > 0.1)


def test_a_text_job_counts_in_tokens_and_logs_those_of_each_step(train, tmp_path, monkeypatch):
    workload = language.workload("text", "lstm")
    monkeypatch.setattr("hvdscale.training.prepare.find", {"text/lstm": workload}.__getitem__)
    (tmp_path / "train.txt").write_text("the cat sat on the mat\n" * 40 + "end\n")
    (tmp_path / "val.txt").write_text("the mat\n")
    keys = dict(data_args=dict(train=str(tmp_path / "train.txt"), val=str(tmp_path / "val.txt"), vocabulary="char",
                               sequence=7), model_args=dict(hidden=8, projection=4, embedding=4, layers=1),
                cache_dir=str(tmp_path / "cache"), batch_schedule_tokens=[[0, 5], [400, 11]], tokens=2500.0,
                eval_every_tokens=500.0)
    outcome, log = train("text/lstm", **keys)
    data = prepare("text/lstm", [{**keys, "threads": 1}], SingleWorker()).data
    plan = json.loads(log.trials["plan"][0])
    stream = Stream(len(data.train), BatchSchedule.of_problem(plan["problem"], 0), 0)
    labels = [data.train.take(stream.visits(step, 0, stream.size(step))).labels for step in range(outcome.step)]
    assert log.steps["tokens"].tolist() == [int((own != IGNORED).sum()) for own in labels]
    assert abs(log.steps["tokens"].sum() - 2500) <= 2 * 11 * 7 and plan["measurement"]["train_tokens"] == 41 * 23 - 19
    trial, = read_trials(log)
    seen = np.concatenate([[0], np.cumsum(log.steps["tokens"])])
    assert trial.tokens.tolist() == [seen[step] for step in trial.step]


def test_the_plan_holds_what_was_asked(train):
    _, log = train(steps=2, seed=3)
    asked = json.loads(log.trials["plan"][0])["asked"]
    assert asked == {"workload": "toy/net", "steps": 2, "seed": 3, "threads": 1, "log": log.path}


def test_keep_going_passes_the_target_to_the_budget(train):
    outcome, log = train(steps=12, eval_every=3, target="val/error<=1", keep_going=True)
    assert outcome.stop.reason == "budget of 12 steps spent" and evaluated_at(log) == [0, 3, 6, 9, 12]
    outcome, log = train(steps=12, eval_every=3, target="val/error<=1")
    assert outcome.stop.reason == "target val/error<=1 met at step 0" and evaluated_at(log) == [0]
    assert log.steps.rows == 0


def test_a_target_met_at_the_end_of_the_budget_is_what_ended_the_run(train):
    first, _ = train(steps=8, eval_every=8)
    value = first.measured["train/cross_entropy"]
    outcome, _ = train(steps=8, eval_every=8, target=f"train/cross_entropy<={value!r}")
    assert (outcome.stop.status, outcome.step) == (Status.COMPLETE, 8)
    assert outcome.stop.reason.startswith("target train/cross_entropy")


def test_a_budget_in_seconds_ends_after_it_with_an_evaluation(train):
    outcome, log = train(seconds=0.2, eval_every=1000)
    assert outcome.stop == (Status.COMPLETE, f"budget of 0.2 s spent at step {outcome.step}", ExitCode.DONE)
    assert evaluated_at(log) == [0, outcome.step]
    assert log.evaluations["train_seconds"][-1] >= 0.2
    assert log.trials["budget_steps"][0] == 0
    before_last = log.evaluations["train_seconds"][-1] - log.steps["step_seconds"][-2:].sum()
    assert before_last <= 0.201                 # one step beyond, and what the clock holds beside the steps


def test_a_run_without_evaluations_has_none(train):
    outcome, log = train(steps=5, eval_every=0)
    assert outcome.stop.reason == "budget of 5 steps spent" and outcome.measured == {}
    assert (log.evaluations.rows, log.steps.rows) == (0, 5)


@pytest.mark.parametrize("target", ["none", "val/error<=1"])
def test_the_last_evaluation_has_all_splits_whatever_the_others_have(train, target):
    _, log = train(steps=6, eval_every=3, eval_splits="val", target=target)
    for split in ("train", "val", "test"):
        known = np.isfinite(log.evaluations[f"{split}/error"]).tolist()
        assert known == [split == "val"] * (len(known) - 1) + [True]


def test_divergence_of_the_loss_or_the_parameters_is_infeasible_and_its_step_is_in_the_log(train, worded):
    outcome, log = train(steps=50, lr=1e30, eval_every=0)
    assert (outcome.stop.status, outcome.stop.exit_code) == (Status.INFEASIBLE, ExitCode.DIVERGED)
    worded(outcome.stop.reason)
    assert not np.isfinite(log.steps["loss"][-1]) and np.isfinite(log.steps["loss"][:-1]).all()
    assert log.trials["status"][0] == Status.INFEASIBLE
    outcome, log = train(steps=1, eval_every=0, lr=3e38, weight_decay=1e3, lr_rule="none")
    assert (outcome.stop.status, log.evaluations.rows) == (Status.INFEASIBLE, 0)
    worded(outcome.stop.reason)


class At(NoDisplay):
    """A display that does something after a step."""

    def __init__(self, step, act):
        self._step, self._act = step, act

    def step(self, step, seconds, loss):
        if step == self._step:
            self._act()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_stops_after_a_step_and_handlers_are_put_back(train, number):
    before = signal.getsignal(number)
    outcome, log = train(steps=50, display=At(7, lambda: os.kill(os.getpid(), number)))
    assert outcome.stop == (Status.INCOMPLETE, f"stopped by a signal after step {outcome.step}", ExitCode.PREEMPTED)
    assert outcome.step == 8
    assert log.trials["status"][0] == Status.INCOMPLETE
    assert signal.getsignal(number) is before


def test_a_log_that_cannot_be_written_stops_the_run(train):
    class Full(NoLog):
        def step(self, step, lr, result):
            self.failure = LogError("w.h5: no space left") if step == 4 else self.failure
    job = prepare("toy/net", [{"threads": 1}], SingleWorker())
    outcome = train_job(job, Full(), NoDisplay(), SingleWorker())
    assert (outcome.stop, outcome.step) == ((Status.INCOMPLETE, "the log could not be written", ExitCode.FAILED), 5)


def test_a_fault_in_a_step_ends_the_trial_incomplete_with_the_reason(train, tmp_path):
    def fail():
        raise DataError("d: gone")
    with pytest.raises(DataError, match="d: gone"):
        train(display=At(3, fail), log=str(tmp_path / "f.h5"))
    with read_log(tmp_path / "f.h5") as log:
        assert (log.trials["status"][0], log.trials["stop_reason"][0]) == (Status.INCOMPLETE, "d: gone")


def columns(log, without=("seconds",)):
    """All columns not in seconds, but for the plan, to the last digit (NaN equals NaN)."""
    return {f"{table.name}/{name}": list(map(repr, table[name].tolist())) for table in (log.steps, log.evaluations)
            for name in table if not name.endswith(without)}


def test_a_seed_fixes_every_column_and_another_seed_changes_them(train):
    keys = dict(steps=15, eval_every=5, model_args={"dropout": 0.3})
    first, again, other = (columns(train(seed=seed, **keys)[1]) for seed in (1, 1, 2))
    assert first == again
    assert all(first[name] != other[name] for name in ("steps/loss", "evaluations/val/cross_entropy"))


@pytest.mark.parametrize("keys", [dict(untimed_passes=0), dict(eval_every=1), dict(eval_batch=3), dict(threads=2)])
def test_how_a_run_is_carried_out_and_measured_leaves_its_losses_alone(train, keys):
    plain = dict(steps=15, eval_every=5, model_args={"dropout": 0.3}, precision="fp64")
    (_, one), (_, other) = train(**plain), train(**{**plain, **keys})
    np.testing.assert_allclose(one.steps["loss"], other.steps["loss"], rtol=1e-12)


def test_a_training_subset_is_what_is_trained_on(train, worded):
    _, log = train(steps=3, train_subset=16)
    assert json.loads(log.trials["plan"][0])["problem"]["train_examples"] == 16
    with worded.error(DataError):
        train(train_subset=54)


def test_an_existing_log_is_left_alone_unless_it_may_be_overwritten(train, tmp_path):
    path = str(tmp_path / "w.h5")
    train(steps=2, log=path)
    before = (tmp_path / "w.h5").read_bytes()
    with pytest.raises(LogError, match="w.h5"):
        train(steps=3, log=path)
    assert (tmp_path / "w.h5").read_bytes() == before
    assert train(steps=3, log=path, overwrite=True)[1].steps.rows == 3


@pytest.mark.parametrize("name, value", [("widht", 8), ("dropout", 1.5)])
def test_model_arguments_that_the_model_does_not_take_are_named(train, name, value, worded):
    with worded.error(UsageError):
        train(model_args={name: value})


def test_label_smoothing_that_hides_the_true_class_is_an_error(train):
    assert train(steps=1, label_smoothing=0.8)[0].step == 1        # of 5 classes, each has as much
    with pytest.raises(UsageError, match="label_smoothing = 0.85 .* use at most 0.8"):
        train(label_smoothing=0.85)


def test_a_model_is_drawn_alike_in_every_precision(train):
    models = {precision: prepare("toy/net", [{"precision": precision, "threads": 1}], SingleWorker()).model
              for precision in ("fp32", "fp64")}
    for narrow, wide in zip(models["fp32"].parameters(), models["fp64"].parameters()):
        assert (narrow.dtype, wide.dtype) == (torch.float32, torch.float64)
        assert torch.equal(narrow.double(), wide)


def test_passes_before_the_clock_leave_buffers_and_random_streams_alone():
    plan, train_split = toy.settled(1), toy.load().train
    model = toy.Net(norm="torch")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    stream = torch.get_rng_state()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    DataParallelStep(plan, toy.WORKLOAD, train_split, model, optimizer, SingleWorker(), torch.device("cpu")).warm_up(3)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), stream)


@pytest.mark.parametrize("model_args, reason", [
    (dict(dropout=0.5, norm="ours"), ""), (dict(norm="torch"), "torch's own BatchNorm2d"),
    (dict(dropout=0.5, drop="torch"), "random numbers of its own"),
    (dict(dropout=0.5, drop="function"), "random numbers of its own"), (dict(dropout=0.0, drop="function"), "")])
def test_what_binds_a_model_to_its_passes_is_found_and_leaves_no_trace(model_args, reason):
    model, stream = toy.Net(**model_args).double(), torch.get_rng_state()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    plan = toy.settled(1, precision="fp64")
    assert bound_to_passes(plan, toy.WORKLOAD, toy.load().train, model, torch.device("cpu")) == reason
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), stream)


def test_a_collate_function_that_may_pad_binds_our_modules_to_their_passes():
    data, plan = toy.load(), toy.settled(1)
    pairs = list(zip(data.train.inputs.float(), data.train.labels))
    for collate, model_args, reason in [
            (default_collate, dict(dropout=0.5), "examples that a collate function may pad to the longest of a pass"),
            (None, dict(dropout=0.5), "")]:
        split = MapSplit(pairs, collate)
        assert bound_to_passes(plan, toy.WORKLOAD, split, toy.Net(**model_args), torch.device("cpu")) == reason


def test_a_buffer_that_the_forward_pass_moves_binds_a_model_to_its_passes(worded):
    class Counting(toy.Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen += len(x)
            return super().forward(x)
    found = bound_to_passes(toy.settled(1), toy.WORKLOAD, toy.load().train, Counting(), torch.device("cpu"))
    worded(found)


def test_cutting_ghost_groups_that_must_be_whole_is_an_error(worded):
    plan = replace(toy.settled(2, global_batch=24, ghost_batch=16), group_by_group=True)
    check_groups(plan, toy.Net(), "")
    plan = replace(toy.settled(4, global_batch=24, ghost_batch=16), group_by_group=True)
    with pytest.raises(PlanError, match="torch's own.* 24 has 2 ghost groups .* 4 workers x 1. Use --ghost-batch 6"):
        check_groups(plan, toy.Net(), "torch's own BatchNorm2d")
    with worded.error(PlanError):
        check_groups(replace(toy.settled(1, global_batch=24, ghost_batch=24, accumulate=2), group_by_group=True),
                     toy.Net(), "")
    plan = toy.settled(1, global_batch=24, ghost_batch=24, accumulate=3)
    check_groups(plan, toy.Net(), "")
    with pytest.raises(PlanError, match="group of 24 .* as 3 passes .accumulate. would .* Use --ghost-batch 8 or less"):
        check_groups(plan, toy.Net(norm="ours"), "")


@pytest.mark.parametrize("model_args, local_batch, ghost_batch", [
    (dict(norm="torch"), 48, 16), (dict(dropout=0.5, drop="torch"), 48, 8), (dict(dropout=0.5, drop="torch"), 4, 4),
    (dict(norm="torch"), 2, 2), (dict(norm="ours"), 48, 32)])
def test_a_model_run_group_by_group_has_small_groups_by_default(tmp_path, monkeypatch, model_args, local_batch,
                                                                ghost_batch):
    """No larger than the job's own local batch, so that each of any number of workers has a whole one."""
    defaults = {**{name: value for name, value in toy.DEFAULTS.items() if name != "ghost_batch"},
                "local_batch": local_batch, "model_args": model_args}
    workload = replace(toy.WORKLOAD, defaults=defaults)

    monkeypatch.setattr("hvdscale.training.prepare.find", lambda name: workload)

    def plan(**typed):
        return prepare("toy/net", [{"threads": 1, **typed}], SingleWorker()).plan
    assert {plan(global_batch=batch).ghost_batch for batch in (4, 16, 53)} == {ghost_batch}
    assert plan(ghost_batch=5).ghost_batch == 5 and plan(ghost_batch="global", local_batch=8).ghost_batch == 8
    path = tmp_path / "tuned.toml"
    path.write_text("[global_batch.16]\nlr = 0.1\nghost_batch = 6\n")
    assert plan(global_batch=16, lr_rule="tuned", metaparameters=str(path)).ghost_batch == 6


@pytest.fixture
def command(here):
    """What hvdscale-train prints of a job of factories/jobs.py, and its exit code."""
    def command(job, *arguments, **environment):
        done = here("hvdscale-train", f"tests.factories.jobs:{job}", "--log", "w.h5", "--set", "threads=1", *arguments,
                    check=False, **environment)
        return done.stdout + done.stderr, done.returncode
    return command


def test_a_metric_that_is_nan_is_named_at_once_at_the_end_and_in_the_log(command, tmp_path):
    said, code = command("NEVER_F1", "--target", "val/macro_f1>0.9", "--set", "eval_splits=val")
    before, after = said.split("COMPLETE")
    assert code == 0 and "note: val/macro_f1 is NaN at step 0, which never meets the target\n" in before
    assert before.count("val/macro_f1 is NaN") == 1
    assert "val/macro_f1 nan" in after and re.search(r"val/squares \d", after)
    assert "note: val/macro_f1 was NaN at 3 of 3 evaluations\n" in after
    assert "note: test/macro_f1 was NaN at 1 of 1 evaluation\n" in after
    shown = CliRunner().invoke(show_log, ["show", str(tmp_path / "w.h5")]).output
    assert "NaN        val/macro_f1 at 3 of 3 evaluations" in shown and "squares at" not in shown
    reported = " ".join(CliRunner().invoke(report, [str(tmp_path / "w.h5")]).output.split())
    assert re.search("val/macro_f1 was NaN at 3 of 3 evaluations of .*w.h5:0; NaN never meets a target.", reported)


@pytest.mark.parametrize("method, doing", [
    ("load", "the data"), ("loss", "the model"), ("measure", "the evaluation of unaugmented train examples"),
    ("summarize", "the evaluation of unaugmented train examples")])
def test_an_error_in_a_users_method_is_one_line_with_its_location(command, tmp_path, method, doing):
    said, code = command("MISTAKEN", MISTAKE=method)
    assert code == 1 and re.fullmatch(rf"Error: {doing}: ValueError: mistaken \(.*factories/jobs.py:\d+\); "
                                      r"HVDSCALE_TRACEBACK=1 prints the traceback\n", said)
    assert not (tmp_path / "w.h5").exists()


@pytest.mark.parametrize("mistake, line", [
    ("length", "measure returned a tensor of shape (3,) for calls; as a part of length 1 it must be a tensor of shape "
     "(1,), a sum over the batch without a count"),
    ("name", "summarize returned f1; it must return {metric: number} with each of macro_f1"),
    ("two", "summarize returned {'macro_f1': [1, 2]}; each metric must be one number")])
def test_parts_and_summarize_that_do_not_fit_are_one_line_before_the_log(command, tmp_path, mistake, line):
    assert command("MISTAKEN", MISTAKE=mistake) == (f"Error: {line}\n", 2)
    assert not (tmp_path / "w.h5").exists()


def test_a_number_that_the_first_examples_do_not_have_is_no_mistake(command):
    """The parts of one batch alone divide by zero here, those of a whole split do not."""
    assert command("MISTAKEN", MISTAKE="")[1] == 0


def test_a_split_without_examples_is_no_metric_that_is_nan(command, tmp_path):
    said, code = command("NO_TEST")
    shown = CliRunner().invoke(show_log, ["show", str(tmp_path / "w.h5")]).output
    assert code == 0 and "NaN" not in said + shown and "test/" not in said


@pytest.mark.parametrize("job, arguments, said", [
    ("NO_VAL", [], "the val split has no examples, but the target val/accuracy>0.99 is measured on it"),
    ("NO_VAL", ["--target", "none"], "the val split has no examples, but eval_splits = 'train,val,test' names it"),
    ("NO_TEST", ["--set", "eval_splits=val,test"], "the test split has no examples, but eval_splits = 'val,test'"),
    ("NO_TEST", ["--target", "test/accuracy>0.5"], "the test split has no examples, but the target test/accuracy>0.5"),
    ("NO_TEST", ["--set", "decay=plateau", "--set", "decay_metric=test/accuracy"],
     "the test split has no examples, but decay_metric test/accuracy is measured on it")])
def test_an_empty_split_that_is_to_be_measured_is_an_error_before_the_log(command, tmp_path, job, arguments, said):
    output, code = command(job, *arguments)
    assert code == 2 and said in output and not (tmp_path / "w.h5").exists()


@pytest.mark.parametrize("keys", [dict(eval_splits="train"), dict(eval_every=0)])
def test_a_job_without_validation_data_is_trained_where_nothing_asks_for_them(train, keys, monkeypatch):
    monkeypatch.setattr("hvdscale.training.prepare.find", lambda name: made_jobs.NO_VAL_NOR_TEST)
    outcome, log = train("values", target="none", steps=2, **keys)
    assert outcome.stop.status == Status.COMPLETE
    assert np.isfinite(log.evaluations["train/squares"]).all() and log.evaluations.rows == 2 * ("eval_splits" in keys)
