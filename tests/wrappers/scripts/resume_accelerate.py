"""accelerate: save_state, load_state and skip_first_batches."""
import os

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from parts import EPOCHS, batch, build, data, fault, loss_of, rate, schedule_of

accelerator = Accelerator(cpu=True)
torch.manual_seed(2)
model = build()
optimizer = torch.optim.SGD(model.parameters(), rate(), momentum=0.9)
train, _ = data()
model, optimizer, loader, schedule = accelerator.prepare(
    model, optimizer, DataLoader(train, batch, shuffle=True), schedule_of(optimizer))
done = 0
if os.path.exists("last"):
    accelerator.load_state("last")
    done = torch.load("last/done.pt")
    if fault == "optimizer":
        optimizer.state.clear()
for epoch in range(done // len(loader), EPOCHS):
    loader.set_epoch(epoch)
    skipped = done - epoch * len(loader)
    left = accelerator.skip_first_batches(loader, skipped) if skipped and fault != "position" else loader
    for inputs, targets in left:
        optimizer.zero_grad()
        accelerator.backward(loss_of(model(inputs), targets))
        optimizer.step()
        schedule.step()
        done += 1
        if done % 3 == 0:
            accelerator.save_state("last")
            if accelerator.is_main_process:
                torch.save(done, "last/done.pt")
            accelerator.wait_for_everyone()
