"""Jobs for the tests of hvdscale-doctor: one with everything, which is sound, and one for each fault planted in it."""
import os
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from hvdscale.modules import BatchNorm, Dropout
from hvdscale.workload import Batch, Data, MapSplit, Split, Workload

EXAMPLES, SIDE, CLASSES = (61, 31, 17), 6, 5


def rank():
    return int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))


class Net(nn.Module):
    """Convolution, batch-norm and dropout; ``norm`` and ``drop`` make the layers."""

    def __init__(self, norm=lambda: BatchNorm(4), drop=lambda: Dropout(0.5)):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3), norm(), nn.Tanh(), nn.Flatten(), drop(), nn.Linear(64, CLASSES))

    def forward(self, x):
        return self.layers(x)


def images(n, seed):
    drawn = np.random.default_rng(seed)
    inputs, labels = drawn.normal(size=(n, 1, SIDE, SIDE)), drawn.integers(CLASSES, size=n)
    return torch.from_numpy(inputs).float(), torch.from_numpy(labels)


def noise(inputs, draws):
    return inputs + draws.uniform(SIDE * SIDE).view(inputs.shape).float()


class Job(Workload):
    """The sound one."""

    dataset, model = "made", "net"
    metrics = {"cross_entropy": "min", "error": "min"}
    defaults = dict(lr=0.05, base_batch=16, local_batch=16, epochs=2.0, weight_decay=1e-3, ghost_batch=8)

    def load(self, data_dir):
        train, val, test = (Split(*images(n, seed)) for seed, n in enumerate(EXAMPLES))
        return Data(replace(train, augment=noise), val, test)

    def build(self):
        return Net()

    def loss(self, model, batch):
        inputs, labels = batch
        return functional.cross_entropy(model(inputs), labels, reduction="sum"), len(labels)

    def measure(self, model, batch):
        inputs, labels = batch
        logits = model(inputs)
        return {"cross_entropy": (functional.cross_entropy(logits, labels, reduction="sum"), len(labels)),
                "error": ((logits.argmax(1) != labels).sum(), len(labels))}


class TorchsOwn(Job):
    """The same with torch's modules, which run group by group; also sound."""

    def build(self):
        return Net(lambda: nn.BatchNorm2d(4), lambda: nn.Dropout(0.5))


class TorchsDropout(Job):
    """Dropout of torch's alone."""

    def build(self):
        return Net(nn.Identity, lambda: nn.Dropout(0.5))


class RankInBuild(Job):
    def build(self):
        torch.manual_seed(rank())
        return Net()


class RankInAugmentation(Job):
    def load(self, data_dir):
        def augment(inputs, draws):
            return inputs + torch.rand(inputs.shape, generator=torch.Generator().manual_seed(rank()))[:1, :, :1, :1]
        data = super().load(data_dir)
        return replace(data, train=replace(data.train, augment=augment))


class MeanLoss(Job):
    def loss(self, model, batch):
        inputs, labels = batch
        return functional.cross_entropy(model(inputs), labels), len(labels)


class CountOfOne(Job):
    def loss(self, model, batch):
        inputs, labels = batch
        return functional.cross_entropy(model(inputs), labels), 1


class Pairs(Job):
    """A loss over the pairs of a batch."""

    def loss(self, model, batch):
        inputs, labels = batch
        logits = model(inputs)
        return (logits - logits.mean(0)).square().sum(), len(labels)


@dataclass(frozen=True)
class Padded(Split):
    """Batches are filled up to a multiple of four with the first examples, as DistributedSampler fills shares."""

    def take(self, visits):
        missing = -len(visits.indices) % 4
        filled = np.resize(visits.indices, len(visits.indices) + missing)
        return super().take(visits._replace(indices=filled, epochs=np.resize(visits.epochs, len(filled))))


class PaddedSampler(Job):
    def load(self, data_dir):
        return Data(*(Padded(*images(n, seed)) for seed, n in enumerate(EXAMPLES)))


class Standardised(nn.Module):
    """Batch-norm by hand, over whatever is in the batch."""

    def forward(self, x):
        return (x - x.mean(0)) / (x.std(0) + 0.1)


class LocalNorm(Job):
    def build(self):
        return Net(norm=Standardised)


class Images(Dataset):
    """Images with noise from a generator of the data set's own."""

    def __init__(self):
        self.inputs, self.labels = images(EXAMPLES[0], 0)
        self.generator = np.random.default_rng(0)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.inputs[i] + float(self.generator.normal()), self.labels[i]


class NonDeterministic(Job):
    def load(self, data_dir):
        return replace(super().load(data_dir), train=MapSplit(Images()))


class TooLong(Images):
    """Its length is not that of the examples it gives."""

    def __init__(self):
        super().__init__()
        self.generator = np.random.RandomState(0)

    def __len__(self):
        return len(self.labels) + 1

    def __getitem__(self, i):
        return self.inputs[i], self.labels[i]


class TooLongDataset(Job):
    def load(self, data_dir):
        return replace(super().load(data_dir), val=MapSplit(TooLong()))


class MetricCount(Job):
    def measure(self, model, batch):
        inputs, labels = batch
        sums = super().measure(model, Batch(inputs, labels))
        return {**sums, "error": (sums["error"][0] / len(labels), 1)}


class MetricMean(Job):
    def measure(self, model, batch):
        sums = super().measure(model, batch)
        return {**sums, "error": (sums["error"][0] / len(batch), len(batch))}


class OwnGenerator(nn.Module):
    """Dropout from a generator that nobody seeds."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x):
        return x * (torch.rand(x.shape, generator=self.generator) < 0.5) if self.training else x


class OwnGeneratorModel(Job):
    def build(self):
        return Net(drop=OwnGenerator)


class Decaying(torch.optim.SGD):
    """Takes all parameters towards zero."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.mul_(1 - group["lr"] * 1e-2)


class Counted:
    updates = 0


class Pickled(torch.optim.SGD):
    """Has an object of a class in its state."""

    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["counted"] = Counted()


class Forgetful(torch.optim.SGD):
    """Has a state that its state_dict lacks."""

    updates = 0

    def step(self, closure=None):
        self.updates += 1
        for group in self.param_groups:
            group["lr"] *= self.updates
        super().step()


sound, torchs_own, torchs_dropout = Job(), TorchsOwn(), TorchsDropout()
rank_in_build, rank_in_augmentation = RankInBuild(), RankInAugmentation()
mean_loss, count_of_one, pairs, padded, local_norm = MeanLoss(), CountOfOne(), Pairs(), PaddedSampler(), LocalNorm()
non_deterministic, too_long = NonDeterministic(), TooLongDataset()
metric_count, metric_mean, own_generator = MetricCount(), MetricMean(), OwnGeneratorModel()
