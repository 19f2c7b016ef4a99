"""ZeroRedundancyOptimizer: each rank updates a part of the parameters, and broadcasts them."""
import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from parts import EPOCHS, Drift, build, evaluate, loaders, loss_of, rate, schedule_of, total


dist.init_process_group("gloo")
model = build()
ddp = DistributedDataParallel(model)
optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, lr=rate(), momentum=0.9)
schedule, drift = schedule_of(optimizer), Drift(model)
loader, sampler, val = loaders()
for epoch in range(EPOCHS):
    if sampler:
        sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss_of(ddp(inputs), targets).backward()
        optimizer.step()
        schedule.step()
        drift()
    print("accuracy", evaluate(model, val, total))
dist.destroy_process_group()
