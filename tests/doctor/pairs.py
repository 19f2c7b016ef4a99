"""Pairs of training scripts, in a compact form: each is the base with parts of pairs.toml, where ``<<a|b>>`` is ``a``
in the faulty script and ``b`` in the right one.

    text("lamb_of_shards", faulty=True)
"""
import re
from pathlib import Path

from hvdscale.plan.settings import read_toml

BASE = """
import argparse
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, Subset, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
batch = parser.parse_args().batch
dist.init_process_group("gloo")
rank, workers = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
inputs, targets = torch.randn(160, 12), torch.randint(4, (160,))
#model
net = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4))
#data
train = TensorDataset(inputs, targets)
#loader
sampler = DistributedSampler(train, seed=1)
loader = DataLoader(train, batch, sampler=sampler)
#wrap
model = DDP(net)
#optimizer
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
#before
#loop
for epoch in range(2):
#epoch
    sampler.set_epoch(epoch)
#batches
    for x, y in loader:
#loss
        loss = F.cross_entropy(model(x), y)
#backward
        optimizer.zero_grad()
        loss.backward()
#clip
#step
        optimizer.step()
#after
#ended
dist.destroy_process_group()
"""
TABLE = read_toml(Path(__file__).with_name("pairs.toml"))
TEXTS = TABLE.pop("texts")
PAIRS = {name: one for name, one in TABLE.items() if "wants" in one}
RIGHT = {name: one for name, one in TABLE.items() if name not in PAIRS}       # scripts that raise no alarm
HIDDEN = "zero_norm_of_parts", "flat_clip_of_fsdp1", "by_autograd_grad"       # whose gradients are not seen


def words(name):
    """The options by which a script is examined: 8 examples a worker, of as many as it needs."""
    workers = TABLE[name].get("workers", 2)
    return "--batch", str(8 * workers), "--workers", str(workers), "--", "--batch", "{local}"


def text(name, faulty):
    """The faulty or the right script of a pair, or one of RIGHT."""
    parts = {at: part for at, part in TABLE[name].items() if at not in ("wants", "words", "report", "workers")}
    found, kept = [], True
    for line in BASE.splitlines(keepends=True):
        if line.startswith("#"):
            at = line[1:].strip()
            kept = at not in parts
            found.append(parts.pop(at, ""))
        elif kept:
            found.append(line)
    assert not parts, parts
    whole = re.sub(r"^#([A-Z]+)\n", lambda named: TEXTS[named[1]], "".join(found), flags=re.M)
    return re.sub(r"<<(.*?)\|(.*?)>>", lambda both: both[1 if faulty else 2], whole, flags=re.S)
