"""A workload whose course is known: a quadratic bowl of two curvatures, from (1, 1); examples differ by noise alone.

Of the whole data set the gradient is exact: after t steps of plain SGD each coordinate is (1 - lr h) ** t.
"""
import os
import signal
import time

import torch
from torch import nn

from hvdscale.workload import Data, Split, Workload

CURVATURES = (1.0, 10.0)
EXAMPLES = 64


class Bowl(nn.Module):
    def __init__(self, slow=0.0, width=1):
        super().__init__()
        self.w = nn.Parameter(torch.ones(width, len(CURVATURES), dtype=torch.float64))
        self.slow = slow                # seconds that a pass takes


class Quadratic(Workload):
    dataset, model = "quadratic", "bowl"
    metrics = {"loss": "min"}
    defaults = dict(lr=0.1, local_batch=EXAMPLES, optimizer="sgd", steps=40, eval_every=1, precision="fp64",
                    target="val/loss<0.001", ghost_batch=2)

    def load(self, data_dir):
        noise = torch.randn(EXAMPLES, len(CURVATURES), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        noise -= noise.mean(0)          # so that the whole data set has none
        train, none = Split(noise, noise), Split(*[torch.zeros(4, len(CURVATURES), dtype=torch.float64)] * 2)
        return Data(train, none, none)

    def build(self, **model_args):
        if model_args.get("width") == 3:
            raise ValueError("a width of 3 cannot be built")
        return Bowl(**model_args)

    def loss(self, model, batch):
        if model.slow:
            time.sleep(model.slow)
        if os.environ.get("KILL_AT_WIDTH") == str(len(model.w)):
            os.kill(os.getpid(), signal.SIGKILL)
        x, _ = batch
        h = torch.tensor(CURVATURES, dtype=torch.float64)
        w = model.w.mean(0)
        return (0.5 * h * w ** 2 - 0.1 * h * x * w).sum(), len(x)

    def measure(self, model, batch):
        total, count = self.loss(model, batch)
        return {"loss": (total, count)}


workload = Quadratic()
