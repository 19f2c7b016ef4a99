"""A small workload for tests: 53 random 6x6 images in 5 classes, a model with convolution and dropout."""
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from hvdscale.modules import BatchNorm, Dropout
from hvdscale.plan.settings import Settings
from hvdscale.plan.settle import Place, settle
from hvdscale.update.optimizers import make_optimizer
from hvdscale.update.model import fit_to_groups, make_model, share_model
from hvdscale.update.replicas import LocalSteps, outer_optimizer
from hvdscale.update.step import DataParallelStep
from hvdscale.workload import Classification, Data, Split

TRAIN, VAL, TEST, CLASSES, SIDE = 53, 31, 17, 5, 6
DEFAULTS = dict(lr=0.05, base_batch=8, local_batch=8, optimizer="nesterov", momentum=0.9, weight_decay=1e-3, steps=50,
                label_smoothing=0.1, warmup_steps=5, ghost_batch=4)


@dataclass(frozen=True)
class Counted(Split):
    """A split that notes which examples are taken."""

    taken: Counter

    def take(self, visits):
        self.taken.update(visits.indices.tolist())
        return super().take(visits)


class Net(nn.Module):
    """norm: "", ours or torch's; drop: ours, torch's, or torch's function, which no module shows."""

    def __init__(self, dropout=0.0, norm="", drop="ours"):
        super().__init__()
        norms = {"ours": [BatchNorm(4)], "torch": [nn.BatchNorm2d(4)], "": []}[norm]
        drop = {"ours": Dropout, "torch": nn.Dropout, "function": Functional}[drop](dropout)
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3), *norms, nn.Tanh(), nn.Flatten(), drop, nn.Linear(64, CLASSES))

    def forward(self, x):
        return self.layers(x)


class Functional(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        return nn.functional.dropout(x, self.p, self.training)


def noise_and_flip(inputs, draws):
    """Of each example: half are mirrored, all get noise."""
    u = draws.uniform(1 + SIDE * SIDE)
    flipped = torch.where(u[:, :1, None, None] < 0.5, inputs.flip(3), inputs)
    return flipped + u[:, 1:].view(inputs.shape)


def load(data_dir=None):
    drawn = np.random.default_rng(3)

    def split(n):
        inputs, labels = drawn.normal(size=(n, 1, SIDE, SIDE)), drawn.integers(CLASSES, size=n)
        return Split(torch.from_numpy(inputs), torch.from_numpy(labels))
    return Data(split(TRAIN), split(VAL), split(TEST))


def load_augmented(data_dir=None):
    data = load()
    return replace(data, train=replace(data.train, augment=noise_and_flip))


WORKLOAD = Classification("toy", "net", CLASSES, load, Net, lambda x, dtype: x.to(dtype), DEFAULTS)


def settled(workers, **layer):
    return settle(Settings.build(DEFAULTS, layer), WORKLOAD, TRAIN, VAL, Place(workers, workers, workers))


def trajectory(workers, steps, augmented=False, **layer):
    """Losses of the steps, all parameters after them as one float64 vector, and all buffers as another."""
    plan = settled(workers.size, **layer)
    device, train = torch.device("cpu"), (load_augmented() if augmented else load()).train
    model = make_model(WORKLOAD, plan, device)
    share_model(model, workers)
    plan, _ = fit_to_groups(plan, layer.get("group_by_group", "auto"), WORKLOAD, train, model, device)
    optimizer = outer_optimizer(plan, model, make_optimizer(plan, model))
    kind = LocalSteps if plan.local_steps else DataParallelStep
    step = kind(plan, WORKLOAD, train, model, optimizer, workers, device)
    step.warm_up(1)
    losses = [step(i, plan.schedule.lr_at(i), set()).loss for i in range(steps)]
    step.finish()
    return losses, *([value for tensor in tensors for value in tensor.detach().double().flatten().tolist()]
                     for tensors in (model.parameters(), model.buffers()))


def trajectories(workers, given):
    return [trajectory(workers, **configuration) for configuration in given]
