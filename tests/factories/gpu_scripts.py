"""Training scripts for GPUs, as people write them, and the same with a fault."""

TORCHRUN = '''
import argparse, os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group(backend="nccl", device_id=torch.device("cuda", local_rank))
    torch.manual_seed(0)
    x, y = torch.randn(128, 20), torch.randint(0, 4, (128,))
    train = TensorDataset(x, y)
    model = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4)).cuda()
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = DDP(model, device_ids=[local_rank], output_device=local_rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, batch_size=args.batch_size, sampler=sampler, pin_memory=True)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        start.record()
        for images, target in loader:
            images = images.to(local_rank, non_blocking=True)
            target = target.cuda(local_rank, non_blocking=True)
            loss = nn.functional.cross_entropy(model(images), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        end.record()
        torch.cuda.synchronize()
        dist.all_reduce(loss.detach(), op=dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(epoch, loss.item(), start.elapsed_time(end), torch.cuda.max_memory_allocated() / 2**20)
            torch.save({"model": model.module.state_dict()}, "checkpoint.pt")
        dist.barrier(device_ids=[local_rank])
        model.module.load_state_dict(torch.load("checkpoint.pt", map_location=f"cuda:{local_rank}")["model"])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
'''
SPAWNING = '''
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class MyTrainDataset(Dataset):
    def __init__(self, size):
        g = torch.Generator().manual_seed(0)
        self.data = [(torch.rand(20, generator=g), torch.rand(1, generator=g)) for _ in range(size)]

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]


def ddp_setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    torch.cuda.set_device(rank)
    dist.init_process_group(backend="nccl", rank=rank, world_size=world_size)


class Trainer:
    def __init__(self, model, train_data, optimizer, gpu_id, save_every):
        self.gpu_id = gpu_id
        self.model = model.to(gpu_id)
        self.train_data = train_data
        self.optimizer = optimizer
        self.save_every = save_every
        self.model = DDP(model, device_ids=[gpu_id])

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        output = self.model(source)
        loss = F.mse_loss(output, targets)
        loss.backward()
        self.optimizer.step()

    def _run_epoch(self, epoch):
        b_sz = len(next(iter(self.train_data))[0])
        print(f"[GPU{self.gpu_id}] Epoch {epoch} | Batchsize: {b_sz} | Steps: {len(self.train_data)}")
        self.train_data.sampler.set_epoch(epoch)
        for source, targets in self.train_data:
            source = source.to(self.gpu_id)
            targets = targets.to(self.gpu_id)
            self._run_batch(source, targets)

    def train(self, max_epochs):
        for epoch in range(max_epochs):
            self._run_epoch(epoch)
            if self.gpu_id == 0 and epoch % self.save_every == 0:
                torch.save(self.model.module.state_dict(), "checkpoint.pt")


def main(rank, world_size, save_every, total_epochs, batch_size):
    ddp_setup(rank, world_size)
    torch.manual_seed(1)
    model = torch.nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    train_set = MyTrainDataset(256)
    train_data = DataLoader(train_set, batch_size=batch_size, pin_memory=True, shuffle=False,
                            sampler=DistributedSampler(train_set))
    Trainer(model, train_data, optimizer, rank, save_every).train(total_epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    world_size = torch.cuda.device_count()
    mp.spawn(main, args=(world_size, 1, 3, int(sys.argv[1])), nprocs=world_size)
'''
IF_AVAILABLE = '''
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
args = parser.parse_args()
dist.init_process_group()
rank = dist.get_rank()
device = torch.device(f"cuda:{rank % torch.cuda.device_count()}" if torch.cuda.is_available() else "cpu")
torch.manual_seed(42)
if device.type == "cuda":
    torch.cuda.manual_seed_all(42)
    torch.backends.cudnn.benchmark = True
    print(torch.cuda.get_device_name(device), torch.cuda.get_device_properties(0).total_memory)
data = TensorDataset(torch.randn(96, 1, 8, 8), torch.randint(10, (96,)))
model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)).to(device)
if dist.get_world_size() > 1:
    model = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
sampler = DistributedSampler(data)
loader = DataLoader(data, args.batch_size, sampler=sampler)
weights = torch.ones(10, device=device)
for epoch in range(4):
    sampler.set_epoch(epoch)
    total = torch.zeros(1, device=device)
    for x, y in loader:
        x, y = x.to(device, non_blocking=True), y.to(device)
        loss = nn.functional.cross_entropy(model(x), y, weight=weights)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    torch.cuda.empty_cache()
'''
SCALING = '''
import argparse
import os
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.cuda.amp import GradScaler, autocast
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
warnings.filterwarnings("ignore", category=FutureWarning)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--local_rank", "--local-rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
args = parser.parse_args()
torch.cuda.set_device(args.local_rank)
dist.init_process_group("nccl", init_method="env://")
torch.manual_seed(0)
data = TensorDataset(torch.randn(128, 16), torch.randint(5, (128,)))
net = DDP(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 5)).cuda(args.local_rank),
          [args.local_rank], args.local_rank)
opt = torch.optim.Adam(net.parameters(), 1e-3)
scaler = GradScaler()
sampler = DistributedSampler(data)
loader = DataLoader(data, args.batch, sampler=sampler, pin_memory=True)
criterion = nn.CrossEntropyLoss().cuda()
for epoch in range(3):
    sampler.set_epoch(epoch)
    for step, (x, y) in enumerate(loader):
        x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        with autocast(dtype=torch.float16):
            loss = criterion(net(x), y)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05)
        scaler.step(opt)
        scaler.update()
    torch.cuda.synchronize()
'''
BY_GPU = '''
import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.parallel
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("-b", "--batch-size", default=32, type=int)
parser.add_argument("--epochs", default=3, type=int)
parser.add_argument("--world-size", default=-1, type=int)
parser.add_argument("--rank", default=-1, type=int)
parser.add_argument("--dist-url", default="tcp://224.66.41.62:23456", type=str)
parser.add_argument("--dist-backend", default="nccl", type=str)
parser.add_argument("--gpu", default=None, type=int)
parser.add_argument("--multiprocessing-distributed", action="store_true")


def main():
    args = parser.parse_args()
    if args.dist_url == "env://" and args.world_size == -1:
        args.world_size = int(os.environ["WORLD_SIZE"])
    args.distributed = args.world_size > 1 or args.multiprocessing_distributed
    ngpus_per_node = torch.cuda.device_count() if torch.cuda.is_available() else 1
    if args.multiprocessing_distributed:
        args.world_size = ngpus_per_node * args.world_size
        mp.spawn(main_worker, nprocs=ngpus_per_node, args=(ngpus_per_node, args))
    else:
        main_worker(args.gpu, ngpus_per_node, args)


def main_worker(gpu, ngpus_per_node, args):
    args.gpu = gpu
    if args.gpu is not None:
        print(f"Use GPU: {args.gpu} for training")
    if args.distributed:
        if args.multiprocessing_distributed:
            args.rank = args.rank * ngpus_per_node + gpu
        dist.init_process_group(backend=args.dist_backend, init_method=args.dist_url,
                                world_size=args.world_size, rank=args.rank)
    torch.manual_seed(7)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
    if not torch.cuda.is_available():
        print("using CPU, this will be slow")
    elif args.distributed:
        if args.gpu is not None:
            torch.cuda.set_device(args.gpu)
            model.cuda(args.gpu)
            args.batch_size = int(args.batch_size / ngpus_per_node)
            model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[args.gpu])
        else:
            model.cuda()
            model = torch.nn.parallel.DistributedDataParallel(model)
    elif args.gpu is not None:
        torch.cuda.set_device(args.gpu)
        model = model.cuda(args.gpu)
    else:
        model = torch.nn.DataParallel(model).cuda()
    if torch.cuda.is_available():
        device = torch.device(f"cuda:{args.gpu}") if args.gpu is not None else torch.device("cuda")
    else:
        device = torch.device("cpu")
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
    train = TensorDataset(torch.randn(128, 3, 8, 8), torch.randint(4, (128,)))
    val = TensorDataset(torch.randn(40, 3, 8, 8), torch.randint(4, (40,)))
    sampler = torch.utils.data.distributed.DistributedSampler(train) if args.distributed else None
    loader = DataLoader(train, args.batch_size, shuffle=sampler is None, sampler=sampler, num_workers=1,
                        pin_memory=True)
    val_loader = DataLoader(val, args.batch_size, sampler=torch.utils.data.distributed.DistributedSampler(
        val, shuffle=False, drop_last=True) if args.distributed else None)
    for epoch in range(args.epochs):
        if args.distributed:
            sampler.set_epoch(epoch)
        model.train()
        for images, target in loader:
            images, target = images.to(device, non_blocking=True), target.to(device, non_blocking=True)
            loss = criterion(model(images), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        right = torch.zeros(2, device=device)
        with torch.no_grad():
            for images, target in val_loader:
                if args.gpu is not None and torch.cuda.is_available():
                    images = images.cuda(args.gpu, non_blocking=True)
                if torch.cuda.is_available():
                    target = target.cuda(args.gpu, non_blocking=True)
                right += torch.tensor([(model(images).argmax(1) == target).sum(), len(target)], device=device)
        if args.distributed:
            dist.all_reduce(right, dist.ReduceOp.SUM, async_op=False)
        scheduler.step()
        if not args.multiprocessing_distributed or args.rank % ngpus_per_node == 0:
            torch.save({"epoch": epoch + 1, "state_dict": model.state_dict()}, "checkpoint.pth.tar")


if __name__ == "__main__":
    main()
'''
# name -> script, its words after the doctor's own
RIGHT = {
    "torchrun": (TORCHRUN, ["--batch_size", "{local}"]),
    "spawning": (SPAWNING, ["{local}"]),
    "if_available": (IF_AVAILABLE, ["--batch-size", "{local}"]),
    "scaling": (SCALING, ["--batch", "{local}"]),
    "by_gpu": (BY_GPU, ["--batch-size", "{global}", "--multiprocessing-distributed", "--world-size", "1", "--rank",
                        "0"]),
}
CHANGES = {
    "no_sampler": ("spawning", [("shuffle=False,", "shuffle=True)"),
                                (28 * " " + "sampler=DistributedSampler(train_set))\n", ""),
                                ("        self.train_data.sampler.set_epoch(epoch)\n", "")]),
    "not_averaged": ("if_available", [("_size() > 1:", '_size() > 1 and device.type == "cpu":')]),
    "clipped_while_scaled": ("scaling", [("        scaler.unscale_(opt)\n", "")]),
}


def script(name):
    """The text of a script, and its words; raises KeyError for an unknown name."""
    if name in RIGHT:
        return RIGHT[name]
    of, changes = CHANGES[name]
    text, words = RIGHT[of]
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text, words
