"""torch.compile around DistributedDataParallel."""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from parts import build, rate, train


dist.init_process_group("gloo")
model = build()
ddp = DistributedDataParallel(model)
compiled = torch.compile(ddp, backend="aot_eager", dynamic=True)
optimizer = torch.optim.SGD(ddp.parameters(), rate(), momentum=0.9)
train(model, compiled, optimizer)
dist.destroy_process_group()
