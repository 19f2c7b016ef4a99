"""FullyShardedDataParallel: flat parameters."""
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel

from parts import build, rate, train


dist.init_process_group("gloo")
model = FullyShardedDataParallel(build(), use_orig_params=True, device_id=torch.device("cpu"))
optimizer = torch.optim.SGD(model.parameters(), rate(), momentum=0.9)
train(model, model, optimizer)
dist.destroy_process_group()
