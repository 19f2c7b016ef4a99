"""FullyShardedDataParallel: flat parameters."""
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel

from parts import EPOCHS, Drift, build, evaluate, loaders, loss_of, rate, schedule_of, total


dist.init_process_group("gloo")
model = FullyShardedDataParallel(build(), use_orig_params=True, device_id=torch.device("cpu"))
optimizer = torch.optim.SGD(model.parameters(), rate(), momentum=0.9)
schedule, drift = schedule_of(optimizer), Drift(model)
loader, sampler, val = loaders()
for epoch in range(EPOCHS):
    if sampler:
        sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss_of(model(inputs), targets).backward()
        optimizer.step()
        schedule.step()
        drift()
    print("accuracy", evaluate(model, val, total))
dist.destroy_process_group()
