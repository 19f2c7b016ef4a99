"""A job: a settled plan with everything needed to run it; and by what a log knows it, see plan.job."""

import json
import math
import re
import sys
from dataclasses import dataclass

import torch
from torch import nn

from .. import __version__
from ..log.schema import Status
from ..plan.job import OF_PLACE, VERSION
from ..plan.plan import Plan
from ..plan.settings import Settings, key_of
from ..system.source import digest_of, digest_source
from ..update.averages import WeightAverage, evaluation_weights
from ..update.replicas import LocalSteps, load_mean
from ..update.step import DataParallelStep
from ..workers.group import Workers
from ..workload import Data, Workload
from .checkpoint import save_weights
from .evaluate import Evaluator
from .snapshot import Stop, restore_model

MOST_LINES, LONGEST_LINE = 1000, 200
ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


@dataclass
class Job:
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

    def start(self, workers: Workers) -> tuple[DataParallelStep | LocalSteps, Evaluator]:
        """What takes the job's steps, and what measures its splits; both are to be closed."""
        plan, splits = self.plan, self.data.evaluated(self.plan.train_eval_examples)
        kind = LocalSteps if plan.local_steps else DataParallelStep
        return (kind(plan, self.workload, self.data.train, self.model, self.optimizer, workers, self.device,
                     self.average),
                Evaluator(self.workload, splits, plan.eval_batch, workers, self.device, plan.precision,
                          plan.loader_workers))

    def restore_model(self, state: dict) -> None:
        """Restore what ``save_model`` writes from a checkpoint's state."""
        restore_model(state, self.model, self.optimizer)
        if "replicas" in state["step"]:
            load_mean(self.model, [replica["model"] for replica in state["step"]["replicas"].values()])
        if self.average:
            self.average.restore(state["step"]["average"])

    def save_model(self, stop: Stop, workers: Workers) -> str | None:
        """Write the final model, if save_model is set and the run COMPLETE; what became of it; a collective."""
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


def identify(name: str, workload: Workload, data: Data | None, model: nn.Module | None) -> dict:
    """The part ``job`` of the plans of a workload of this name, module:object or built-in; None: unknown."""
    own = ":" in name
    defaults = {key: value for key, value in workload.defaults.items() if key_of(key) not in OF_PLACE}
    found = {"source": digest_source(sys.modules[name.partition(":")[0]]) if own else {VERSION: __version__},
             "defaults": json.loads(json.dumps(defaults, default=repr)),
             "model": {} if model is None else describe_model(model, with_lines=own),
             "data": {} if data is None else data.digests}
    return {part: value for part, value in found.items() if value}


def describe_model(model: nn.Module, with_lines: bool) -> dict:
    """The model's parameters, a digest of their names and shapes, its printed lines; {} where they are not made."""
    try:
        shapes = [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]
        count = sum(math.prod(shape) for _, shape in shapes)
        lines = [line[:LONGEST_LINE] for line in ADDRESS.sub("0x", repr(model)).splitlines()] if with_lines else []
    except Exception:                                           # of the user's __repr__
        return {}
    rest = [f"{len(lines) - MOST_LINES} more: {digest_of(lines[MOST_LINES:])}"] if len(lines) > MOST_LINES else []
    return {"torch": torch.__version__.partition("+")[0], "parameters": digest_of(shapes),
            "count": count, **({"lines": lines[:MOST_LINES] + rest} if lines else {})}
