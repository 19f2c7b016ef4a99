"""A job: a settled plan with everything needed to run it."""
from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ..log.schema import Status
from ..plan.plan import Plan
from ..plan.settings import Settings
from ..update.averages import WeightAverage, evaluation_weights
from ..workers.group import Workers
from ..workload import Data, Workload
from .outcome import Stop
from .snapshot import restore_model
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

    def accept(self, accepted: dict[str, str]) -> None:
        record = self.plan.job
        self.plan = replace(self.plan, job={**record, "accepted": {**record.get("accepted", {}), **accepted}})

    def restore_model(self, state: dict) -> None:
        """Restore what ``save_model`` writes from a checkpoint's state."""
        restore_model(state, self.model, self.optimizer)
        if self.average:
            self.average.restore(state["step"]["average"])

    def save_model(self, stop: Stop, workers: Workers) -> str | None:
        """Write the final model, or the averages of its weights, if save_model is set and the run COMPLETE; what became
        of it, in words; a collective."""
        path = self.settings.save_model
        if path is None:
            return None
        if stop.status != Status.COMPLETE:
            return f"model: not saved, as the run is {stop.status.name}"
        with workers.together("the final model"):
            if workers.rank == 0:
                with self.average.applied() if self.average else evaluation_weights(self.model, self.optimizer):
                    save_weights(self.model, path)
        return f"model: {path}{', the averaged weights' if self.average else ''}"
