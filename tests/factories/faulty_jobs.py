"""Jobs for the tests of hvdscale-doctor: one with everything, which is sound, and one for each fault planted in it."""
import os
import socket
import time
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

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


@dataclass(frozen=True)
class Leaking(Job):
    """Validation examples that are training examples: the same split or data set, or its first or last examples."""

    how: str

    def load(self, data_dir):
        inputs, labels = images(EXAMPLES[0], 0)
        train, test = Split(inputs, labels), Split(*images(EXAMPLES[2], 2))
        if self.how == "data set":
            items = TensorDataset(inputs, labels)
            return Data(MapSplit(items), MapSplit(items), MapSplit(items, examples=0))
        val = {"split": train, "first": train.first(20), "last": Split(inputs[-20:], labels[-20:]),
               "apart": Split(*images(20, 1)), "alike": Split(inputs[:1].expand(20, -1, -1, -1), labels[:1].expand(20))}
        if self.how == "alike":
            train = Split(inputs[:1].expand(60, -1, -1, -1), labels[:1].expand(60))
        return Data(replace(train, augment=noise), val[self.how], test)


class TorchsOwn(Job):
    """The same with torch's modules, which run group by group; also sound."""

    def build(self):
        return Net(lambda: nn.BatchNorm2d(4), lambda: nn.Dropout(0.5))


class TorchsDropout(Job):
    """Dropout of torch's alone."""

    def build(self):
        return Net(nn.Identity, lambda: nn.Dropout(0.5))


# what a seed may be taken from, that is not the same in every process of a job
SEEDS = {"RANK": lambda: int(os.environ.get("RANK", 0)), "LOCAL_RANK": lambda: int(os.environ.get("LOCAL_RANK", 0)),
         "SLURM_PROCID": lambda: int(os.environ.get("SLURM_PROCID", 0)), "mpirun": rank,
         "horovod": lambda: horovod().rank(), "workers": lambda: horovod().size(), "torch": torch.distributed.get_rank,
         "process": os.getpid, "second": lambda: int(time.time()), "host": lambda: len(socket.gethostname())}
ENTROPY = int.from_bytes(os.urandom(4), "little")           # the module's own, drawn as it is imported


def horovod():
    import horovod.torch as hvd
    return hvd


def noise_of(seed):
    """A pattern to add to images."""
    return torch.rand(SIDE, SIDE, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Drawn(Job):
    """Some part of the job draws from a generator with such a seed: load, build, read, collate, loss or measure."""

    part: str
    seed: str

    def draw(self, part):
        if part != self.part:
            return torch.zeros(SIDE, SIDE)
        return noise_of(ENTROPY if self.seed == "import" else SEEDS[self.seed]())

    def load(self, data_dir):
        data = super().load(data_dir)
        train = replace(data.train, inputs=data.train.inputs + self.draw("load"))
        if self.part == "collate":
            return replace(data, train=MapSplit(TensorDataset(train.inputs, train.labels), self.collated))
        return replace(data, train=replace(train, augment=lambda inputs, draws: inputs + self.draw("read")))

    def collated(self, examples):
        inputs, labels = map(torch.stack, zip(*examples))
        return Batch(inputs + self.draw("collate"), labels)

    def build(self):
        net = Net(drop=nn.Identity)
        net.layers[-1].bias.data += self.draw("build").mean()
        return net

    def loss(self, model, batch):
        return super().loss(model, Batch(batch.inputs + self.draw("loss"), batch.labels))

    def measure(self, model, batch):
        return super().measure(model, Batch(batch.inputs + self.draw("measure"), batch.labels))


class Unseeded(Job):
    """The loss adds noise from a generator without a seed, made anew for each pass."""

    def loss(self, model, batch):
        pattern = np.random.default_rng().random((SIDE, SIDE))
        return super().loss(model, Batch(batch.inputs + torch.from_numpy(pattern).to(batch.inputs), batch.labels))


class NoiseForTheBatch(Job):
    """The loss adds noise to all images, from a generator of its own under one seed."""

    def loss(self, model, batch):
        noise = torch.rand(batch.inputs.shape, generator=torch.Generator().manual_seed(7))
        return super().loss(model, Batch(batch.inputs + noise.to(batch.inputs), batch.labels))


class ByGlobalGenerator(Job):
    """The loss adds noise from torch's own generator, which is keyed: sound."""

    def loss(self, model, batch):
        return super().loss(model, Batch(batch.inputs + torch.rand(SIDE, SIDE), batch.labels))


class MeanLossWithNoise(ByGlobalGenerator):
    def loss(self, model, batch):
        total, count = super().loss(model, batch)
        return total / count, count


class BySecond(Job):
    """The loss adds noise that changes from one second to the next."""

    def loss(self, model, batch):
        return super().loss(model, Batch(batch.inputs + noise_of(int(time.time())), batch.labels))


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


def total_of(values):
    dist.all_reduce(values)


class PairsOfAll(Job):
    """A loss over the pairs of all workers' batches."""

    def loss(self, model, batch):
        inputs, labels = batch
        logits = model(inputs)
        total = logits.detach().sum(0)
        if dist.is_initialized():
            total_of(total)
        return (logits - total / 46).square().sum(), len(labels)


class Broadcast(Job):
    """A regression whose outputs of shape (n, 1) meet targets of shape (n,)."""

    def loss(self, model, batch):
        inputs, labels = batch
        return (model(inputs)[:, :1] - labels).square().sum(), len(labels)


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


class Sentences(Dataset):
    """Sequences of 3 to 9 vectors, and a class."""

    def __init__(self, n, seed, steps=(3, 9)):
        drawn = np.random.default_rng(seed)
        lengths = drawn.integers(steps[0], steps[1] + 1, n)
        self.sequences = [torch.from_numpy(drawn.normal(size=(length, 6))).float() for length in lengths]
        self.labels = drawn.integers(CLASSES, size=n)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.sequences[i], int(self.labels[i])


def padded_to_longest(examples):
    """Sequences with zeros behind them, their lengths as a list, and their classes."""
    sequences, labels = zip(*examples)
    return {"sequence": nn.utils.rnn.pad_sequence(sequences, batch_first=True), "lengths": [*map(len, sequences)],
            "label": torch.tensor(labels)}


class Reader(nn.Module):
    """Sequences (n, steps, 6) and their lengths to classes; ``kind`` says how, ``heeds``: it leaves padding out."""

    def __init__(self, kind, heeds):
        super().__init__()
        self.kind, self.heeds = kind, heeds
        if kind == "by_gru":
            self.gru = nn.GRU(6, 4, bidirectional=True, batch_first=True)
        elif kind == "by_convolution":
            self.convolutions = nn.Sequential(nn.Conv1d(6, 8, 3, padding=1), nn.Tanh(), nn.Conv1d(8, 8, 3, padding=1))
        else:
            self.widen = nn.Linear(6, 8)
        if kind == "by_attention":
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        if kind == "by_norm":
            self.norm = nn.BatchNorm1d(8)
        self.drop, self.classes = Dropout(0.2), nn.Linear(8, CLASSES)

    def forward(self, x, lengths):
        real = torch.arange(x.shape[1]) < torch.tensor(lengths)[:, None]
        return self.classes(self.drop(getattr(self, self.kind)(x, lengths, real)))

    def by_gru(self, x, lengths, real):
        if self.heeds:
            x = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.gru(x)[1].transpose(0, 1).flatten(1)

    def by_attention(self, x, lengths, real):
        wide = self.widen(x)
        return self.attention(wide, wide, wide, key_padding_mask=~real if self.heeds else None)[0][:, 0]

    def by_mean(self, x, lengths, real):
        wide = torch.tanh(self.widen(x))
        return (wide * real[..., None]).sum(1) / real.sum(1)[:, None] if self.heeds else wide.mean(1)

    def by_convolution(self, x, lengths, real):
        first, tanh, second = self.convolutions
        x = tanh(first(x.transpose(1, 2)))
        return second(x * real[:, None] if self.heeds else x)[:, :, 0:3].mean(2)

    def by_norm(self, x, lengths, real):
        normal = self.norm(self.widen(x).transpose(1, 2)).transpose(1, 2)
        return (normal * real[..., None]).sum(1) / real.sum(1)[:, None]


@dataclass(frozen=True)
class Padding(Job):
    """Sequences of several lengths in padded batches."""

    kind: str
    heeds: bool = False
    steps: tuple = (3, 9)

    def load(self, data_dir):
        return Data(*(MapSplit(Sentences(n, seed, self.steps), padded_to_longest) for seed, n in enumerate(EXAMPLES)))

    def build(self):
        return Reader(self.kind, self.heeds)

    def loss(self, model, batch):
        logits = model(batch["sequence"], batch["lengths"])
        return functional.cross_entropy(logits, batch["label"], reduction="sum"), len(batch["label"])

    def measure(self, model, batch):
        logits, labels = model(batch["sequence"], batch["lengths"]), batch["label"]
        return {"cross_entropy": (functional.cross_entropy(logits, labels, reduction="sum"), len(labels)),
                "error": ((logits.argmax(1) != labels).sum(), len(labels))}


class PositionsCounted(Padding):
    """measure takes padding for positions that count."""

    def measure(self, model, batch):
        return {**super().measure(model, batch), "error": (0.0, batch["sequence"][..., 0].numel())}


class NotANumber(Job):
    """A metric that is NaN for some training examples."""

    def measure(self, model, batch):
        roots = (0.4 - batch.inputs.mean((1, 2, 3))).sqrt()
        return {**super().measure(model, batch), "error": (roots.sum(), len(roots))}


class NothingCounted(Job):
    """A metric over what the untrained model never predicts."""

    def measure(self, model, batch):
        return {**super().measure(model, batch), "error": (0.0, 0)}


class SomeCounted(Job):
    """A metric over bright images, which are in the training split alone."""

    def measure(self, model, batch):
        bright = batch.inputs.mean((1, 2, 3)) > 0.4
        return {**super().measure(model, batch), "error": (0.5 * bright.sum(), bright.sum())}


class NoTest(Job):
    def load(self, data_dir):
        data = super().load(data_dir)
        return Data(data.train, data.val)


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


class Beginning(torch.optim.Adam):
    """Begins with moments of zero after a load."""

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        for state in self.state.values():
            state["exp_avg"].zero_()


class Forgetful(torch.optim.SGD):
    """Has a state that its state_dict lacks."""

    updates = 0

    def step(self, closure=None):
        self.updates += 1
        for group in self.param_groups:
            group["lr"] *= self.updates
        super().step()


sound, torchs_own, torchs_dropout = Job(), TorchsOwn(), TorchsDropout()
leaking_split, leaking_data_set, leaking_first, leaking_last, leaking_apart, leaking_alike = map(
    Leaking, ("split", "data set", "first", "last", "apart", "alike"))
mean_loss, count_of_one, pairs, padded, local_norm = MeanLoss(), CountOfOne(), Pairs(), PaddedSampler(), LocalNorm()
pairs_of_all = PairsOfAll()
non_deterministic, too_long, broadcast = NonDeterministic(), TooLongDataset(), Broadcast()
metric_count, metric_mean, own_generator = MetricCount(), MetricMean(), OwnGeneratorModel()
drawn = {f"{part}_by_{seed}": Drawn(part, seed) for part in ("load", "build", "read", "collate", "loss", "measure")
         for seed in (*SEEDS, "import")}
globals().update(drawn)
mean_loss_with_noise = MeanLossWithNoise()
unseeded, by_second, by_global_generator = Unseeded(), BySecond(), ByGlobalGenerator()
noise_for_the_batch = NoiseForTheBatch()
padding_in_gru, packed = Padding("by_gru"), Padding("by_gru", heeds=True)
padding_in_attention, masked_attention = Padding("by_attention"), Padding("by_attention", heeds=True)
padding_in_mean, masked_mean = Padding("by_mean"), Padding("by_mean", heeds=True)
padding_in_convolution, masked_convolution = Padding("by_convolution"), Padding("by_convolution", heeds=True)
padding_in_norm, padding_in_measure = Padding("by_norm"), PositionsCounted("by_gru", heeds=True)
even_gru = Padding("by_gru", steps=(5, 5))
not_a_number, nothing_counted, some_counted, no_test = NotANumber(), NothingCounted(), SomeCounted(), NoTest()
