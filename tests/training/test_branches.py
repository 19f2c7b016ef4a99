"""Branches of a run on one worker: what they start from, what they train, and how the command resumes."""
import os
import shutil
from dataclasses import replace
from functools import partial
from io import StringIO

import pytest
import torch

from hvdscale.analysis.branches import branched_of
from hvdscale.analysis.trials import read_trials
from hvdscale.errors import CheckpointError, ExitCode, PlanError, UsageError
from hvdscale.log.reader import read_log
from hvdscale.plan.branches import BranchRequest, branch_name
from hvdscale.training import loop
from hvdscale.training.branches import Branching, layers_of_run
from hvdscale.training.checkpoint import listed, read
from hvdscale.training.display import Display
from hvdscale.workers.group import SingleWorker
from tests.factories.runs import WORKLOAD, Signalled, assert_same_columns, assert_same_state

KEYS = dict(eval_every=10, steps=20, model_args={"norm": "ours", "dropout": 0.3}, threads=1, global_batch=6,
            base_batch=6, optimizer="momentum", lr=0.05, warmup="none", decay="constant")
ASKED = BranchRequest(at=(10, 20), factors=(1, 2), orders=1, examples=48, evaluations=4)
LAST = replace(ASKED, at=(20,))
NAMES = [f"at{step}-k{factor}-r1" for step in (10, 20) for factor in (1, 2)]


@pytest.fixture
def branch(signalled, monkeypatch):
    """Carry the command out on the toy workload in tmp_path, with a signal at a step; gives the exit code."""
    monkeypatch.setattr("hvdscale.training.outputs.Display", partial(Display, out=StringIO()))
    for room in ("prepare", "branches"):
        monkeypatch.setattr(f"hvdscale.training.{room}.find", lambda name: WORKLOAD)

    def branch(asked=ASKED, out="out", source=None, signal_at=-1, shard=(0, 1), overwrite=False, **keys):
        monkeypatch.setattr(Signalled, "at", signal_at)
        os.makedirs(out, exist_ok=True)
        layer = {name: value for name, value in {**KEYS, **keys}.items() if value is not None}
        return Branching("toy/net", [layer], asked, out, source, shard, overwrite, SingleWorker()).carry_out()
    return branch


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Where what the command made is kept."""
    return tmp_path_factory.mktemp("kept") / "out"


@pytest.fixture
def finished(branch, kept, tmp_path):
    """The command, carried out once, in out/."""
    if not kept.exists():
        assert branch() == 0
        (tmp_path / "out").rename(kept)
    shutil.copytree(kept, tmp_path / "out")


def logs(folder):
    """Branches with a log of their own."""
    return sorted(name.removesuffix(".h5") for name in os.listdir(folder) if name.startswith("at"))


def trials(folder):
    """Those in the log of all branches, by name."""
    with read_log(f"{folder}/branches.h5") as log:
        found = read_trials(log)
    return {branch_name(one.branch): one for one in found}


def assert_same_branches(one, other):
    """Every column that is not in seconds, but for where it was merged from."""
    assert_same_columns(f"{one}/branches.h5", f"{other}/branches.h5", but=("source", "source_trial"))


@pytest.mark.usefixtures("finished")
def test_every_branch_has_a_log_with_its_place_and_no_target():
    assert sorted(trials("out")) == sorted(NAMES) and not logs("out")
    for trial in trials("out").values():
        factor, rate = trial.branch["factor"], trial.plan["problem"]["peak_lr"]
        assert trial.global_batch == 6 * factor and trial.target is None
        assert trial.step.tolist() == [at * 2 // factor for at in range(5)]
        assert trial.branch["rate"] == pytest.approx(0.05 * factor) == rate
        with read_log("out/branches.h5") as log:
            assert set(log.steps["lr"][log.steps["trial"] == trial.id].tolist()) == {rate}
    assert [step for step, _ in listed("out/checkpoints")] == [20, 10, 0]


def test_a_branch_starts_from_the_checkpoint_to_the_last_bit(branch, monkeypatch):
    begun = []

    class Seen(loop.Loop):
        def __init__(self, job, *given):
            super().__init__(job, *given)
            begun.append({"model": {name: values.clone() for name, values in job.model.state_dict().items()},
                          "state": json_free(job.optimizer.state_dict()["state"]), "steps": self.done.steps})
    monkeypatch.setattr(loop, "Loop", Seen)
    assert branch() == 0
    of_branches = begun[1:]
    assert len(of_branches) == len(NAMES)
    for name, start in zip(NAMES, of_branches):
        state = read(f"out/checkpoints/step-{name[2:4]}.pt")
        assert start["steps"] == 0
        assert_same_state(start["model"], dict(state["model"]))
        assert_same_state(start["state"], state["optimizer"]["state"])


def json_free(state):
    return {at: {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in one.items()}
            for at, one in state.items()}


def test_branches_of_one_order_see_the_same_examples_in_the_same_order(branch, monkeypatch):
    seen = {}

    class Noted(Signalled):
        def __call__(self, step, *given):
            visits = self.stream.visits(step, 0, self.stream.size(step))
            seen.setdefault((self.plan.seed, self.plan.global_batch), []).extend(visits.indices.tolist())
            return super().__call__(step, *given)
    monkeypatch.setattr("hvdscale.training.prepare.DataParallelStep", Noted)
    assert branch(replace(LAST, orders=2), seed=3) == 0
    assert seen[4, 6] == seen[4, 12] and seen[5, 6] == seen[5, 12] and seen[4, 6] != seen[5, 6]
    assert len(seen[4, 6]) == 48


def test_one_step_of_a_branch_is_the_update_of_the_whole_batch_at_the_scaled_rate(branch, monkeypatch):
    """SGD without momentum: the parameters move by the rate times the mean gradient, which doubles with the rate."""
    ends = {}

    class Kept(Signalled):
        def __call__(self, step, *given):
            before = [p.detach().clone() for p in self.model.parameters()]
            found = super().__call__(step, *given)
            if step == 0:
                ends[self.plan.seed, self.plan.peak_lr, self.plan.global_batch] = [
                    p.detach() - old for p, old in zip(self.model.parameters(), before)]
            return found
    monkeypatch.setattr("hvdscale.training.prepare.DataParallelStep", Kept)
    keys = dict(optimizer="sgd", precision="fp64", model_args={})
    assert branch(LAST, out="linear", **keys) == 0
    assert branch(replace(LAST, rule="none"), out="none", **keys) == 0
    for twice, once in zip(ends[1, 0.1, 12], ends[1, 0.05, 12]):
        torch.testing.assert_close(twice, 2 * once, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("signal_at", [4, pytest.param(15, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("finished")
def test_a_stopped_command_resumes_and_makes_what_the_uninterrupted_one_makes(branch, signal_at):
    """Step 4 is of the base run, and of the branches at the run's own batch."""
    os.rename("out", "whole")
    stops = 0
    while (code := branch(signal_at=signal_at if stops < 2 else -1)) == ExitCode.PREEMPTED:
        stops += 1
    assert code == 0 and stops == (1 if signal_at == 15 else 2)
    assert_same_columns("out/base.h5", "whole/base.h5")
    assert_same_branches("out", "whole")


@pytest.mark.usefixtures("finished")
def test_a_finished_command_runs_nothing_again_and_more_orders_add_to_it(branch, capsys):
    written = os.stat("out/branches.h5").st_mtime_ns
    assert branch() == 0 and os.stat("out/branches.h5").st_mtime_ns == written
    capsys.readouterr()
    assert branch(replace(ASKED, orders=2)) == 0
    assert len(trials("out")) == 8 and "order 1:" not in capsys.readouterr().out


def test_shards_share_the_branches_out(branch):
    assert branch(shard=(0, 2)) == 0 and len(logs("out")) == 2
    assert branch(shard=(1, 2)) == 0 and not logs("out") and sorted(trials("out")) == sorted(NAMES)


def test_branches_from_the_checkpoints_of_another_run(branch):
    assert branch() == 0
    name, layer = layers_of_run("out/checkpoints")
    assert name == "toy/net" and layer["lr"] == 0.05
    assert branch(out="own", source="out/checkpoints") == 0
    assert "base.h5" not in os.listdir("own")
    assert_same_branches("own", "out")


@pytest.mark.usefixtures("finished")
def test_what_contradicts_what_is_there_is_refused(branch, worded):
    with pytest.raises(UsageError, match="out/branches.h5 belongs to another branch: rule was linear, is now sqrt"):
        branch(replace(ASKED, rule="sqrt"))
    with worded.error(CheckpointError):
        branch(replace(ASKED, at=(15, 20)))
    with worded.error(PlanError):
        branch(label_smoothing=0.2)
    with worded.error(PlanError):
        branch(out="own", source="out/checkpoints", label_smoothing=0.2)
    with worded.error(CheckpointError):
        os.makedirs("empty")
        layers_of_run("empty")


def test_settings_that_no_branch_can_have_are_refused_before_the_first_one(branch, worded):
    with worded.error(PlanError):
        branch(replace(ASKED, factors=(1, 64)))
    assert not logs("out")
    with worded.error(PlanError):
        branch(replace(ASKED, factors=(1, 16), rule="adam_sqrt"), out="adam", optimizer="adam", global_batch=2,
               base_batch=2)


def test_adams_state_is_kept_and_its_betas_are_those_of_the_branch(branch, monkeypatch):
    groups = {}

    class Seen(loop.Loop):
        def __init__(self, job, *given):
            super().__init__(job, *given)
            groups[job.plan.global_batch] = job.optimizer.param_groups[0]["betas"], job.optimizer.state_dict()["state"]
    monkeypatch.setattr(loop, "Loop", Seen)
    assert branch(replace(LAST, rule="adam_sqrt"), optimizer="adam") == 0
    assert groups[6][0] == (0.9, 0.999) and groups[12][0] == pytest.approx((0.8, 0.998))
    assert groups[12][1]


def test_a_run_at_a_tuned_rate_branches_from_that_rate(branch, tmp_path):
    (tmp_path / "tuned.toml").write_text("[global_batch.6]\nlr = 0.02\nmomentum = 0.5\n")
    assert branch(LAST, lr_rule="tuned", metaparameters="tuned.toml", lr=None, base_batch=None) == 0
    for trial in trials("out").values():
        problem = trial.plan["problem"]
        assert problem["momentum"] == 0.5 and problem["peak_lr"] == pytest.approx(0.02 * trial.branch["factor"])


def test_a_branch_that_diverges_is_known_as_such_and_the_others_go_on(branch):
    asked = replace(LAST, factors=(1, 4), orders=2, evaluations=2, rule="power:10")
    assert branch(asked, optimizer="sgd", model_args={}) == 0
    made = trials("out")
    [found] = branched_of(made.values())
    assert {number for _, number in found.points[0].diverged} == {made[f"at20-k4-r{order}"].id for order in (1, 2)}
    assert found.points[0].critical.value == 6
