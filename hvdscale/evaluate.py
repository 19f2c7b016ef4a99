"""Exact means of a workload's metrics over whole splits: every example counts once, at any worker count.

A split is cut into chunks of a fixed size, whatever the worker count; each worker measures some chunks, the table of
all chunks' sums and counts is added up over the workers (every entry has one worker's value and else zeros), and the
means are taken from it in one order. So the result does not depend on the worker count, to the last bit.
"""
from __future__ import annotations

import numpy as np
import torch
from torch import nn

from .workers import Lone
from .workload import Split, Workload


class Evaluator:
    """Measures a workload on its splits, by name; a call is a collective."""

    def __init__(self, workload: Workload, splits: dict[str, Split], chunk: int, workers: Lone, device: torch.device):
        self.workload, self.splits, self.chunk = workload, splits, chunk
        self.workers, self.device = workers, device

    @torch.no_grad()
    def __call__(self, model: nn.Module, splits: tuple[str, ...]) -> dict[str, float]:
        """``split/metric`` -> mean over the split, for these splits; NaN for an empty one."""
        if not splits:
            return {}
        chunks = [(split, start) for split in splits for start in range(0, len(self.splits[split]), self.chunk)]
        metrics = self.workload.metrics
        table = torch.zeros(len(chunks), len(metrics), 2, dtype=torch.float64)
        training = model.training
        model.eval()
        for number in range(self.workers.rank, len(chunks), self.workers.size):
            measured = self.workload.measure(model, self._batch(*chunks[number]))
            sums = [[float(part) for part in measured[metric]] for metric in metrics]
            table[number] = torch.tensor(sums, dtype=torch.float64)
        model.train(training)
        self.workers.sum_(table, f"evaluation/{'+'.join(splits)}")
        return self._means(table.numpy(), [split for split, _ in chunks], splits)

    def _batch(self, split: str, start: int):
        indices = np.arange(start, min(start + self.chunk, len(self.splits[split])))
        return self.splits[split].take(indices).to(self.device)

    def _means(self, table: np.ndarray, owners: list[str], splits: tuple[str, ...]) -> dict[str, float]:
        means = {}
        for split in splits:
            sums = table[[owner == split for owner in owners]].sum(axis=0)
            for metric, (total, count) in zip(self.workload.metrics, sums):
                means[f"{split}/{metric}"] = float(total / count) if count else float("nan")
        return means
