"""The noise scale of jobs whose gradients are known example by example, against brute force over the training set."""
import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

from hvdscale.analysis.noise import noise_scale, read_noise
from hvdscale.modules import Dropout
from hvdscale.training.display import NoDisplay
from hvdscale.training.loop import train
from hvdscale.training.prepare import prepare
from hvdscale.training.run_log import NoLog
from hvdscale.workers.group import SingleWorker
from hvdscale.workload import Data, Split, Workload
from tests.factories.logs import log, trial
from tests.factories.workers import on_each
from tests.parallel.toy import Functional

EXAMPLES, SIZE, BATCH, STEPS = 333, 20, 30, 400


class Weights(nn.Module):
    def __init__(self, drop):
        super().__init__()
        self.weights = nn.Parameter(torch.ones(SIZE))
        self.drop = {"": nn.Identity, "ours": Dropout, "function": Functional}[drop](*[0.2] * bool(drop))

    def forward(self, x):
        return self.drop(x) @ self.weights


@dataclass(frozen=True)
class Linear(Workload):
    """The gradient of an example is the example itself; tr(Sigma) / |G|^2 is ``scale`` times the number of examples."""

    scale: float
    augmented: bool = False
    dataset, model, metrics, defaults = "linear", "weights", {"loss": "min"}, {}

    def examples(self):
        drawn = np.random.default_rng(4).normal(size=(EXAMPLES, SIZE))
        drawn -= drawn.mean(0)
        length = np.sqrt(np.trace(np.cov(drawn.T)) / (self.scale * EXAMPLES))
        return drawn + length / np.sqrt(SIZE)

    def load(self, data_dir):
        split = Split(torch.from_numpy(self.examples()), torch.zeros(EXAMPLES))
        shift = (lambda inputs, draws: inputs + draws.uniform(SIZE)) if self.augmented else None
        return Data(replace(split, augment=shift), Split(split.inputs[:3], split.labels[:3]))

    def build(self, drop=""):
        return Weights(drop)

    def loss(self, model, batch):
        return model(batch.inputs).sum(), len(batch.inputs)

    def measure(self, model, batch):
        return {"loss": self.loss(model, batch)}


linear_10, linear_50, linear_80 = (Linear(scale) for scale in (0.1, 0.5, 0.8))
augmented = Linear(0.5, augmented=True)


class Measures(NoLog):
    """Keeps the squared norms of each step."""

    def __init__(self):
        self.rows = []

    def step(self, step, lr, result):
        self.rows.append([result.measured[name] for name in ("local_sqnorm", "reduced_sqnorm", "local_examples")])


def settled(name, worker, **layer):
    job = dict(lr=1e-12, steps=STEPS, precision="fp64", global_batch=BATCH, noise_every=1, eval_every=0, threads=1,
               optimizer="sgd", warmup="none", ghost_batch=5, untimed_passes=0)
    return prepare(f"{__name__}:{name}", [{**job, **layer}], worker)


def measured(name, workers):
    """The noise of the run's log."""
    def of_rank(worker):
        job, kept = settled(name, worker), Measures()
        train(job, kept, NoDisplay(), worker, wish=lambda progress: set())
        return json.dumps(job.plan.as_record({})), kept.rows
    plan, rows = on_each(workers, of_rank)[0]
    return read_noise(log(trial(plan=plan, batch=BATCH, workers=workers, sqnorms=rows, step_seconds=[0.01] * STEPS)))[1]


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("share", [10, 50, 80])
def test_the_noise_scale_of_epochs_over_fixed_examples_is_that_of_brute_force(share, workers):
    found = measured(f"linear_{share}", workers)
    scale = noise_scale([found])
    assert scale.low < share / 100 * EXAMPLES < scale.high          # two standard errors to each side
    examples = Linear(share / 100).examples()
    assert scale.cov_trace == pytest.approx(np.trace(np.cov(examples.T)), rel=0.02)
    of_population = noise_scale([replace(found, grad_sqnorm=found.grad_sqnorm - found.cov_trace / EXAMPLES)])
    assert share == 10 or of_population.low > share / 100 * EXAMPLES


@pytest.mark.parametrize("name, layer, fixed", [
    ("linear_50", {}, EXAMPLES), ("linear_50", dict(train_subset=100), 100), ("augmented", {}, None),
    *(("linear_50", dict(model_args=dict(drop=drop)), None) for drop in ("ours", "function")),
    ("linear_50", dict(noise_every=0), None)])
def test_the_plan_has_the_examples_unless_a_visit_draws_something(name, layer, fixed):
    assert settled(name, SingleWorker(), **layer).plan.fixed_examples == fixed
