"""A training script with DistributedDataParallel that is slow in a way that its arguments name."""

SLOW = '''
import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--slow", default="")
parser.add_argument("--epochs", type=int, default=3)
given = parser.parse_args()
dist.init_process_group("gloo")
rank = dist.get_rank()


class Examples(Dataset):
    def __len__(self):
        return 800

    def __getitem__(self, index):
        if given.slow == "loader":
            time.sleep(0.002)
        return torch.ones(12) * index, index % 3


loader = DataLoader(Examples(), given.batch, sampler=DistributedSampler(Examples()))
model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3)))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
ends = []
for epoch in range(given.epochs):
    for number, (inputs, targets) in enumerate(loader):
        loss = cross_entropy(model(inputs), targets)
        if given.slow == "rank" and rank == 1:
            time.sleep(0.02)
        if given.slow == "error" and dist.get_world_size() == 2 and number == 3:
            raise RuntimeError("out of something")
        if given.slow == "hang" and dist.get_world_size() == 2:
            time.sleep(1000)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if given.slow == "serial" and rank == 0:
            time.sleep(0.02)
        ends.append(time.perf_counter())
        if len(ends) == 15 and rank == 0:
            print("own", (ends[-1] - ends[3]) / 11, flush=True)
'''
