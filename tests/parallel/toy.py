"""A small workload for tests: 53 random 6x6 images in 5 classes, a model with convolution and dropout."""
from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from hvdscale.config import Settings
from hvdscale.dropout import Dropout
from hvdscale.job import make_optimizer
from hvdscale.plan import Place, settle
from hvdscale.step import DataParallelStep
from hvdscale.train import make_model, share_model
from hvdscale.workload import Data, Split, Workload

TRAIN, VAL, TEST, CLASSES, SIDE = 53, 31, 17, 5, 6
DEFAULTS = dict(lr=0.05, base_batch=8, local_batch=8, optimizer="nesterov", momentum=0.9, weight_decay=1e-3, steps=50,
                label_smoothing=0.1, warmup_steps=5, ghost_batch=4)


@dataclass(frozen=True)
class Counted(Split):
    """A split that notes which examples are taken."""

    taken: Counter

    def take(self, indices):
        self.taken.update(indices.tolist())
        return super().take(indices)


class Net(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), Dropout(dropout), nn.Linear(64, CLASSES))

    def forward(self, x):
        return self.layers(x)


def load(data_dir=None):
    drawn = np.random.default_rng(3)

    def split(n):
        inputs, labels = drawn.normal(size=(n, 1, SIDE, SIDE)), drawn.integers(CLASSES, size=n)
        return Split(torch.from_numpy(inputs), torch.from_numpy(labels))
    return Data(split(TRAIN), split(VAL), split(TEST))


WORKLOAD = Workload("toy", "net", CLASSES, load, Net, lambda x, dtype: x.to(dtype), DEFAULTS)


def settled(workers, **layer):
    return settle(Settings.build(DEFAULTS, layer), WORKLOAD, TRAIN, VAL, Place(workers, workers, workers))


def trajectory(workers, steps, **layer):
    """Losses of the steps, and all parameters after them as one float64 vector."""
    plan = settled(workers.size, **layer)
    device = torch.device("cpu")
    model = make_model(WORKLOAD, plan, device)
    share_model(model, workers)
    step = DataParallelStep(plan, WORKLOAD, load().train, model, make_optimizer(plan, model), workers, device)
    step.warm_up(1)
    losses = [step(i, plan.schedule.lr_at(i), set()).loss for i in range(steps)]
    return losses, torch.cat([p.detach().double().flatten() for p in model.parameters()]).tolist()
