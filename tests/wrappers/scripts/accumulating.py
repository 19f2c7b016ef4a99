"""Several passes an update, of which the last of an epoch has fewer."""
import contextlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from parts import EPOCHS, Drift, build, evaluate, fault, loaders, loss_of, rate, schedule_of, total

PASSES = 2


dist.init_process_group("gloo")
model = build()
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), rate(), momentum=0.9)
schedule, drift = schedule_of(optimizer), Drift(model)
loader, sampler, val = loaders()
for epoch in range(EPOCHS):
    if sampler:
        sampler.set_epoch(epoch)
    batches = [*loader]
    for begin in range(0, len(batches), PASSES):
        some = batches[begin:begin + PASSES]
        targets = sum(len(right) for _, right in some)
        for at, (inputs, right) in enumerate(some):
            last = at + 1 == len(some)
            with contextlib.nullcontext() if last and fault != "kept_local" else ddp.no_sync():
                share = 1 / PASSES if fault == "remainder" else len(right) / targets
                (loss_of(ddp(inputs), right) * share).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        drift()
    print("accuracy", evaluate(model, val, total))
dist.destroy_process_group()
