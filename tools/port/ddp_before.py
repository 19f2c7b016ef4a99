#!/usr/bin/env python3
"""A training script as many are: DistributedDataParallel over a map-style data set.

    torchrun --standalone --nproc-per-node 2 ddp_before.py --epochs 5
"""
import argparse

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

PARTS = {"train": slice(0, 1197), "val": slice(1197, 1497), "test": slice(1497, None)}


class Digits(Dataset):
    """8x8 images as dicts; in training each is shifted by up to a pixel."""

    def __init__(self, part, shift=False):
        images, digits = load_digits(return_X_y=True)
        self.images = torch.tensor(images[PARTS[part]] / 16, dtype=torch.float32).view(-1, 1, 8, 8)
        self.digits = torch.tensor(digits[PARTS[part]])
        self.shift = shift

    def __len__(self):
        return len(self.digits)

    def __getitem__(self, i):
        image = self.images[i]
        if self.shift:
            rows, columns = torch.randint(-1, 2, (2,)).tolist()
            image = image.roll((rows, columns), (1, 2))
        return {"image": image, "digit": self.digits[i]}


class Net(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 10))

    def forward(self, image):
        return self.layers(image)


def step(model, optimizer, batch):
    """One update; gives the mean loss over the batch."""
    loss = cross_entropy(model(batch["image"]), batch["digit"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


@torch.no_grad()
def evaluate(model, loader):
    """Mean cross-entropy and error over the validation set."""
    model.eval()
    nats, errors, batches = 0.0, 0.0, 0
    for batch in loader:
        logits = model(batch["image"])
        nats += cross_entropy(logits, batch["digit"]).item()
        errors += (logits.argmax(1) != batch["digit"]).double().mean().item()
        batches += 1
    means = torch.tensor([nats / batches, errors / batches])
    dist.all_reduce(means)
    model.train()
    return (means / dist.get_world_size()).tolist()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16, help="examples a worker")
    parser.add_argument("--lr", type=float, default=0.02)
    given = parser.parse_args()
    dist.init_process_group("gloo")
    rank, workers = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    train, val = Digits("train", shift=True), Digits("val")
    sampler = DistributedSampler(train)
    train_loader = DataLoader(train, given.batch, sampler=sampler)
    val_loader = DataLoader(val, 64, sampler=DistributedSampler(val, shuffle=False))
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), given.lr * workers, momentum=0.9, weight_decay=1e-4)
    for epoch in range(given.epochs):
        sampler.set_epoch(epoch)
        for batch in train_loader:
            step(model, optimizer, batch)
        nats, error = evaluate(model, val_loader)
        if rank == 0:
            print(f"epoch {epoch + 1}: val cross_entropy {nats:.4f} error {error:.4f}")
    if rank == 0:
        torch.save(model.module.state_dict(), "ddp_model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
