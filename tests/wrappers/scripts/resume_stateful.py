"""torchdata's StatefulDataLoader, whose state is in the checkpoint; each rank has its own."""
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from parts import EPOCHS, batch, build, data, fault, loss_of, rate, rank

dist.init_process_group("gloo")
model = DistributedDataParallel(build())
optimizer = torch.optim.SGD(model.parameters(), 0 * rank + rate(), momentum=0.9)
train, _ = data()
sampler = DistributedSampler(train)
kind = DataLoader if fault == "position" else StatefulDataLoader
loader, done, first = kind(train, batch, sampler=sampler), 0, 0
if os.path.exists(f"last{rank}.pt"):
    kept = torch.load(f"last{rank}.pt", weights_only=False)
    model.load_state_dict(kept["model"])
    done, first = kept["done"], kept["epoch"]
    if fault != "optimizer":
        optimizer.load_state_dict(kept["optimizer"])
    if kept["loader"]:
        loader.load_state_dict(kept["loader"])
for epoch in range(first, EPOCHS):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss_of(model(inputs), targets).backward()
        optimizer.step()
        done += 1
        if done % 3 == 0:
            state = None if fault == "position" else loader.state_dict()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": done, "epoch": epoch,
                        "loader": state}, f"last{rank}.pt")
dist.destroy_process_group()
