"""Lightning Fabric: loaders get its sampler, whose epoch it sets."""
import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader

import parts
from parts import EPOCHS, Drift, batch, build, data, evaluate, fault, loaders, loss_of, rate, schedule_of, workers

fabric = Fabric(accelerator="cpu", devices=workers, strategy="ddp")
fabric.launch()
model = build()
drift = Drift(model)
optimizer = torch.optim.SGD(model.parameters(), rate(), momentum=0.9)
schedule = schedule_of(optimizer)
wrapped, optimizer = fabric.setup(model, optimizer)
own, _, val = loaders()
sampler = parts.Stuck(data()[0], workers, fabric.global_rank) if fault == "epochs" else None
loader = DataLoader(data()[0], batch, sampler=sampler, shuffle=sampler is None)
loader = own if fault == "examples" else fabric.setup_dataloaders(loader, use_distributed_sampler=sampler is None)
for epoch in range(EPOCHS):
    for inputs, targets in loader:
        optimizer.zero_grad()
        fabric.backward(loss_of(wrapped(inputs), targets))
        optimizer.step()
        schedule.step()
        drift()
    print("accuracy", evaluate(model, val, lambda values: fabric.all_reduce(values, reduce_op="sum")))
