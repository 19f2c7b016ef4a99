"""A job: a settled plan with everything needed to run it."""
from __future__ import annotations

from dataclasses import dataclass

import torch

from ..log.schema import Status
from ..plan.plan import Plan
from ..plan.settings import Settings
from ..update.averages import WeightAverage, evaluation_weights
from ..workers.group import Workers
from ..workload import Data, Workload
from .display import Display
from .outcome import Outcome
from .weights import save_weights


@dataclass
class Job:
    """Made by prepare."""

    name: str               # of the workload, as the user typed it
    plan: Plan
    settings: Settings
    workload: Workload
    data: Data
    device: torch.device
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    bound_to_passes: str    # why the model runs group by group, or would need to
    average: WeightAverage | None = None        # of its weights; None: the plan has none

    def save_model(self, outcome: Outcome, display: Display, workers: Workers) -> None:
        """Write the final model if save_model is set, or the averages of its weights; only of a COMPLETE run."""
        path = self.settings.save_model
        if path is None:
            return
        if outcome.stop.status != Status.COMPLETE:
            display.say(f"model: not saved, as the run is {outcome.stop.status.name}")
            return
        with workers.together("the final model"):
            if workers.rank == 0:
                with self.average.applied() if self.average else evaluation_weights(self.model, self.optimizer):
                    save_weights(self.model, path)
        display.say(f"model: {path}{', the averaged weights' * bool(self.average)}")
