"""Workloads whose models do not go with their data or their loss."""
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from hvdscale.workload import Classification, Data, Split, Workload

PLAIN = dict(lr=0.1, global_batch=8, steps=2, threads=1)


def load(data_dir):
    inputs, labels = torch.zeros(24, 12), torch.arange(24) % 3
    return Data(*(Split(inputs[:count], labels[:count]) for count in (24, 9, 9)))


class TwoOutputs(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs), inputs


class Flat(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs).unsqueeze(1)


class Own(Workload):
    """A workload of a user's own around a model."""

    dataset, model, metrics, defaults = "made", "net", {"error": "min"}, PLAIN

    def __init__(self, make):
        self.make = make

    def load(self, data_dir):
        return load(data_dir)

    def build(self):
        return self.make()

    def loss(self, model, batch):
        inputs, labels = batch
        return cross_entropy(model(inputs), labels, reduction="sum"), len(labels)           # the line that is named

    def measure(self, model, batch):
        inputs, labels = batch
        return {"error": ((model(inputs).argmax(1) != labels).sum(), len(labels))}


def narrow():
    return nn.Sequential(nn.Flatten(), nn.Linear(7, 3))


def empty():
    with torch.device("meta"):
        return nn.Linear(12, 3)


def classifying(build):
    return Classification("made", "net", 3, load, build, defaults=PLAIN)


MODELS = {"tuple": lambda: TwoOutputs(12, 3), "shape": lambda: Flat(12, 3), "width": narrow, "meta": empty}
for kind, make in MODELS.items():
    globals()[f"OWN_{kind}"], globals()[f"CLASSES_{kind}"] = Own(make), classifying(make)
