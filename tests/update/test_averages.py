"""Averages of weights against their closed forms, and optimizers that evaluate other weights than they train."""
import copy

import numpy as np
import pytest
import torch
from torch import nn

from hvdscale.analysis.steps import RunToTarget
from hvdscale.analysis.trials import read_trials
from hvdscale.log.reader import read_log
from hvdscale.target import Target
from hvdscale.training.display import NoDisplay
from hvdscale.training.loop import train
from hvdscale.training.outputs import open_run_log
from hvdscale.training.prepare import prepare
from hvdscale.update.optimizers import WeightAverage, evaluation_weights
from hvdscale.workers.group import SingleWorker
from hvdscale.workload import Classification
from tests.factories.plans import settled
from tests.parallel import toy

EMA = {"average": "ema", "average_half_life": 50.0}
TAIL = {"average": "tail", "average_start_steps": 3}


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 2), nn.BatchNorm1d(2)


def averaged(plan, course, sizes):
    """What an average holds after each of these values of all weights, and the model, whose weights are the last."""
    model = Normed().double()
    fill(model, course[0])
    average, found = WeightAverage(plan, model), []
    for step, (value, size) in enumerate(zip(course[1:], sizes)):
        fill(model, value)
        average.update(step, size)
        with average.applied():
            found.append([model.linear.weight[0, 0].item(), model.norm.running_var[1].item()])
    return found, model


def fill(model, value):
    with torch.no_grad():
        for tensor in (*model.parameters(), model.norm.running_mean, model.norm.running_var):
            tensor.fill_(value)


@pytest.mark.parametrize("sizes", [[10] * 6, [10, 10, 20, 40, 40, 80]])
def test_an_exponential_average_forgets_half_in_its_half_life_of_examples(sizes):
    course = [1.0, 4.0, -2.0, 0.5, 3.0, 8.0, 1.5]
    found, model = averaged(settled(**EMA), course, sizes)
    expected = course[0]
    for (weight, variance), value, size in zip(found, course[1:], sizes):
        expected = 2 ** (-size / 50) * expected + (1 - 2 ** (-size / 50)) * value
        assert weight == variance == pytest.approx(expected, rel=1e-14)
    assert model.linear.weight[0, 0] == 1.5                     # afterwards it has its own weights
    assert model.norm.num_batches_tracked == 0


def test_a_tail_is_the_mean_from_its_start():
    course = [1.0, 4.0, -2.0, 0.5, 3.0, 8.0, 1.5]
    found, _ = averaged(settled(**TAIL), course, [10] * 6)
    expected = [*course[1:4], 3.0, (3.0 + 8.0) / 2, (3.0 + 8.0 + 1.5) / 3]
    assert [weight for weight, _ in found] == pytest.approx(expected, rel=1e-14)
    assert settled(average="tail").average_start == 50          # by default half of the budget


def test_after_an_evaluation_of_the_average_the_weights_are_there_to_the_bit():
    model = Normed()
    average = WeightAverage(settled(**EMA), model)
    with torch.no_grad():
        model.linear.weight.add_(torch.rand(2, 3))
    average.update(0, 7)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError), average.applied():
        assert not torch.equal(model.linear.weight, before["linear.weight"])
        raise RuntimeError("the workload's own")
    assert all(torch.equal(values, before[name]) for name, values in model.state_dict().items())


# optimizers with train() and eval()

class Averaging(torch.optim.SGD):
    """Trains y and evaluates x, halfway between y and the first weights; as strict as schedule-free optimizers."""

    def __init__(self, params, lr):
        super().__init__(params, lr)
        self.first = [p.detach().clone() for group in self.param_groups for p in group["params"]]
        self.training = False
        self.moved = False

    def _move(self, share):
        if self.moved:
            for p, first in zip((p for group in self.param_groups for p in group["params"]), self.first):
                p.data.lerp_(first, share)

    def train(self):
        if not self.training:
            self._move(-1.0)
        self.training = True

    def eval(self):
        if self.training:
            self._move(0.5)
        self.training = False

    def step(self, closure=None):
        if not self.training:
            raise Exception("Optimizer was not in train mode when step is called.")
        self.moved = True
        return super().step(closure)


def run(tmp_path, name, workload="tests.parallel.toy:WORKLOAD", **keys):
    keys = {"optimizer": f"{__name__}:Averaging", "lr": 0.3, "steps": 20, "threads": 1, "target": "none",
            "noise_every": 0, "log": str(tmp_path / f"{name}.h5"), "save_model": str(tmp_path / f"{name}.pt"), **keys}
    job = prepare(workload, [keys], SingleWorker())
    with open_run_log(job, SingleWorker()) as run_log:
        outcome = train(job, run_log, NoDisplay(), SingleWorker())
        run_log.close()
    job.save_model(outcome.stop, SingleWorker())
    return job, read_log(keys["log"]), torch.load(keys["save_model"], weights_only=True)


def test_evaluations_have_the_optimizers_own_weights_and_leave_no_trace(tmp_path):
    often, log, saved = run(tmp_path, "often", eval_every=1)
    seldom, _, same = run(tmp_path, "seldom", eval_every=20)
    for name, trained in often.model.state_dict().items():
        assert torch.equal(trained, seldom.model.state_dict()[name]) and torch.equal(saved[name], same[name])
    assert any(not torch.equal(saved[name], trained) for name, trained in often.model.named_parameters())
    with evaluation_weights(often.model, often.optimizer):
        assert all(torch.equal(saved[name], p) for name, p in often.model.named_parameters())
        assert not often.optimizer.training
    assert often.optimizer.training
    _, as_it_is, _ = run(tmp_path, "sgd", eval_every=1, optimizer="sgd")
    assert np.array_equal(log.steps["loss"], as_it_is.steps["loss"])
    assert not np.array_equal(log.evaluations["val/cross_entropy"], as_it_is.evaluations["val/cross_entropy"])


def test_save_model_has_the_average_where_there_is_one(tmp_path):
    job, log, saved = run(tmp_path, "tail", optimizer="sgd", **TAIL)
    with job.average.applied():
        assert all(torch.equal(saved[name], values) for name, values in job.model.state_dict().items())
    assert not np.array_equal(log.evaluations["val/cross_entropy"], log.evaluations["val/averaged_cross_entropy"])
    assert log.evaluations["val/cross_entropy"][0] == log.evaluations["val/averaged_cross_entropy"][0]


class Named(Classification):
    metrics = {"c4/loss": "min", "Top-1 err (%)": "min"}

    def measure(self, model, batch):
        return dict(zip(self.metrics, super().measure(model, batch).values()))


NAMED = Named(**vars(toy.WORKLOAD))


def test_metrics_are_trained_to_and_averaged_whatever_their_names_hold(tmp_path):
    _, log, _ = run(tmp_path, "named", workload=f"{__name__}:NAMED", optimizer="sgd", target="val/c4/loss<99",
                    keep_going=True, **TAIL)
    assert {"val/c4/loss", "val/averaged_c4/loss", "val/averaged_Top-1 err (%)"} < set(log.evaluations)
    assert not np.array_equal(log.evaluations["val/c4/loss"], log.evaluations["val/averaged_c4/loss"])
    assert RunToTarget(read_trials(log)[0], Target.parse("val/averaged_c4/loss<99")).steps == 0
