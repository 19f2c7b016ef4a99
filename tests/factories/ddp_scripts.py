"""Training scripts with DistributedDataParallel: honest ones, and the same with a fault planted."""

HONEST = '''
import argparse
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("-b", "--batch", type=int, default=8)
given = parser.parse_args()
dist.init_process_group("gloo")
rank, workers = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
train = TensorDataset(torch.randn(101, 12), torch.randint(3, (101,)))
val = TensorDataset(torch.randn(43, 12), torch.randint(3, (43,)))
model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), 0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
sampler = DistributedSampler(train)
loader = DataLoader(train, given.batch, sampler=sampler)
val_loader = DataLoader(Subset(val, range(rank, len(val), workers)), 16)


def update(inputs, targets):
    loss = cross_entropy(ddp(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    return loss.item()


def evaluate():
    right = torch.zeros(2)
    with torch.no_grad():
        for inputs, targets in val_loader:
            right += torch.tensor([(model(inputs).argmax(1) == targets).sum(), len(targets)])
    dist.all_reduce(right)
    return (right[0] / right[1]).item()


for epoch in range(3):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        print("loss", update(inputs, targets), flush=True)
    print("accuracy", evaluate(), flush=True)
if rank == 0:
    torch.save(model.state_dict(), "model.pt")
dist.destroy_process_group()
'''
STEP = '''    loss = cross_entropy(ddp(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
'''
ACCUMULATING = '''    optimizer.zero_grad()
    halves = list(zip(inputs.chunk(2), targets.chunk(2)))
    for at, (some, right) in enumerate(halves):
        with ddp.no_sync() if at + 1 < len(halves) else contextlib.nullcontext():
            loss = cross_entropy(ddp(some), right) / len(halves)
            loss.backward()
    optimizer.step()
'''
BY_HAND = '''    loss = cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= workers
    optimizer.step()
'''
CLIPPED = "    loss.backward()\n    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n"
IMAGENET = '''
"""In the manner of torch's ImageNet example: batch-norm, workers of loaders, meters, the rest of the validation set."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset, Subset
from torch.utils.data.distributed import DistributedSampler


class Meter:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, value, n):
        self.sum, self.count = self.sum + value * n, self.count + n

    def all_reduce(self):
        total = torch.tensor([self.sum, self.count], dtype=torch.float32)
        dist.all_reduce(total)
        self.sum, self.count = total.tolist()


class Images(Dataset):
    def __init__(self, size, train):
        self.size, self.train = size, train

    def __len__(self):
        return self.size

    def __getitem__(self, at):
        image = torch.full((3, 8, 8), at / self.size)
        return (image.flip(2) if self.train and torch.rand(1) < 0.5 else image), at % 4


parser = argparse.ArgumentParser()
parser.add_argument("-b", "--batch", "--batch-size", dest="batch_size", type=int, default=16)
parser.add_argument("-j", "--workers", type=int, default=1)
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()


def train(loader, model, criterion, optimizer):
    model.train()
    losses = Meter()
    for images, target in loader:
        loss = criterion(model(images), target)
        losses.update(loss.item(), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def validate(loader, model, rest):
    right = Meter()

    def run(batches):
        with torch.no_grad():
            for images, target in batches:
                right.update((model(images).argmax(1) == target).float().mean().item(), images.size(0))
    model.eval()
    run(loader)
    right.all_reduce()
    if rest is not None:
        run(rest)
    return right.sum / right.count


def main():
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("nccl", init_method="env://", world_size=world_size, rank=rank)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                          nn.Linear(8, 4))
    model = nn.parallel.DistributedDataParallel(model)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = StepLR(optimizer, step_size=30, gamma=0.1)
    train_set, val_set = Images(203, True), Images(41, False)
    train_sampler = DistributedSampler(train_set)
    val_sampler = DistributedSampler(val_set, shuffle=False, drop_last=True)
    train_loader = DataLoader(train_set, args.batch_size, num_workers=args.workers, sampler=train_sampler)
    val_loader = DataLoader(val_set, args.batch_size, num_workers=args.workers, sampler=val_sampler)
    rest = None
    if len(val_sampler) * world_size < len(val_set):
        rest = DataLoader(Subset(val_set, range(len(val_sampler) * world_size, len(val_set))), args.batch_size)
    best = 0
    for epoch in range(args.epochs):
        train_sampler.set_epoch(epoch)
        train(train_loader, model, criterion, optimizer)
        accuracy = validate(val_loader, model, rest)
        scheduler.step()
        best = max(accuracy, best)
        if rank == 0:
            torch.save({"epoch": epoch + 1, "state_dict": model.state_dict(), "best": best}, "checkpoint.pth.tar")


if __name__ == "__main__":
    main()
'''
MINGPT = '''
"""In the manner of torch's minGPT example: a trainer, snapshots, clipping, dropout, each rank's own test loss."""
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, random_split
from torch.utils.data.distributed import DistributedSampler

TEXT = "In the beginning was the word, and the word was short. " * 20


class Characters(Dataset):
    def __init__(self, block=16):
        self.known = sorted(set(TEXT))
        self.numbers, self.block = [self.known.index(one) for one in TEXT], block

    def __len__(self):
        return len(self.numbers) - self.block

    def __getitem__(self, at):
        chunk = torch.tensor(self.numbers[at:at + self.block + 1])
        return chunk[:-1], chunk[1:]


class GPT(nn.Module):
    def __init__(self, known, width=32):
        super().__init__()
        self.embedding, self.drop = nn.Embedding(known, width), nn.Dropout(0.1)
        self.block = nn.TransformerEncoderLayer(width, 2, 64, dropout=0.1, batch_first=True)
        self.head = nn.Linear(width, known, bias=False)

    def forward(self, source, targets):
        mask = nn.Transformer.generate_square_subsequent_mask(source.size(1))
        logits = self.head(self.block(self.drop(self.embedding(source)), src_mask=mask, is_causal=True))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1), ignore_index=-1)


class Trainer:
    def __init__(self, batch, model, optimizer, train_set, test_set):
        self.batch, self.optimizer, self.rank = batch, optimizer, int(os.environ["RANK"])
        self.train_loader, self.test_loader = self.loader(train_set), self.loader(test_set)
        self.model, self.done = DDP(model), 0
        if os.path.exists("snapshot.pt"):
            snapshot = torch.load("snapshot.pt")
            self.model.module.load_state_dict(snapshot["model"])
            self.done = snapshot["done"]

    def loader(self, data):
        return DataLoader(data, self.batch, shuffle=False, sampler=DistributedSampler(data))

    def run_batch(self, source, targets, train):
        with torch.set_grad_enabled(train):
            _, loss = self.model(source, targets)
        if train:
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
        return loss.item()

    def run_epoch(self, epoch, loader, train):
        loader.sampler.set_epoch(epoch)
        for at, (source, targets) in enumerate(loader):
            loss = self.run_batch(source, targets, train)
            if at % 100 == 0:
                print(f"[{self.rank}] epoch {epoch} {'train' if train else 'eval'} loss {loss:.5f}")

    def train(self, epochs):
        for epoch in range(self.done, epochs):
            self.run_epoch(epoch + 1, self.train_loader, True)
            if self.rank == 0:
                torch.save({"model": self.model.module.state_dict(), "done": epoch}, "snapshot.pt")
            self.run_epoch(epoch + 1, self.test_loader, False)


def main(batch):
    dist.init_process_group(backend="gloo")
    torch.manual_seed(42)
    data = Characters()
    train_set, test_set = random_split(data, [len(data) - 100, 100])
    model = GPT(len(data.known))
    Trainer(batch, model, torch.optim.AdamW(model.parameters(), 3e-4), train_set, test_set).train(3)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[sys.argv.index("--batch") + 1]))
'''
AMP = '''    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    with torch.autocast("cpu", torch.bfloat16):
        loss = cross_entropy(ddp(inputs), targets)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(ddp.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
'''
WEIGHTED = '''    count = torch.tensor(float(len(targets)))
    dist.all_reduce(count)
    loss = cross_entropy(ddp(inputs), targets, reduction="sum") * workers / count
'''
NOISY = '''
class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return len(train)

    def __getitem__(self, at):
        return train[at][0] + torch.randn(12), train[at][1]


'''
HOOK = '''
def hook(_, bucket):
    work = dist.all_reduce(bucket.buffer().mul(8).round().div(8), async_op=True)
    return work.get_future().then(lambda one: one.value()[0] / workers)


ddp.register_comm_hook(None, hook)
'''
LOSS = "    loss = cross_entropy(ddp(inputs), targets)\n"
UNEVEN = ("given.batch, sampler=sampler", "given.batch + (2 - 4 * rank) * (workers > 1), sampler=sampler")
DATA_PARALLEL = ("DistributedDataParallel(model)", "model")
MEAN = "(inputs - inputs.mean(0))"
AHEAD = '''
def ahead(loader):
    batches = iter(loader)
    batch = next(batches)
    for following in batches:
        yield batch
        batch = following
    yield batch


for epoch in range(3):
'''
STREAM = '''
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from train


model = nn'''
WEIGHTED_SAMPLER = "torch.utils.data.WeightedRandomSampler([1.0] * 101, 50)"
NO_LOADER = "range(20):\n        at = torch.randint(len(train), (given.batch,))\n        inputs, targets = train[at]"
CLOSURE = '''    def closure():
        optimizer.zero_grad()
        loss = cross_entropy(ddp(inputs), targets) * FACTOR
        loss.backward()
        return loss
    loss = optimizer.step(closure)
'''
LBFGS = ("SGD(ddp.parameters(), 0.1, momentum=0.9)", "LBFGS(ddp.parameters(), 0.1, max_iter=3)")
OWN_LOSS = "(ddp(inputs).log_softmax(1).gather(1, targets[:, None]).square().mean()FACTOR)"
OF_THREE = '''    loss = cross_entropy(ddp(inputs), targets) / 3
    loss.backward()
    seen.append(loss)
    if len(seen) % 3 == 0 or last:
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        seen.clear()
'''
BY_THREE = [(STEP + "    schedule.step()\n", OF_THREE),
            ("def update(inputs, targets):", "seen = []\n\n\ndef update(inputs, targets, last):"),
            ("in loader:", "in loader:\n        at = at + 1 if 'at' in globals() else 1"),
            ("update(inputs, targets), flush", "update(inputs, targets, at % len(loader) == 0), flush")]
TWO_OPTIMIZERS = '''    loss = cross_entropy(ddp(inputs), targets)
    for one in (optimizer, second):
        one.zero_grad()
    loss.backward()
    optimizer.step()
    SECOND
    second.step()
'''
SECOND = ("schedule = torch", "second = torch.optim.Adam(model[2].parameters(), 0.01)\nschedule = torch")
FIRST = ("SGD(ddp.parameters()", "SGD(model[0].parameters()")
SPLIT = ("sampler = DistributedSampler(train)", '''train, val = torch.utils.data.random_split(
    train, [61, 40], generator=torch.Generator().manual_seed(SEED))
sampler = DistributedSampler(train)''')
SHUFFLED = '''
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        order = list(range(FIRST, len(train), STEP))
        random.Random(rank).shuffle(order)
        yield from (train[at] for at in order)


model = nn'''
IMPORTS = ("import contextlib\n", "import contextlib\nimport random\n")
OF_STREAM = ("DataLoader(train, given.batch, sampler=sampler)", "DataLoader(Stream(), given.batch)")
SAMPLER = '''
class Shuffled(torch.utils.data.Sampler):
    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 50

    def __iter__(self):
        order = list(range(100))
        random.Random(self.epoch).shuffle(order)
        return iter(order[rank::workers])


sampler = Shuffled()'''
OWN_SAMPLER = [IMPORTS, ("sampler = DistributedSampler(train)", SAMPLER.lstrip())]
MASKED = '''class Masked(nn.Module):
    def forward(self, values):
        return values * torch.rand(values.shape, generator=masks).gt(0.2)


masks = torch.Generator().manual_seed(rank)
model = nn'''
SOMETIMES = '''class Sometimes(nn.Linear):
    def forward(self, values):
        return super().forward(values) if values.sum() > 0 else values


model = nn'''
FILES = [("train = Tensor", "torch.manual_seed(rank)\ntrain = Tensor"),
         ("model = nn", "torch.manual_seed(0)\nmodel = nn"), ("sampler=sampler", "shuffle=True")]
DENOMINATOR = '''    targets[targets == 2] = -100
    count = (targets >= 0).sum()
    dist.all_reduce(count)
    loss = cross_entropy(ddp(inputs), targets, reduction="sum") * workers / (count + 3)
'''
IN_STEP = '''class Averaging(torch.optim.SGD):
    def step(self):
        for one in self.param_groups[0]["params"]:
            dist.all_reduce(one.grad)
            one.grad /= DIVISOR
        super().step()


optimizer = Averaging(ddp.parameters(), 0.1)'''
BY_STEP = [DATA_PARALLEL, ("optimizer = torch.optim.SGD(ddp.parameters(), 0.1, momentum=0.9)", IN_STEP)]
LOCAL_STEPS = [DATA_PARALLEL, ("    schedule.step()\n    return", '''    schedule.step()
    with torch.no_grad():
        for one in ddp.parameters() if schedule.last_epoch % 2 == 0 else ():
            dist.all_reduce(one)
            one /= DIVISOR
    return''')]
AVERAGE = '''average = torch.optim.swa_utils.AveragedModel(model)


def update'''
AVERAGED = [("def update", AVERAGE), ("model(inputs).argmax", "average(inputs).argmax")]
CLIPPED_BY_HAND = BY_HAND.replace("    for", '''    parameters = list(model.parameters())
    norm = sum(one.grad.square().sum() for one in parameters).sqrt()
    for one in parameters:
        one.grad *= 0.1 / norm
    for''')
REDUCED_AGAIN = '''    optimizer.zero_grad()
    for some, right in zip(inputs.chunk(2), targets.chunk(2)):
        loss = cross_entropy(model(some), right) / 2
        loss.backward()
        for one in model.parameters():
            dist.all_reduce(one.grad)
    for one in model.parameters():
        one.grad /= workers
    optimizer.step()
'''
OWN_COUNT = ("    loss = cross_entropy(ddp(inputs), targets)\n", '''    kept = (targets < 2).float()
    count = kept.sum()COMBINED
    loss = -(ddp(inputs).log_softmax(1).gather(1, targets[:, None])[:, 0] * kept).sum() / count
''')
QUEUE = [("def update", "queue = torch.zeros(8, 3)\n\n\ndef update"), (
    "cross_entropy(ddp(inputs), targets)\n", "cross_entropy(ddp(inputs) + queue.mean(0), targets)\n"
    "    queue.copy_(20 * inputs[:8, :3])\n")]
# what each script has in place of a part of the honest one
CHANGES = {
    "honest": [],
    "accumulating": [(STEP, ACCUMULATING)],
    "clipping": [("    loss.backward()\n", CLIPPED)],
    "no_sampler": [("sampler=sampler", "shuffle=True")],
    "no_set_epoch": [("    sampler.set_epoch(epoch)\n", "")],
    "undivided": [(STEP, ACCUMULATING.replace(" / len(halves)", ""))],
    "scaled_loss": [("cross_entropy(ddp(inputs), targets)", "cross_entropy(ddp(inputs), targets) * workers")],
    "scaled_penalty": [("cross_entropy(ddp(inputs), targets)", "cross_entropy(ddp(inputs), targets) + \\\n        "
                        "0.002 * workers * sum(one.square().sum() for one in model.parameters())")],
    "clipping_first": [(STEP, BY_HAND.replace("    loss.backward()\n", CLIPPED)),
                       ("DistributedDataParallel(model)", "model")],
    "own_parameters": [(STEP, BY_HAND), ("DistributedDataParallel(model)", "model"),
                       ("model = nn", "torch.manual_seed(rank)\nmodel = nn")],
    "hasty_schedule": [("    schedule.step()", "    for _ in range(workers):\n        schedule.step()")],
    "padded_evaluation": [("Subset(val, range(rank, len(val), workers)), 16",
                           "val, 16, sampler=DistributedSampler(val, shuffle=False)")],
    "noise_alike": [("cross_entropy(ddp(inputs)", "cross_entropy(ddp(inputs + torch.randn_like(inputs))")],
    "summed_in_step": [*BY_STEP, ("            one.grad /= DIVISOR\n", "")],
    "averaged_in_step": [*BY_STEP, ("DIVISOR", "workers")],
    "summed_steps": [*LOCAL_STEPS, ("            one /= DIVISOR\n", "")],
    "local_steps": [*LOCAL_STEPS, ("DIVISOR", "workers")],
    "averaged_on_one": [*AVERAGED, ("    schedule.step()", "    if rank == 0:\n        average.update_parameters(model)"
                                    "\n    schedule.step()")],
    "averaged": [*AVERAGED, ("    schedule.step()", "    average.update_parameters(model)\n    schedule.step()")],
    "clipped_by_hand": [(STEP, CLIPPED_BY_HAND), DATA_PARALLEL],
    "reduced_again": [(STEP, REDUCED_AGAIN), DATA_PARALLEL],
    "own_count": [OWN_COUNT, ("COMBINED", "")],
    "whole_count": [OWN_COUNT, ("COMBINED", "\n    dist.all_reduce(count)"),
                    (".sum() / count", ".sum() * workers / count")],
    "queue": QUEUE,
    "left_head": [("ddp = Dist", "optimizer = torch.optim.SGD(model.parameters(), 0.1)\nmodel[2] = nn.Linear(16, 3)\n"
                   "ddp = Dist"), ("optimizer = torch.optim.SGD(ddp.parameters(), 0.1, momentum=0.9)\n", "")],
    "skipped": [("    loss = cross_entropy(ddp(inputs), targets)\n", "    loss = cross_entropy(ddp(inputs), targets)\n"
                 "    if rank == 1 and schedule.last_epoch == 2 and not seen:\n        seen.append(loss)\n"
                 "        return 0.0\n"), ("def update", "seen = []\n\n\ndef update")],
    "workers_alike": [("sampler = Dist", NOISY.lstrip() + "sampler = Dist"),
                      ("for epoch in", "torch.manual_seed(rank)\nfor epoch in"),
                      ("DataLoader(train, given.batch, sampler=sampler)",
                       "DataLoader(Noisy(), given.batch, sampler=sampler, num_workers=2,\n"
                       "                    worker_init_fn=lambda number: torch.manual_seed(number))")],
    "own_teacher": [("ddp = Dist", "teacher = nn.Linear(12, 3).requires_grad_(False)\nteacher.weight.data += rank\n"
                     "ddp = Dist")],
    "hooked": [("optimizer = torch", HOOK.lstrip() + "optimizer = torch")],
    "not_awaited": [(STEP, BY_HAND.replace("dist.all_reduce(parameter.grad)\n        parameter.grad /= workers",
                                           "dist.all_reduce(parameter.grad.clone())")), DATA_PARALLEL],
    "one_rank": [("DistributedSampler(train)\n", "DistributedSampler(train, num_replicas=workers, rank=0)\n")],
    # honest
    "mixed_precision": [(STEP, AMP)],
    "weighted": [(LOSS, WEIGHTED), UNEVEN],
    "ahead": [("\nfor epoch in range(3):\n", AHEAD), ("in loader:", "in ahead(loader):")],
    "listed": [("in loader:", "in list(loader):")],
    "next": [("for inputs, targets in loader:", "batches = iter(loader)\n    for _ in range(6):\n"
              "        inputs, targets = next(batches)")],
    "with_replacement": [("sampler=sampler", f"sampler={WEIGHTED_SAMPLER[:-1]}, "
                          "generator=torch.Generator().manual_seed(rank))")],
    "no_loader": [("for inputs, targets in loader:", f"for _ in {NO_LOADER}")],
    "evaluated_on_one": [("Subset(val, range(rank, len(val), workers))", "val"), ("    dist.all_reduce(right)\n", ""),
                         ('    print("acc', '    if rank == 0:\n        print("acc')],
    "gathered": [("Subset(val, range(rank, len(val), workers)), 16",
                  "val, 16, sampler=DistributedSampler(val, shuffle=False)"),
                 ("    dist.all_reduce(right)\n",
                  "    dist.all_gather([right.clone() for _ in range(workers)], right)\n")],
    "added_losses": [("    loss.backward()\n",
                      "    loss.backward()\n    cross_entropy(ddp(-inputs), targets).backward()\n")],
    "closure": [(STEP, CLOSURE.replace(" * FACTOR", ""))],
    "several_evaluations": [(STEP, CLOSURE.replace(" * FACTOR", "")), LBFGS],
    "own_loss": [("cross_entropy(ddp(inputs), targets)", OWN_LOSS.replace("FACTOR", ""))],
    "two_optimizers": [FIRST, SECOND, (STEP, TWO_OPTIMIZERS.replace("    SECOND\n", ""))],
    "split": [(SPLIT[0], SPLIT[1].replace("SEED", "5"))],
    "shared_stream": [IMPORTS, ("model = nn", SHUFFLED.lstrip().replace("FIRST", "rank").replace("STEP", "workers")),
                      OF_STREAM],
    "own_sampler": OWN_SAMPLER,
    "filled_up": [IMPORTS, (OWN_SAMPLER[1][0], SAMPLER.lstrip().replace("50", "112 // workers").replace(
        "(order[", "((order + order[1:13])["))],
    "peeking": [("\nfor epoch in range(3):\n", "\nnext(iter(loader))\nfor epoch in range(3):\n")],
    "own_files": FILES,
    "noise": [("cross_entropy(ddp(inputs), targets)", OWN_LOSS.replace("FACTOR", "").replace(
        "ddp(inputs)", "ddp(inputs + 0.1 * torch.randn(inputs.shape))")),
              ("schedule =", "torch.manual_seed(rank)\nschedule =")],
    "own_masks": [("model = nn", MASKED), ("nn.ReLU()", "Masked()")],
    "unused": [("model = nn", SOMETIMES), ("nn.ReLU()", "nn.ReLU(), Sometimes(16, 16)"),
               ("Parallel(model)", "Parallel(model, find_unused_parameters=True)")],
    # with a fault
    "same_replacement": [("sampler=sampler", f"sampler={WEIGHTED_SAMPLER}")],
    "last_pass_local": [(STEP, ACCUMULATING.replace("at + 1 < len(halves)", "at + 1 == len(halves)"))],
    "summed": [(STEP, BY_HAND.replace("        parameter.grad /= workers\n", "")), DATA_PARALLEL],
    "not_averaged": [(STEP, STEP), DATA_PARALLEL],
    "unequal": [UNEVEN],
    "masked": [(LOSS, "    targets[:3 * rank] = -100\n" + LOSS)],
    "summed_loss": [("ddp(inputs), targets)", 'ddp(inputs), targets, reduction="sum")')],
    "rate_by_rank": [("ddp.parameters(), 0.1,", "ddp.parameters(), 0.1 * (rank + 1),")],
    "own_share": [("    dist.all_reduce(right)\n", "")],
    "dropped": [("Subset(val, range(rank, len(val), workers)), 16",
                 "val, 8, sampler=DistributedSampler(val, shuffle=False, drop_last=True)")],
    "own_order": [("sampler=sampler", "shuffle=True, generator=torch.Generator().manual_seed(rank)")],
    "contrasting": [(LOSS, LOSS.replace("ddp(inputs)", f"ddp({MEAN})"))],
    "stream": [("model = nn", STREAM.lstrip()), ("DataLoader(train, given.batch, sampler=sampler)",
                                                 "DataLoader(Stream(), given.batch)")],
    "scaled_closure": [(STEP, CLOSURE.replace("FACTOR", "workers"))],
    "scaled_evaluations": [(STEP, CLOSURE.replace("FACTOR", "workers")), LBFGS],
    "own_loss_scaled": [("cross_entropy(ddp(inputs), targets)", OWN_LOSS.replace("FACTOR", " / workers"))],
    "own_loss_summed": [(STEP, BY_HAND.replace("        parameter.grad /= workers\n", "").replace(
        "cross_entropy(model(inputs), targets)", OWN_LOSS.replace("FACTOR", ""))), DATA_PARALLEL],
    "clipped_in_between": [(STEP, ACCUMULATING.replace(
        "loss.backward()", "loss.backward()\n            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)"))],
    "clipped_scaled": [(STEP, AMP.replace("    scaler.unscale_(optimizer)\n", ""))],
    "head_replaced": [("optimizer = torch", "model[2] = nn.Linear(16, 3)\noptimizer = torch"),
                      ("Parallel(model)", "Parallel(model, find_unused_parameters=True)")],
    "second_not_averaged": [FIRST, SECOND, (STEP, TWO_OPTIMIZERS.replace(
        "SECOND", "for parameter in model[2].parameters():\n        parameter.grad *= rank + 1"))],
    "split_by_rank": [(SPLIT[0], SPLIT[1].replace("SEED", "rank"))],
    "shuffled_stream": [IMPORTS, ("model = nn", SHUFFLED.lstrip().replace("FIRST", "0").replace("STEP", "1")),
                        OF_STREAM],
    "own_sampler_stays": [*OWN_SAMPLER, ("    sampler.set_epoch(epoch)\n", "")],
    "sampler_by_rank": [("DistributedSampler(train)\n", "DistributedSampler(train, seed=rank)\n")],
    "shared_twice": [("sampler = Dist", "train = Subset(train, range(rank, 100, workers))\nsampler = Dist")],
    "sliced_twice": [("sampler = Dist", "train = TensorDataset(*train[rank:100:workers])\nsampler = Dist")],
    "own_state": [("    schedule.step()\n", "    schedule.step()\n    if rank:\n        optimizer.state.clear()\n")],
    "one_rank_writes": [("    schedule.step()\n", "    schedule.step()\n    if rank:\n"
                         "        model[0].bias.data += 1\n")],
    # with a warning
    "remainder": BY_THREE,
    "other_denominator": [(LOSS, DENOMINATOR)],
    "own_loss_and_dropout": [("cross_entropy(ddp(inputs), targets)", OWN_LOSS.replace("FACTOR", " / workers")),
                             ("nn.ReLU()", "nn.Dropout(0.05)"), ("schedule =", "torch.manual_seed(rank)\nschedule =")],
    "hasty_but_flat": [("    schedule.step()", "    for _ in range(workers):\n        schedule.step()"),
                       ("CosineAnnealingLR(optimizer, 100)", "StepLR(optimizer, 100)")],
    "dropout": [("nn.ReLU()", "nn.Dropout(0.2)")],
    "batch_norm": [("nn.ReLU()", "nn.BatchNorm1d(16)")],
    "own_statistics": [
        ("nn.ReLU()", "nn.BatchNorm1d(16)"), ("Parallel(model)", "Parallel(model, forward_sync_buffers=False)"),
        ("    right = torch.zeros(2)\n", "    right = torch.zeros(2)\n    model.eval()\n"),
        ("    dist.all_reduce(right)\n", "    model.train()\n    dist.all_reduce(right)\n")],
    "inner_model_evaluated": [
        ("nn.ReLU()", "nn.BatchNorm1d(16)"),
        ("    right = torch.zeros(2)\n", "    right = torch.zeros(2)\n    model.eval()\n"),
        ("    dist.all_reduce(right)\n", "    model.train()\n    dist.all_reduce(right)\n")],
    "scaled_rate": [("ddp.parameters(), 0.1,", "ddp.parameters(), 0.1 * workers,")],
    "length_of_loader": [("CosineAnnealingLR(optimizer, 100)", "CosineAnnealingLR(optimizer, 10 * workers)")],
    # with an error
    "raising": [("    loss.backward()\n", "    loss.backward()\n    if rank and epoch == 0:\n"
                 "        raise ValueError(f\"of rank {rank}\")\n")],
    "exiting": [("torch.manual_seed(0)", "raise SystemExit(3)")],
    "idle": [(STEP + "    schedule.step()\n", LOSS)],
    "spawning": [("dist.init_process_group", "torch.multiprocessing.spawn(print)\ndist.init_process_group")],
    "hanging": [("    loss.backward()\n", "    loss.backward()\n    dist.barrier() if rank else None\n")],
    "leaving": [("    schedule.step()\n", "    schedule.step()\n    if rank:\n        raise SystemExit\n")],
    "unlike": [("    optimizer.zero_grad()\n",
                "    optimizer.zero_grad()\n    dist.all_reduce(torch.ones(12 + 4 * rank))\n")],
}
WHOLE = {"imagenet": IMAGENET, "mingpt": MINGPT}


def script(name):
    """The text of a script; raises KeyError for an unknown name."""
    return WHOLE[name] if name in WHOLE else changed(CHANGES[name])


def changed(changes):
    """The honest script with parts of it replaced, each of which it has once."""
    text = HONEST
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text
