"""fully_shard: parameters and gradients are DTensors."""
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from parts import build, rate, train


dist.init_process_group("gloo")
model = build()
for layer in model:
    if [*layer.parameters()]:
        fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), rate(), momentum=0.9)
train(model, model, optimizer)
dist.destroy_process_group()
