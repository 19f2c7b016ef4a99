"""A training script that is right when it is stopped and started again; others that are so in another way, and the
same with a fault planted: the pairs of resume_pairs.toml."""
import re
from pathlib import Path

from hvdscale.plan.settings import tomllib

PAIRS = tomllib.loads(Path(__file__).with_name("resume_pairs.toml").read_text())
SHARED = PAIRS.pop("shared")
RIGHT = '''
import argparse
import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--every", type=int, default=3)
given = parser.parse_args()
dist.init_process_group("gloo")
rank, workers = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
random.seed(rank)
train = TensorDataset(torch.randn(128, 12), torch.randint(3, (128,)))
first = nn.Identity()
model = nn.Sequential(first, nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(ddp.parameters(), 0.01)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=4)
sampler = DistributedSampler(train)
loader = DataLoader(train, given.batch, sampler=sampler)
done, peak, states = 0, 0.0, None


def save():
    states = [None] * workers
    dist.all_gather_object(states, (torch.get_rng_state(), random.getstate()))
    if rank == 0:
        kept = {"done": done, "peak": peak, "states": states}
        kept["model"] = model.state_dict()
        kept["average"] = average.state_dict()
        kept["optimizer"] = optimizer.state_dict()
        kept["schedule"] = schedule.state_dict()
        kept["scaler"] = scaler.state_dict()
        torch.save(kept, "new.pt")
        os.replace("new.pt", "last.pt")
    dist.barrier()


if os.path.exists("last.pt"):
    kept = torch.load("last.pt", weights_only=False)
    model.load_state_dict(kept["model"])
    average.load_state_dict(kept["average"])
    optimizer.load_state_dict(kept["optimizer"])
    schedule.load_state_dict(kept["schedule"])
    scaler.load_state_dict(kept["scaler"])
    done = kept["done"]
    peak = kept["peak"]
    states = kept["states"]
begun = done // len(loader)
for epoch in range(begun, given.epochs):
    sampler.set_epoch(epoch)
    batches = iter(loader)
    for _ in range(done - epoch * len(loader)):
        next(batches)
    if states:
        torch.set_rng_state(states[rank][0])
        random.setstate(states[rank][1])
        states = None
    for inputs, targets in batches:
        if random.random() < 0.5:
            inputs = -inputs
        loss = cross_entropy(ddp(inputs), targets)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        average.update_parameters(model)
        done += 1
        peak = max(peak, loss.item())
        if rank == 0:
            print("step", done, "loss", loss.item(), flush=True)
        if done % given.every == 0:
            save()
dist.destroy_process_group()
'''


def changed(text, changes):
    """The text with lines (+) in place of others (-)."""
    for change in re.findall(r"(?:^-.*\n)+(?:^\+.*\n)*", changes, re.M):
        old, new = ("".join(line[1:] for line in change.splitlines(True) if line[0] == sign) for sign in "-+")
        assert text.count(f"\n{old}") == 1, old
        text = text.replace(f"\n{old}", f"\n{new}")
    return text


def script(name):
    """The text of the script of that name: of a pair the faulty one, and the right one with ``right_`` before it."""
    pair = PAIRS.get(name.removeprefix("right_"), {})
    text = changed(RIGHT, "".join(SHARED[one] for one in pair.get("shared", ())))
    text = changed(text, pair.get("right", ""))
    return (text if name.startswith("right") else changed(text, pair["fault"])).lstrip()
