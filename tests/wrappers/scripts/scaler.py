"""A gradient scaler, and clipping once it has divided."""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from parts import build, fault, loss_of, rate, train


dist.init_process_group("gloo")
model = build()
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), rate(), momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)


def update(inputs, targets):
    optimizer.zero_grad()
    scaler.scale(loss_of(ddp(inputs), targets)).backward()
    if fault != "clipped_scaled":
        scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(ddp.parameters(), max_norm=0.5)
    scaler.step(optimizer)
    scaler.update()


train(model, ddp, optimizer, update)
dist.destroy_process_group()
