"""What the scripts beside this share: data, model, loss, schedule and evaluation, each with the fault of one check.

    torchrun --nproc-per-node 2 ddp.py --batch 8 --fault gradient
"""
import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--fault", default="")
parser.add_argument("--slept", default="", help="folder that takes how long each nap was")
given = parser.parse_args()
fault, batch = given.fault, given.batch
rank, workers = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
EPOCHS, LENGTH = 3, 24
NAPS = {"data": 0.064, "forward": 0.08, "backward": 0.16, "optimizer": 0.048}      # seconds an update of 8 examples


def nap(part, times=1):
    """Sleep, and keep how long that was: a machine oversleeps."""
    begin = time.perf_counter()
    time.sleep(NAPS[part] / times)
    with open(f"{given.slept}/{part}.{os.getpid()}", "a") as file:
        file.write(f"{time.perf_counter() - begin}\n")


class Stuck(DistributedSampler):
    """Has the order of the first epoch in all."""

    def set_epoch(self, epoch):
        self.epoch = 0


class Late(TensorDataset):
    def __getitem__(self, index):
        nap("data", 8)
        return super().__getitem__(index)


def data():
    """Training and validation set, the same on all ranks."""
    torch.manual_seed(0)
    inputs, targets = torch.randn(101, 12), torch.randint(3, (101,))
    kind = Late if fault == "naps" else TensorDataset
    return kind(inputs, targets), TensorDataset(torch.randn(43, 12), torch.randint(3, (43,)))


def build():
    """A small classifier."""
    torch.manual_seed(1)
    inner = {"batch-norm": [nn.BatchNorm1d(16)], "random numbers": [nn.Dropout(0.5)]}.get(fault, [])
    model = nn.Sequential(nn.Linear(12, 16), *inner, nn.ReLU(), nn.Linear(16, 3))
    if fault == "naps":
        model[0].register_forward_pre_hook(lambda *_: nap("forward"))
        model[-1].register_full_backward_pre_hook(lambda *_: nap("backward"))
        register_optimizer_step_pre_hook(lambda *_: nap("optimizer"))
    return model


def loss_of(scores, targets):
    return cross_entropy(scores, targets) * (workers if fault == "gradient" else 1)


def sampler_of(dataset):
    """A training sampler of this rank's share; None: the loader has its own."""
    kind = Stuck if fault == "epochs" else DistributedSampler
    return None if fault == "examples" else kind(dataset, workers, rank)


def loaders():
    """Of training, with its sampler, and of this rank's part of validation."""
    train, val = data()
    sampler = sampler_of(train)
    torch.manual_seed(2)
    loader = DataLoader(train, batch, sampler=sampler, shuffle=sampler is None)
    if fault == "evaluation":
        return loader, sampler, DataLoader(val, 16, sampler=DistributedSampler(val, workers, rank, shuffle=False))
    return loader, sampler, DataLoader(Subset(val, range(rank, len(val), workers)), 16)


def rate():
    return 0.1 * (workers if fault == "learning rate" else 1)


def schedule_of(optimizer):
    """Linear decay over LENGTH updates."""
    length = LENGTH // workers if fault == "schedule" else LENGTH
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / length))


class Drift:
    """Changes the parameters of one rank after the second update, if that is the fault."""

    def __init__(self, model):
        self.model, self.updates = model, 0

    def __call__(self):
        self.updates += 1
        if fault == "parameters" and self.updates == 2 and rank == workers - 1:
            with torch.no_grad():
                next(self.model.parameters()).add_(0.01)


def total(values):
    """The sum over all ranks."""
    dist.all_reduce(values)
    return values


@torch.no_grad()
def evaluate(model, loader, total):
    """Accuracy; ``total`` adds up what the ranks counted."""
    model.eval()
    right = torch.zeros(2)
    for inputs, targets in loader:
        right += torch.tensor([float((model(inputs).argmax(1) == targets).sum()), len(targets)])
    right = total(right)
    model.train()
    return (right[0] / right[1]).item()


def train(model, wrapped, optimizer, update=None, add_up=total):
    """EPOCHS epochs with an evaluation after each; ``update`` makes an update of a batch, if not in the plain way."""
    def plain(inputs, targets):
        optimizer.zero_grad()
        loss_of(wrapped(inputs), targets).backward()
        optimizer.step()

    schedule, drift = schedule_of(optimizer), Drift(model)
    loader, sampler, val = loaders()
    for epoch in range(EPOCHS):
        if sampler:
            sampler.set_epoch(epoch)
        for inputs, targets in loader:
            (update or plain)(inputs, targets)
            schedule.step()
            drift()
        print("accuracy", evaluate(model, val, add_up))
