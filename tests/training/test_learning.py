"""What the last lines of a run say where its loss did not fall, ended near chance, or diverged."""
import math

import pytest
import torch
from torch import nn

from hvdscale.analysis.step_breakdown import LossCourse
from hvdscale.errors import ExitCode
from hvdscale.log.schema import Status
from hvdscale.training.learning import describe_course, look, not_learned
from hvdscale.training.snapshot import Outcome, Stop
from hvdscale.training.prepare import prepare
from hvdscale.workers.group import SingleWorker
from hvdscale.workload import Classification, Data, Split
from tests.factories.logs import log, save, trial

CLASSES = 10
KEYS = dict(lr=0.1, threads=1, steps=40, eval_every=40, local_batch=8)


def load(scale):
    def read(data_dir):
        generator = torch.Generator().manual_seed(0)
        splits = [Split(scale * torch.rand(16, 4, generator=generator), torch.arange(16) % CLASSES) for _ in range(2)]
        return Data(*splits)
    return read


def build(*more):
    return lambda: nn.Sequential(nn.Linear(4, CLASSES), *more)


sound = Classification("made", "sound", CLASSES, load(1), build(), defaults=KEYS)
softmax = Classification("made", "softmax", CLASSES, load(1), build(nn.Softmax(1)), defaults=KEYS)
log_softmax = Classification("made", "log_softmax", CLASSES, load(1), build(nn.LogSoftmax(1)), defaults=KEYS)
unscaled = Classification("made", "unscaled", CLASSES, load(255), build(), defaults=KEYS)


def job(name, **keys):
    return prepare(f"{__name__}:{name}", [keys], SingleWorker())


def ended(status=Status.COMPLETE, **measured):
    return Outcome(Stop(status, "", ExitCode.DONE), 40, measured, 40)


def logged(folder, losses):
    return save(log(trial(id=0, step_seconds=[0.1] * len(losses), losses=losses)), folder / "run.h5")


@pytest.mark.parametrize("name, said", [("sound", ""), ("log_softmax", ""), ("softmax", "outputs sum to 1"),
                                        ("unscaled", "inputs range from")])
def test_what_keeps_a_loss_at_chance_is_seen_in_a_pass(name, said):
    seen = look(job(name))
    assert seen.classes == CLASSES and seen.chance == pytest.approx(math.log(CLASSES))
    assert [said in one for one in seen.suspects()] == [True] * bool(said)


@pytest.mark.parametrize("first, last, said", [
    (3.0, 2.0, None), (2.0, 3.0, "did not learn"), (2.0, 2.0, "did not learn"),
    (9e4, math.log(CLASSES), "near chance"), (2.31, 2.28, "near chance"), (40.0, 2.9, "above chance")])
def test_a_loss_that_did_not_fall_or_ended_near_chance_is_told_in_numbers(first, last, said):
    lines = describe_course(LossCourse(first, last, 30), look(job("sound")))
    assert (said is None) == (lines == [])
    if said:
        assert said in lines[0] and f"{first:.4g} over the first 30 steps and {last:.4g}" in lines[0]
        assert "lower learning rate" in lines[-1]


def test_a_run_that_met_its_target_or_was_not_evaluated_is_left_alone(tmp_path):
    flat = logged(tmp_path, [2.5] * 40)
    aimed = job("sound", target="val/error<0.5")
    assert not_learned(aimed, ended(**{"val/error": 0.9}), flat)
    assert not_learned(aimed, ended(**{"val/error": 0.1}), flat) == []
    assert not_learned(job("sound", eval_every=0, target="none"), ended(), flat) == []


def test_few_steps_and_runs_that_did_not_end_say_nothing(tmp_path):
    assert not_learned(job("sound"), ended(), logged(tmp_path, [2.5] * 10)) == []
    assert not_learned(job("sound"), ended(Status.INCOMPLETE), "none.h5") == []


def test_a_run_that_diverged_on_unscaled_inputs_says_so():
    made = job("unscaled")
    with torch.no_grad():
        for parameter in made.model.parameters():
            parameter.fill_(math.nan)
    [said] = not_learned(made, ended(Status.INFEASIBLE), "none.h5")
    assert "inputs range from" in said
