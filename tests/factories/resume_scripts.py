"""A training script that is right when it is stopped and started again, and the same with a fault planted."""

RIGHT = '''
import argparse
import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--every", type=int, default=3)
given = parser.parse_args()
dist.init_process_group("gloo")
rank, workers = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
random.seed(rank)
train = TensorDataset(torch.randn(128, 12), torch.randint(3, (128,)))
model = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(ddp.parameters(), 0.01)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=4)
sampler = DistributedSampler(train)
loader = DataLoader(train, given.batch, sampler=sampler)
done, peak, states = 0, 0.0, None


def save():
    states = [None] * workers
    dist.all_gather_object(states, (torch.get_rng_state(), random.getstate()))
    if rank == 0:
        torch.save({"model": model.state_dict(), "average": average.state_dict(), "optimizer": optimizer.state_dict(),
                    "schedule": schedule.state_dict(), "scaler": scaler.state_dict(), "done": done, "peak": peak,
                    "states": states}, "new.pt")
        os.replace("new.pt", "last.pt")
    dist.barrier()


if os.path.exists("last.pt"):
    kept = torch.load("last.pt", weights_only=False)
    model.load_state_dict(kept["model"])
    average.load_state_dict(kept["average"])
    optimizer.load_state_dict(kept["optimizer"])
    schedule.load_state_dict(kept["schedule"])
    scaler.load_state_dict(kept["scaler"])
    done, peak, states = kept["done"], kept["peak"], kept["states"]
for epoch in range(done // len(loader), given.epochs):
    sampler.set_epoch(epoch)
    batches = iter(loader)
    for _ in range(done - epoch * len(loader)):
        next(batches)
    if states:
        torch.set_rng_state(states[rank][0])
        random.setstate(states[rank][1])
        states = None
    for inputs, targets in batches:
        if random.random() < 0.5:
            inputs = -inputs
        loss = cross_entropy(ddp(inputs), targets)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        average.update_parameters(model)
        done += 1
        peak = max(peak, loss.item())
        if rank == 0:
            print("step", done, "loss", loss.item(), flush=True)
        if done % given.every == 0:
            save()
dist.destroy_process_group()
'''
LOAD = 'if os.path.exists("last.pt")'
OPTIMIZER = '    optimizer.load_state_dict(kept["optimizer"])\n'
POSITION = '''    for _ in range(done - epoch * len(loader)):
        next(batches)
'''
ACCUMULATING = [
    ('''        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        average.update_parameters(model)
        done += 1
''', '''        scaler.scale(loss / 2).backward()
        done += 1
        if done % 2 == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            schedule.step()
            average.update_parameters(model)
''')]
# what each faulty script has in place of a part of the right one
CHANGES = {
    "right": [],
    "position": [(POSITION, "")],
    "epoch": [("    sampler.set_epoch(epoch)\n", "    if epoch and not states:\n        sampler.set_epoch(epoch)\n")],
    "begins_anew": [("range(done // len(loader), given.epochs)", "range(given.epochs)"), (POSITION, "")],
    "rest_left_out": [("range(done // len(loader), given.epochs)", "range(-(-done // len(loader)), given.epochs)")],
    "order": [("    sampler.set_epoch(epoch)\n", ""),
              ("DistributedSampler(train)", "torch.utils.data.RandomSampler(train)")],
    "parameters": [("    model.load_state_dict(kept[\"model\"])\n", "")],
    "head": [('    model.load_state_dict(kept["model"])\n', '    kept["model"].pop("4.weight")\n'
              '    model.load_state_dict(kept["model"], strict=False)\n')],
    "statistics": [('"model": model.state_dict()', '"model": dict(model.named_parameters())'),
                   ('load_state_dict(kept["model"])', 'load_state_dict(kept["model"], strict=False)')],
    "average": [('    average.load_state_dict(kept["average"])\n', "")],
    "one_rank": [("    model.load_state_dict(kept", "    rank or model.load_state_dict(kept")],
    "momentum": [(OPTIMIZER, "")],
    "steps": [(OPTIMIZER, '''    for one in kept["optimizer"]["state"].values():
        one["step"] = torch.tensor(0.0)
    optimizer.load_state_dict(kept["optimizer"])
''')],
    "dtype": [(OPTIMIZER, '''    optimizer.load_state_dict(kept["optimizer"])
    for one in optimizer.state.values():
        one["momentum_buffer"] = one["momentum_buffer"].bfloat16()
'''), ("AdamW(ddp.parameters(), 0.01)", "SGD(ddp.parameters(), 0.01, momentum=0.9, foreach=False)")],
    "schedule": [('    schedule.load_state_dict(kept["schedule"])\n', "")],
    "one_step": [('    schedule.load_state_dict(kept["schedule"])\n', '    schedule.load_state_dict(kept["schedule"])\n'
                  '    schedule.step()\n')],
    "scale": [('    scaler.load_state_dict(kept["scaler"])\n', "")],
    "draws": [("        torch.set_rng_state(states[rank][0])\n", "")],
    "python_draws": [("        random.setstate(states[rank][1])\n", "")],
    "accumulation": ACCUMULATING,
    "peak": [('kept["peak"], kept', "peak, kept")],
    "printed": [("done += 1\n", "done += 1\n        steps = steps + 1 if 'steps' in globals() else 1\n"),
                ('print("step", done', 'print("step", steps')],
    "nothing_left": [("range(done // len(loader), given.epochs)", "range(given.epochs if done else 0, given.epochs)")],
    "one_path": [("    if rank == 0:\n        torch.save", "    if True:\n        torch.save"),
                 ('"new.pt")\n        os.replace("new.pt", "last.pt")', '"last.pt")')],
    "old": [('os.replace("new.pt", "last.pt")', 'os.replace("new.pt", f"at-{done}.pt")'),
            (LOAD, "import glob\nif glob.glob('at-*.pt')"),
            ('torch.load("last.pt"', "torch.load(sorted(glob.glob('at-*.pt'))[-1]")],
    "two_files": [('"done": done, "peak"', '"peak"'), ("    dist.barrier()\n", "        torch.save(done, 'done.pt')\n"
                  "    dist.barrier()\n"), ('kept["done"]', 'torch.load("done.pt")')],
    "in_place": [('"new.pt")\n        os.replace("new.pt", "last.pt")', '"last.pt")')],
}


def changed(changes):
    """The right script with other parts."""
    text = RIGHT
    for part, other in changes:
        assert part in text, part
        text = text.replace(part, other)
    return text


def script(name):
    """The text of the script of that name."""
    return changed(CHANGES[name]).lstrip()
