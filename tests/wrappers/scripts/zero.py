"""ZeroRedundancyOptimizer: each rank updates a part of the parameters, and broadcasts them."""
import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from parts import build, rate, train


dist.init_process_group("gloo")
model = build()
ddp = DistributedDataParallel(model)
optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, lr=rate(), momentum=0.9)
train(model, ddp, optimizer)
dist.destroy_process_group()
