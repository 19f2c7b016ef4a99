"""LBFGS, which evaluates its closure several times a step."""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from parts import build, loss_of, rate, train


dist.init_process_group("gloo")
model = build()
ddp = DistributedDataParallel(model)
optimizer = torch.optim.LBFGS(ddp.parameters(), rate(), max_iter=3)


def update(inputs, targets):
    def closure():
        optimizer.zero_grad()
        loss = loss_of(ddp(inputs), targets)
        loss.backward()
        return loss
    optimizer.step(closure)


train(model, ddp, optimizer, update)
dist.destroy_process_group()
