"""What the scripts that can be stopped and started again share: a save every third update, and a loop that skips what
was done; --fault position does not skip, and --fault optimizer leaves its state out."""
import os
from itertools import islice

from parts import EPOCHS, fault, loaders, loss_of, schedule_of

EVERY = 3


def train(model, optimizer, save, load):
    """save(state) writes a checkpoint, load() gives the last one's values or None; both know model and optimizer."""
    schedule = schedule_of(optimizer)
    loader, sampler, _ = loaders()
    kept = load() if os.path.exists("last") else None
    done = kept["done"] if kept else 0
    if kept:
        schedule.load_state_dict(kept["schedule"])
    for epoch in range(done // len(loader), EPOCHS):
        sampler.set_epoch(epoch)
        begin = 0 if fault == "position" else done - epoch * len(loader)
        for inputs, targets in islice(loader, begin, None):
            optimizer.zero_grad()
            loss_of(model(inputs), targets).backward()
            optimizer.step()
            schedule.step()
            done += 1
            if done % EVERY == 0:
                save({"done": done, "schedule": schedule.state_dict()})
