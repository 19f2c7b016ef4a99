"""Horovod's DistributedOptimizer."""
import horovod.torch as hvd
import torch

from parts import build, rate, train

hvd.init()
model = build()
optimizer = torch.optim.SGD(model.parameters(), rate(), momentum=0.9)
hvd.broadcast_parameters(model.state_dict(), 0)
hvd.broadcast_optimizer_state(optimizer, 0)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
train(model, model, optimizer, add_up=lambda values: hvd.allreduce(values, op=hvd.Sum))
