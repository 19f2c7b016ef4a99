"""Random jobs over every setting that a sequence of updates depends on, each to be run at two worker counts.

    job = draw(seed)                        the same for the same seed
    run(job.layer, job.name, workers=3)     a Run; the error it is refused with, before its first step

A job's seed is all that is needed to repeat it:  python -m tests.factories.random_jobs SEED ..."""
import sys
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import nn

from hvdscale.errors import HvdscaleError
from hvdscale.modules import BatchNorm, Dropout
from hvdscale.training.display import NoDisplay
from hvdscale.training.loop import train
from hvdscale.training.prepare import prepare
from hvdscale.training.run_log import NoLog
from hvdscale.workers.group import SingleWorker
from hvdscale.workload import Classification, Data, MapSplit, Split
from tests.factories.jobs import Sentences, Tokens, padded
from tests.factories.workers import on_each
from tests.parallel.toy import CLASSES, SIDE, Functional, noise_and_flip

MADE = "tests.factories.random_jobs"
ADAPTIVE = ("adam", "adamw", "lamb")
STEPS = 7


class Net(nn.Module):
    """norm: ours, torch's, that over an example alone, or none; drop: ours, torch's, or torch's function. The layer
    before a normalization has no bias, whose gradient would be rounding alone."""

    def __init__(self, norm="", drop="", dropout=0.3, unused=False):
        super().__init__()
        norms = {"ours": [BatchNorm(4)], "torch": [nn.BatchNorm2d(4)], "group": [nn.GroupNorm(2, 4)], "": []}[norm]
        drops = {"ours": [Dropout(dropout)], "torch": [nn.Dropout(dropout)], "function": [Functional(dropout)], "": []}
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3, bias=not norms), *norms, nn.Tanh(), nn.Flatten(), *drops[drop],
                                    nn.Linear(64, CLASSES))
        self.spare = nn.Linear(2, 2) if unused else None

    def forward(self, x):
        return self.layers(x)


def load(data_dir=None, augmented=False, examples=53):
    drawn = np.random.default_rng(3)

    def split(n):
        inputs, labels = drawn.normal(size=(n, 1, SIDE, SIDE)), drawn.integers(CLASSES, size=n)
        return Split(torch.from_numpy(inputs), torch.from_numpy(labels))
    train = split(examples)
    return Data(replace(train, augment=noise_and_flip) if augmented else train, split(31), split(17))


class Words(Tokens):
    """Sentences of several lengths: the mean is over words, and a pass is padded to its longest."""

    def load(self, data_dir, examples=41):
        return Data(MapSplit(Sentences(examples, 1, drop=0.3), padded), MapSplit(Sentences(17, 2), padded),
                    train_eval=MapSplit(Sentences(examples, 1), padded))

    def build(self, drop=False):
        return nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 8), nn.Tanh(), *[Dropout(0.2)] * drop, nn.Linear(8, 3))


images = Classification("random", "images", CLASSES, load, Net, lambda x, dtype: x.to(dtype), {})
words = Words()


@dataclass(frozen=True)
class RandomJob:
    """A workload under one layer of settings, and how its other run is computed."""

    seed: int
    name: str
    layer: dict
    workers: int
    accumulate: int


def draw(seed):
    """The job of this seed."""
    drawn = np.random.default_rng(seed)

    def pick(*choices):
        return choices[drawn.integers(len(choices))]
    layer = dict(steps=STEPS, precision="fp64", seed=int(drawn.integers(100)), target="none", threads=1,
                 eval_every=pick(2, 3, 4), eval_batch=int(drawn.integers(3, 20)), untimed_passes=pick(0, 1, 2))
    layer |= pick(_images, _images, _words)(drawn, pick) | _batch(drawn, pick) | _optimizer(drawn, pick)
    layer |= _rate(pick, layer)
    layer |= dict(bucket_mib=pick(0.0, 0.0, 1e-4), **pick(
        dict(noise_every=0), dict(noise_every=1), dict(noise_every=2)))
    layer |= pick({}, {}, dict(average="ema", average_half_life=20), dict(average="tail", average_start="2 steps"))
    return RandomJob(seed, f"{MADE}:{layer.pop('workload')}", layer, pick(2, 2, 3, 3, 4, 5, 6, 8), pick(1, 1, 2))


def _images(drawn, pick):
    unused = pick(True, False, False, False)
    return dict(workload="images", label_smoothing=pick(0.0, 0.1), unused_parameters="zeros" if unused else "error",
                data_args=dict(augmented=pick(True, False), examples=int(drawn.integers(30, 60))),
                model_args=dict(norm=pick("", "ours", "torch", "group"), drop=pick("", "ours", "torch", "function"),
                                unused=unused))


def _words(drawn, pick):
    return dict(workload="words", data_args=dict(examples=int(drawn.integers(25, 60))),
                model_args=dict(drop=pick(True, False)))


def _batch(drawn, pick):
    first = int(drawn.integers(5, 27))
    groups = dict(group_by_group=pick("auto", "auto", "auto", "always"))
    groups |= pick({}, dict(ghost_batch=int(drawn.integers(2, 9))), *[dict(ghost_batch=2)] * 3,
                   dict(ghost_batch="global"))
    if pick(True, False, False):
        sizes = [[0, first], [2, first + int(drawn.integers(1, 9))], [5, first + int(drawn.integers(9, 17))]]
        return dict(batch_schedule=sizes, batch_schedule_lr=pick("rule", "stay"), **groups)
    return dict(global_batch=first, last_batch=pick("carry", "short", "short", "drop"), **groups)


def _optimizer(drawn, pick):
    layer = dict(weight_decay=pick(0.0, 1e-3), **pick({}, {}, dict(clip_norm=pick(0.1, 1.0))))
    if layer["weight_decay"]:
        layer |= dict(decay_norm_and_bias=pick(True, False))
    name = pick("sgd", "momentum", "nesterov", "lars", "muon", *ADAPTIVE, "torch.optim:RMSprop", "torch.optim:Adagrad")
    layer |= dict(optimizer=name, lr=pick(0.01, 0.03))
    if name in ("momentum", "nesterov"):
        layer |= pick({}, dict(lr_in_velocity=True), dict(momentum_half_life=float(drawn.integers(20, 200))))
    return layer


def _rate(pick, layer):
    rule = pick("linear", "sqrt", "none", "power:0.7", *(["adam_sqrt"] if layer["optimizer"] in ADAPTIVE else []))
    rate = dict(lr_rule=rule, base_batch=pick(8, 16), **pick({}, dict(max_lr_factor=1.5)))
    rate |= pick(dict(warmup="none"), dict(warmup="gradual", warmup_steps=2), dict(warmup="constant", warmup_steps=1))
    return rate | pick({}, dict(decay="linear"), dict(decay="cosine"), dict(decay="step", decay_at="[3, 5] steps"),
                       dict(decay="plateau", decay_patience=0, decay_threshold=0.5, decay_metric=(
                           "val/nats" if layer["workload"] == "words" else "val/cross_entropy")))


@dataclass
class Run(NoLog):
    """What a run measures, and its weights, averages and buffers at the end.

    noise, skipped  measured gradient norms, and the steps without an update, which ranks compute alike"""

    losses: list = field(default_factory=list)
    evaluations: list = field(default_factory=list)
    state: list = field(default_factory=list)
    noise: list = field(default_factory=list)
    skipped: list = field(default_factory=list)

    def step(self, step, lr, result):
        self.losses.append(result.loss)
        self.noise += [value for name, value in result.measured.items() if "sqnorm" in name or "local_ex" in name]
        self.skipped += [step] * bool(result.measured.get("skipped_updates"))

    def evaluation(self, step, examples, train_seconds, measured):
        self.evaluations += [value for name, value in sorted(measured.items()) if not np.isnan(value)]

    def distances(self, other):
        """Of losses, evaluations and state, each as a share of the other's norm."""
        return [np.linalg.norm(np.subtract(ours, theirs)) / max(np.linalg.norm(theirs), 1e-300)
                for ours, theirs in ((self.losses, other.losses), (self.evaluations, other.evaluations),
                                     (self.state, other.state))]


def run(layer, name, workers=1):
    """What rank 0 of these workers makes of the job, all ranks having the same; the error if it is refused before the
    first step."""
    def of_rank(worker):
        try:
            job = prepare(name, [layer], worker)
        except HvdscaleError as error:
            return error
        found = Run()
        train(job, found, NoDisplay(), worker, wish=lambda progress: set())
        tensors = [*job.model.parameters(), *(b for b in job.model.buffers() if b.is_floating_point())]
        tensors += job.average.state()["averages"] if job.average else []
        found.state = torch.cat([values.detach().flatten() for values in tensors]).tolist()
        return found
    first, *others = on_each(workers, of_rank) if workers > 1 else [of_rank(SingleWorker())]
    assert all(str(other) == str(first) if isinstance(first, HvdscaleError) else other == first for other in others)
    return first


if __name__ == "__main__":
    torch.set_num_threads(1)
    for seed in map(int, sys.argv[1:]):
        drawn = draw(seed)
        alone, other = run(drawn.layer, drawn.name), run({**drawn.layer, "accumulate": drawn.accumulate}, drawn.name,
                                                         drawn.workers)
        refused = [one for one in (alone, other) if isinstance(one, HvdscaleError)]
        print(drawn, *(refused or other.distances(alone)), sep="\n  ", flush=True)
