"""Horovod: rank 0 saves, all load; --fault optimizer loads the optimizer's state on rank 0 alone."""
import horovod.torch as hvd
import torch

from parts import build, fault, rate
from resume_parts import train

hvd.init()
model = build()
optimizer = torch.optim.SGD(model.parameters(), rate(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())


def save(values):
    if hvd.rank() == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), **values}, "last")


def load():
    kept = torch.load("last", weights_only=False)
    model.load_state_dict(kept["model"])
    if fault != "optimizer" or hvd.rank() == 0:
        optimizer.load_state_dict(kept["optimizer"])
    hvd.broadcast_parameters(model.state_dict(), 0)
    return kept


train(model, optimizer, save, load)
