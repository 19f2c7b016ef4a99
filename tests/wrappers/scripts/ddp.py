"""DistributedDataParallel by itself."""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from parts import build, rate, train


dist.init_process_group("gloo")
model = build()
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), rate(), momentum=0.9)
train(model, ddp, optimizer)
dist.destroy_process_group()
