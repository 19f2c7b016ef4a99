"""Horovod's DistributedOptimizer."""
import horovod.torch as hvd
import torch

from parts import EPOCHS, Drift, build, evaluate, loaders, loss_of, rate, schedule_of

hvd.init()
model = build()
optimizer = torch.optim.SGD(model.parameters(), rate(), momentum=0.9)
hvd.broadcast_parameters(model.state_dict(), 0)
hvd.broadcast_optimizer_state(optimizer, 0)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
schedule, drift = schedule_of(optimizer), Drift(model)
loader, sampler, val = loaders()
for epoch in range(EPOCHS):
    if sampler:
        sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss_of(model(inputs), targets).backward()
        optimizer.step()
        schedule.step()
        drift()
    print("accuracy", evaluate(model, val, lambda values: hvd.allreduce(values, op=hvd.Sum)))
