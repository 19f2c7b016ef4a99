"""Parameters whose gradient is rounding alone are named where the optimizer makes steps of them, and no others."""
from dataclasses import dataclass
from typing import Callable

import pytest
from torch import nn

from hvdscale.doctor.checks import rounding
from hvdscale.doctor.finding import Verdict
from hvdscale.doctor.probe_step import make_sample
from hvdscale.modules import BatchNorm, Dropout
from hvdscale.training.prepare import prepare
from hvdscale.workers.group import SingleWorker
from tests.factories.faulty_jobs import CLASSES, Job


@dataclass(frozen=True)
class Made(Job):
    """The sound job with another model, 1x6x6 -> classes."""

    make: Callable[[], nn.Module]

    def build(self):
        return self.make()


class Attention(nn.Module):
    """Rows of an image attend to each other, then the mean over them."""

    def __init__(self, bias):
        super().__init__()
        self.attention, self.out = nn.MultiheadAttention(6, 2, bias=bias, batch_first=True), nn.Linear(6, CLASSES)

    def forward(self, x):
        rows = x.flatten(1, 2)
        return self.out(self.attention(rows, rows, rows, need_weights=False)[0].mean(1))


class Pooling(nn.Module):
    """The mean over the rows of an image, weighted by a softmax of their scores."""

    def __init__(self, bias):
        super().__init__()
        self.score, self.out = nn.Linear(6, 1, bias=bias), nn.Linear(6, CLASSES)

    def forward(self, x):
        rows = x.flatten(1, 2)
        return self.out((self.score(rows).softmax(1) * rows).sum(1))


class Added(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


class Looked(nn.Module):
    """An embedding of whole numbers, most of which no example has."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(1000, 3)

    def forward(self, x):
        return self.table((x.flatten(1) * 3).long().clamp(0, 9)).flatten(1)


def convolved(*after, bias=True, channels=4):
    return nn.Sequential(nn.Conv2d(1, channels, 3, bias=bias), *after, nn.Tanh(), nn.Flatten(),
                         nn.Linear(16 * channels, CLASSES))


def linear(*after, bias=True):
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8, bias=bias), *after, nn.ReLU(), nn.Linear(8, CLASSES))


def zeroed(norm):
    nn.init.zeros_(norm.weight)
    return norm


WITH = {
    "torchs_norm": (lambda: convolved(nn.BatchNorm2d(4)), "0.bias"),
    "our_norm": (lambda: convolved(BatchNorm(4)), "0.bias"),
    "torchs_norm_of_rows": (lambda: linear(nn.BatchNorm1d(8)), "1.bias"),
    "our_norm_of_rows": (lambda: linear(BatchNorm(8)), "1.bias"),
    "instance_norm": (lambda: convolved(nn.InstanceNorm2d(4)), "0.bias"),
    "group_norm_by_channel": (lambda: convolved(nn.GroupNorm(4, 4)), "0.bias"),
    "two_norms": (lambda: convolved(BatchNorm(4), nn.ReLU(), nn.Conv2d(4, 4, 1), BatchNorm(4)), "0.bias, 3.bias"),
    "block_that_starts_at_zero": (lambda: convolved(Added(nn.Conv2d(4, 4, 1), zeroed(BatchNorm(4)))), "1.0.bias"),
    "attention": (lambda: Attention(True), "attention.in_proj_bias"),
    "pooling": (lambda: Pooling(True), "score.bias")}
WITHOUT = {
    "torchs_norm_alone": lambda: convolved(nn.BatchNorm2d(4), bias=False),
    "our_norm_alone": lambda: convolved(BatchNorm(4), bias=False),
    "no_norm": convolved,
    "rows": linear,
    "layer_norm": lambda: linear(nn.LayerNorm(8)),
    "group_norm": lambda: convolved(nn.GroupNorm(2, 4)),
    "dropout": lambda: convolved(Dropout(0.5), nn.Dropout(0.2)),
    "attention_alone": lambda: Attention(False),
    "pooling_alone": lambda: Pooling(False),
    "embedding": lambda: nn.Sequential(Looked(), nn.Linear(108, CLASSES))}
OPTIMIZERS = ["adam", "adamw", "lamb", "muon", "torch.optim:Adafactor"]
globals().update({name: Made(*(given if isinstance(given, tuple) else (given,))[:1])
                  for name, given in {**WITH, **WITHOUT}.items()})


def found(name, **layer):
    job = prepare(f"{__name__}:{name}", [dict(threads=1, lr=0.01, **layer)], SingleWorker())
    return rounding(make_sample(job, 46))


@pytest.mark.parametrize("number, name", [*enumerate(WITH)])
def test_a_parameter_that_the_loss_does_not_depend_on_is_named(number, name):
    finding = found(name, optimizer=OPTIMIZERS[number % 5])
    assert finding.verdict == Verdict.WARNED
    assert finding.differs.startswith(f"the gradient of {WITH[name][1]} is rounding; {OPTIMIZERS[number % 5]} makes")


@pytest.mark.parametrize("name", WITHOUT)
def test_no_parameter_of_a_model_without_any_is_named(name):
    for optimizer in OPTIMIZERS:
        finding = found(name, optimizer=optimizer)
        assert finding.verdict == Verdict.PASSED and "none has a gradient" in finding.looked_at


@pytest.mark.parametrize("layer, amplified", [
    (dict(optimizer="sgd"), False), (dict(optimizer="nesterov"), False), (dict(optimizer="lars"), False),
    (dict(optimizer="adam", epsilon=1e6), False), (dict(optimizer="adamw", weight_decay=0.1), True),
    *((dict(optimizer="adam", precision=precision), True) for precision in ("fp64", "bf16", "fp16")),
    (dict(optimizer="torch.optim:RMSprop"), True), (dict(optimizer="torch.optim:SGD"), False)])
def test_a_harmless_one_is_not_warned_of(layer, amplified):
    finding = found("our_norm", **layer)
    assert finding.verdict == (Verdict.WARNED if amplified else Verdict.PASSED)
    assert "0.bias" in (finding.differs or finding.looked_at)
