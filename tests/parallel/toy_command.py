"""hvdscale-train with one more workload, toy/net, in which one rank comes to grief: FAULT=kind:rank:step says how."""
import os
import signal
import sys
from dataclasses import dataclass, replace

import torch
from torch import nn

import hvdscale.workloads
from hvdscale.cli.train import main
from hvdscale.errors import DataError
from hvdscale.update.step import DataParallelStep
from hvdscale.workload import Data, Split
from tests.parallel import toy

MODELS = {"toy": ("net",)}
RANKS = ("OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", "RANK")


def plan(fault):
    """Have the rank meet the fault from now on."""
    global KIND, RANK, STEP
    KIND, RANK, STEP = (fault or "none:0:0").split(":")


plan(os.environ.get("FAULT"))


def my_rank():
    return int(next((os.environ[name] for name in RANKS if name in os.environ), "0"))


@dataclass(frozen=True)
class Grieved(Split):
    """A split whose take() meets the fault at the given step."""

    taken = []

    def take(self, visits):
        self.taken.append(len(visits.indices))
        if my_rank() == int(RANK) and len(self.taken) == int(STEP):
            if KIND == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if KIND == "term":
                os.kill(os.getpid(), signal.SIGTERM)
            if KIND == "raise":
                raise RuntimeError("the planted fault")
            if KIND == "nan":
                self.inputs[visits.indices[0]] = float("nan")
            if KIND == "label":
                self.labels[visits.indices[0]] = toy.CLASSES
        return super().take(visits)


class GrievedNet(toy.Net):
    """A model that meets the fault: its last layer is of another width, drawn by the rank, or left out of a step."""

    def __init__(self, **model_args):
        super().__init__(**model_args)
        self.more = nn.Linear(toy.CLASSES, toy.CLASSES + (KIND == "shape" and my_rank() == int(RANK)))
        self.passes = 0
        if KIND == "drawn":
            nn.init.normal_(self.more.weight, generator=torch.Generator().manual_seed(my_rank()))

    def forward(self, x):
        self.passes += self.training
        x = super().forward(x)
        left_out = KIND == "unused" and my_rank() == int(RANK) and self.passes >= int(STEP)
        return x if left_out else x + self.more(x)


def load(data_dir):
    data = toy.load()
    Grieved.taken.clear()
    if KIND == "stop-loading" and my_rank() == int(RANK):
        os.kill(os.getpid(), signal.SIGSTOP)
    if KIND == "missing" and my_rank() == int(RANK):
        raise DataError("/data/toy: there is no such folder")
    if KIND == "labels" and my_rank() == int(RANK):
        data.train.labels[7] = toy.CLASSES
    if KIND == "shorter" and my_rank() == int(RANK):
        data = Data(data.train.first(50), data.val, data.test)
    return Data(Grieved(data.train.inputs, data.train.labels), data.val, data.test)


def workload(dataset, model):
    build = GrievedNet if KIND in ("shape", "drawn", "unused") else toy.Net
    return replace(toy.WORKLOAD, dataset=dataset, model=model, load=load, build=build)


def warm_up(take_step, passes):
    """As DataParallelStep's, after the rank has sent itself a signal."""
    if my_rank() == int(RANK):
        os.kill(os.getpid(), signal.SIGTERM)
    warm_up_unharmed(take_step, passes)


if __name__ == "__main__":
    if KIND == "term-warming":
        warm_up_unharmed, DataParallelStep.warm_up = DataParallelStep.warm_up, warm_up
    if KIND == "stop-starting" and my_rank() == int(RANK):
        os.kill(os.getpid(), signal.SIGSTOP)
    hvdscale.workloads.DATASETS["toy"] = sys.modules[__name__]
    main()
