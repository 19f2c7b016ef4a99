"""hvdscale-train with one more workload, toy/net, in which a rank comes to grief.

FAULT=kind:rank:step            one rank fails, stops or is signalled, or has other data or another model
KILL="SIGNAL RANK WHERE NUMBER" a rank, or all, is signalled, unless torchrun has started it again, with WHERE:
    loading                     the examples, whatever the number;  step: as the step of that number begins
    seconds                     so long after the first step
    write, rename, removal      while the checkpoint of that number (from 0) is being written, before it is renamed,
                                and after that, before old ones are removed
"""
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, replace

import torch
from torch import nn

import hvdscale.workloads
from hvdscale.cli.train import main
from hvdscale.errors import DataError
from hvdscale.training import checkpoint
from hvdscale.update.step import DataParallelStep
from hvdscale.workload import Data, Split
from tests.parallel import toy

MODELS = {"toy": ("net",)}
RANKS = ("OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", "RANK")
take_step, save, replace_file, write = DataParallelStep.__call__, torch.save, os.replace, checkpoint.write


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
    if "KILL" in os.environ:
        return toy.load_augmented(data_dir)
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


def plant(number, where, when):
    """Have this process send itself the signal."""
    written, timers = [], []

    def die():
        os.kill(os.getpid(), number)

    def step(self, at, *given):
        if where == "step" and at == int(when):
            die()
        if where == "seconds" and not timers:
            timers.append(threading.Timer(float(when), die))
            timers[0].start()
        return take_step(self, at, *given)

    def half_saved(state, file, **options):
        if not options and len(written) == int(when):           # torch pickles tensors by it, too
            if number == signal.SIGKILL:                        # of the others the write goes on to its end
                file.write(b"PK\3\4 half a checkpoint")
                file.flush()
            die()
        save(state, file, **options)

    def renamed(source, target):
        if str(target).endswith(".pt") and len(written) == int(when):
            die()
        replace_file(source, target)

    def whole(path, state):
        write(path, state)
        written.append(path)
        if where == "removal" and len(written) == int(when) + 1:
            die()

    if where == "loading":
        toy.load_augmented = lambda data_dir: die() or time.sleep(60)
    DataParallelStep.__call__ = step
    checkpoint.write = whole
    if where == "write":
        torch.save = half_saved
    if where == "rename":
        os.replace = renamed


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
    if os.environ.get("KILL") and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        name, rank, where, when = os.environ["KILL"].split()
        if rank in ("all", str(my_rank())):
            plant(signal.Signals[name], where, when)
    hvdscale.workloads.DATASETS["toy"] = sys.modules[__name__]
    main()
