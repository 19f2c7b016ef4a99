"""What is trained: data set, model, loss, metrics and target.

The trainer asks a workload for five things and knows nothing else of it:

    data = workload.load(data_dir)                         Data: train, val and test splits
    model = workload.build(**model_args)                   a torch module
    batch = split.take(indices).to(device)                 a Batch, whatever the loss understands
    total, count = workload.loss(model, batch, smoothing)  the sum of the examples' losses, and how many
    sums = workload.measure(model, batch)                  each metric's sum and count, which add up over batches
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from .errors import DataError


@dataclass(frozen=True)
class Batch:
    """Inputs, shape (n, ...), and labels, shape (n,), int64."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> Batch:
        return Batch(self.inputs.to(device, non_blocking=True), self.labels.to(device, non_blocking=True))


@dataclass(frozen=True)
class Split:
    """Examples held in memory as two tensors and indexed: inputs (n, ...) of any type, labels (n,) int64."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: np.ndarray) -> Batch:
        """The examples at the indices: int64, shape (k,)."""
        where = torch.from_numpy(np.ascontiguousarray(indices))
        return Batch(self.inputs[where], self.labels[where])

    def first(self, examples: int) -> Split:
        """The first examples alone."""
        return Split(self.inputs[:examples], self.labels[:examples])


@dataclass(frozen=True)
class Data:
    """A data set's three splits."""

    train: Split
    val: Split
    test: Split

    def with_train_subset(self, examples: int | None) -> Data:
        """The same with the first training examples alone; raises DataError where there are fewer."""
        if examples is None:
            return self
        if examples > len(self.train):
            raise DataError(f"train_subset = {examples}: the training set has {len(self.train)} examples")
        return Data(self.train.first(examples), self.val, self.test)


@dataclass(frozen=True)
class Workload:
    """Classification with one label an example.

    load      data_dir (None: no folder given) -> Data
    build     model arguments -> module from a batch's inputs, as ``prepare`` makes them, to (n, classes) logits
    prepare   stored inputs and a floating type -> the model's inputs
    defaults  keys of hvdscale.config, under which the workload reaches its target
    """

    dataset: str
    model: str
    classes: int
    load: Callable[[str | None], Data]
    build: Callable[..., nn.Module]
    prepare: Callable[[Tensor, torch.dtype], Tensor]
    defaults: Mapping = field(default_factory=dict)

    metrics = ("cross_entropy", "error")

    @property
    def name(self) -> str:
        return f"{self.dataset}/{self.model}"

    def loss(self, model: nn.Module, batch: Batch, label_smoothing: float = 0.0) -> tuple[Tensor, int]:
        """Sum over the batch of the cross-entropy in nats, with label smoothing; and the number of examples."""
        return smoothed_cross_entropy(self._logits(model, batch), batch.labels, label_smoothing), len(batch)

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, tuple[Tensor, int]]:
        """cross_entropy (nats, unsmoothed) and error (share of examples misclassified), as sums and counts."""
        logits = self._logits(model, batch)
        cross_entropy = functional.cross_entropy(logits.double(), batch.labels, reduction="sum")
        errors = (logits.argmax(1) != batch.labels).sum()
        return {"cross_entropy": (cross_entropy, len(batch)), "error": (errors, len(batch))}

    def _logits(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(self.prepare(batch.inputs, next(model.parameters()).dtype))


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Sum over the examples of the cross-entropy to targets of 1 - s on the label and s / (K - 1) on each other class.

    This is the published definition (Shallue et al. 2019); torch's ``label_smoothing`` spreads its s over all K
    classes, so that s here equals s K / (K - 1) there.

    logits  (n, K);  labels  (n,) int64;  smoothing  s in [0, 1)
    """
    classes = logits.shape[1]
    over_all = smoothing * classes / (classes - 1)
    return functional.cross_entropy(logits, labels, reduction="sum", label_smoothing=over_all)
