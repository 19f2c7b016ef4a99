"""Exact means of a workload's metrics over whole splits: every example counts once, at any worker count.

A split is cut into chunks of a fixed size at any worker count. Each worker measures some chunks, and enters their sums
and counts in a table, which is zero elsewhere. The table is summed over the workers, and the means are taken from it in
one order. So the result is bit-identical at any worker count.
"""

import contextlib
import math

import numpy as np
import torch
from torch import nn

from ..data.loading import Loader
from ..data.splits import OwnGenerators, refuse_not_finite, to_device
from ..modules.running_statistics import Buffers
from ..plan.shards import Visits
from ..update.model import explained
from ..update.precision import PARAMETERS, autocast
from ..workers.group import Workers
from ..workload import Split, Workload, mean_metrics, measured, summarized

TRIED = 2           # examples measured before the log is created


@torch.no_grad()
def try_measuring(workload: Workload, split: Split, model: nn.Module, precision: str, device: torch.device) -> None:
    """Measure and summarize the split's first examples without side effects; raises what the workload's code raises. So
    a mistake in it is an error before the log is created. An undefined metric of so few examples is no error."""
    first = np.arange(min(TRIED, len(split)))
    training = model.training
    with OwnGenerators(device), Buffers(model).kept(), explained(workload, model), autocast(precision, device):
        batch = to_device(split.take(Visits(first, np.zeros_like(first))), device, PARAMETERS[precision])
        found = measured(workload, model.eval(), batch)
    model.train(training)
    if workload.summarized:
        means = {metric: total / count if count else math.nan for metric, (total, count) in found.sums.items()}
        with contextlib.suppress(ArithmeticError):
            summarized(workload, means, {name: np.array(values) for name, values in found.parts.items()})


class Evaluator:
    """Measures a workload on its splits, by name; a call is a collective, and raises any rank's error on all ranks."""

    def __init__(self, workload: Workload, splits: dict[str, Split], chunk: int, workers: Workers, device: torch.device,
                 precision: str = "fp32", loader_workers: int = 0):
        self.workload, self.splits, self.chunk, self.precision = workload, splits, chunk, precision
        self._metrics = mean_metrics(workload)
        self.workers, self.device = workers, device
        self._sound: set[str] = set()       # splits known to have finite values
        self.loader = Loader(splits, device, loader_workers, PARAMETERS[precision])

    @torch.no_grad()
    def __call__(self, model: nn.Module, splits: tuple[str, ...]) -> dict[str, float]:
        """``split/metric`` -> mean over the split, for these splits; NaN for an empty one. Raises DataError where a
        mean is not finite and the split holds values that are not."""
        if not splits:
            return {}
        chunks = [(split, start) for split in splits for start in range(0, len(self.splits[split]), self.chunk)]
        # sums and counts of the means, then the parts; the last entry counts the ranks that could not measure
        width = 2 * len(self._metrics) + sum(self.workload.parts.values())
        table = torch.zeros(len(chunks) + 1, width, dtype=torch.float64)
        training, fault = model.training, None
        model.eval()
        try:
            self._measure(model, chunks, table)
        except (Exception, SystemExit) as error:
            fault, table[-1] = error, 1
        model.train(training)
        self.workers.sum_(table, f"evaluation/{'+'.join(splits)}")
        if table[-1].any():
            self.workers.raise_together("the evaluation", fault)
        owners, values = np.array([split for split, _ in chunks], str), table[:-1].numpy()
        sums = {split: values[owners == split].sum(axis=0) for split in splits}
        means = {split: {metric: float(total / count) if count else math.nan for metric, (total, count) in zip(
            self._metrics, sums[split][:2 * len(self._metrics)].reshape(-1, 2))} for split in splits}
        self._check_inputs({split for split in splits if not all(map(math.isfinite, means[split].values()))}, chunks)
        if self.workload.summarized:
            bounds = np.cumsum([2 * len(self._metrics), *self.workload.parts.values()])
            with self.workers.together("the evaluation"):
                for split in dict.fromkeys(owners.tolist()):
                    parts = zip(self.workload.parts, bounds, bounds[1:])
                    means[split] |= summarized(self.workload, means[split],
                                               {name: sums[split][a:b] for name, a, b in parts})
        return {f"{split}/{metric}": means[split].get(metric, math.nan)
                for split in splits for metric in self.workload.metrics}

    def _check_inputs(self, suspects: set[str], chunks: list[tuple[str, int]]) -> None:
        if not (suspects := suspects & {split for split, _ in chunks} - self._sound):
            return
        with self.workers.together("evaluation inputs"):
            for number in range(self.workers.rank, len(chunks), self.workers.size):
                if chunks[number][0] in suspects:
                    self.workers.check()
                    split, visits = self._visits(*chunks[number])
                    refuse_not_finite(self.splits[split].take(visits), visits, f"in {split}")
        self._sound |= suspects

    def _measure(self, model: nn.Module, chunks: list[tuple[str, int]], table: torch.Tensor) -> None:
        mine = range(self.workers.rank, len(chunks), self.workers.size)
        for number, batch in zip(mine, self.loader.batches(self._visits(*chunks[number]) for number in mine)):
            with autocast(self.precision, self.device):
                found = measured(self.workload, model, batch)
            self.workers.check()
            entries = [*found.sums.values(), *found.parts.values()]
            table[number] = torch.tensor([value for entry in entries for value in entry], dtype=torch.float64)

    def _visits(self, split: str, start: int) -> tuple[str, Visits]:
        indices = np.arange(start, min(start + self.chunk, len(self.splits[split])))
        return split, Visits(indices, np.zeros_like(indices))
