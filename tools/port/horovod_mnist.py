"""An epoch of images as a Horovod script trains it, in the manner of Horovod's PyTorch example for MNIST.

    script = HorovodScript(model, lr, batch=64)
    script.train(images, labels, epoch=0)
    script.evaluate(images, labels)                 mean cross-entropy and error over all workers

Each worker reads its part of a DistributedSampler through a DataLoader with one worker process, and steps with
DistributedOptimizer at a learning rate scaled by the number of workers. It is what tools/bench_epoch is held against;
torchvision's decoding of images is left out.
"""
from __future__ import annotations

from collections.abc import Callable

import horovod.torch as hvd
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

TEST_BATCH = 1000
LOG_EVERY = 10          # steps between two looks at the loss


class Images(Dataset):
    """Images (uint8, shape (n, 1, height, width)) scaled to 0..1 and normalized one by one, and their classes."""

    def __init__(self, images: Tensor, labels: Tensor, mean: float, deviation: float):
        self.images, self.labels, self.mean, self.deviation = images, labels, mean, deviation

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        image = self.images[i].to(torch.float32).div(255)
        return image.sub(self.mean).div(self.deviation), int(self.labels[i])


class HorovodScript:
    """A model with its optimizer on each worker, the parameters being rank 0's.

    batch            examples of each worker in a step
    mean, deviation  by which images are normalized
    lr_at            the learning rate by the steps done, in place of the scaled one; may be set later
    readers          processes of each worker that read
    """

    readers = 1

    def __init__(self, model: nn.Module, lr: float, batch: int, momentum: float = 0.9, nesterov: bool = True,
                 mean: float = 0.0, deviation: float = 1.0):
        hvd.init()
        self.steps = 0
        self.lr_at: Callable[[int], float] | None = None
        self.model, self.batch, self.mean, self.deviation = model, batch, mean, deviation
        optimizer = torch.optim.SGD(model.parameters(), lr=lr * hvd.size(), momentum=momentum, nesterov=nesterov)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        self.optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    def loader(self, images: Tensor, labels: Tensor, batch: int, epoch: int | None) -> DataLoader:
        """This worker's part of the examples, shuffled by the epoch, if any."""
        examples = Images(images, labels, self.mean, self.deviation)
        sampler: DistributedSampler = DistributedSampler(examples, hvd.size(), hvd.rank(), shuffle=epoch is not None)
        sampler.set_epoch(epoch or 0)
        return DataLoader(examples, batch, sampler=sampler, num_workers=self.readers,
                          multiprocessing_context="forkserver" if self.readers else None)

    def train(self, images: Tensor, labels: Tensor, epoch: int) -> int:
        """One epoch; returns its steps."""
        self.model.train()
        before = self.steps
        for inputs, classes in self.loader(images, labels, self.batch, epoch):
            if self.lr_at:
                for group in self.optimizer.param_groups:
                    group["lr"] = self.lr_at(self.steps)
            self.optimizer.zero_grad()
            loss = cross_entropy(self.model(inputs), classes)
            loss.backward()
            self.optimizer.step()
            self.steps += 1
            if self.steps % LOG_EVERY == 0:
                loss.item()
        return self.steps - before

    @torch.no_grad()
    def evaluate(self, images: Tensor, labels: Tensor) -> tuple[float, float]:
        """Mean cross-entropy and error over the examples, averaged over the workers."""
        self.model.eval()
        sums = torch.zeros(3, dtype=torch.float64)
        for inputs, classes in self.loader(images, labels, TEST_BATCH, None):
            logits = self.model(inputs)
            sums += torch.tensor([cross_entropy(logits, classes, reduction="sum").item(),
                                  (logits.argmax(1) != classes).sum().item(), len(classes)], dtype=torch.float64)
        loss, error = hvd.allreduce(sums[:2] / sums[2], name="evaluation").tolist()
        return loss, error
