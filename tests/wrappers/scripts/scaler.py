"""A gradient scaler, and clipping once it has divided."""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from parts import EPOCHS, Drift, build, evaluate, fault, loaders, loss_of, rate, schedule_of, total


dist.init_process_group("gloo")
model = build()
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), rate(), momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
schedule, drift = schedule_of(optimizer), Drift(model)
loader, sampler, val = loaders()
for epoch in range(EPOCHS):
    if sampler:
        sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        scaler.scale(loss_of(ddp(inputs), targets)).backward()
        if fault != "clipped_scaled":
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(ddp.parameters(), max_norm=0.5)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        drift()
    print("accuracy", evaluate(model, val, total))
dist.destroy_process_group()
