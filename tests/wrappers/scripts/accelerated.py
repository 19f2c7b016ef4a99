"""accelerate: loaders, optimizer and schedule are prepared; a pass may be one of several of an update."""
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Sampler

from parts import EPOCHS, LENGTH, Drift, batch, build, data, fault, loss_of, rate


class Again(Sampler):
    """Draws the same order in all epochs."""

    def __init__(self, dataset):
        self.size = len(dataset)

    def __len__(self):
        return self.size

    def __iter__(self):
        yield from torch.randperm(self.size, generator=torch.Generator().manual_seed(0)).tolist()


accelerator = Accelerator(cpu=True, step_scheduler_with_optimizer=fault == "schedule")
model = build()
drift = Drift(model)
optimizer = torch.optim.SGD(model.parameters(), rate(), momentum=0.9)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / LENGTH))
train, val = data()
torch.manual_seed(2)
loader = DataLoader(train, batch, sampler=Again(train) if fault == "epochs" else None, shuffle=fault != "epochs")
model, optimizer, val_loader, schedule = accelerator.prepare(model, optimizer, DataLoader(val, 16), schedule)
if fault != "examples":
    loader = accelerator.prepare(loader)
gather = accelerator.gather if fault == "evaluation" else accelerator.gather_for_metrics
for epoch in range(EPOCHS):
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            accelerator.backward(loss_of(model(inputs), targets))
            optimizer.step()
            schedule.step()
        drift()
    model.eval()
    right = []
    with torch.no_grad():
        for inputs, targets in val_loader:
            right.append(gather(accelerator.unwrap_model(model)(inputs).argmax(1) == targets))
    model.train()
    accelerator.print("accuracy", torch.cat(right).float().mean().item())
