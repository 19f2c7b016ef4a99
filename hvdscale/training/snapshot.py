"""Where a run starts, its state at one moment, in memory, and how it ends. Capture the state, share it with all ranks,
restore it.

The stream of examples, the schedule and every random stream of hvdscale are functions of the step, so only the number
of steps is kept for them. The process's own generators are kept for the user's code.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from ..data.splits import random_state, set_random_state
from ..errors import CheckpointError, ExitCode
from ..log.schema import Status
from ..update.replicas import LocalSteps
from ..update.step import DataParallelStep
from ..workers.group import Workers

BROADCAST_BYTES = 1 << 30       # per call: MPI counts in 32 bits


@dataclass
class RunState:
    """The progress of a run."""

    steps: int = 0
    seconds: float = 0.0            # spent in them
    evaluated: int = -1             # the step of the last evaluation; -1: none yet
    measured: dict[str, float] = field(default_factory=dict)        # by it
    followed: tuple[tuple[int, float], ...] = ()        # evaluations that a plateau decay has followed: (step, value)


class Stop(NamedTuple):
    """Why the loop was left: the trial's status, the reason in words, the command's exit code."""

    status: Status
    reason: str
    exit_code: ExitCode


@dataclass(frozen=True)
class Outcome:
    """How and after how many steps a run ended; what its last evaluation measured, and after how many steps."""

    stop: Stop
    step: int
    measured: dict[str, float]
    evaluated: int


@dataclass
class Start:
    """Where a run starts; by default at the beginning, with a new log."""

    checkpoint: str = ""            # path of the checkpoint to resume from; "": a new run
    in_folder: bool = False         # whether it is in the run's folder
    step: int = 0                   # done by then
    state: dict | None = None       # until it is restored
    log: str = ""                   # path; "": from the settings
    log_continues: bool = False     # in a new segment, after ``previous_end``
    previous_end: str = ""
    ended: Stop | None = None       # how the run ended, if nothing is left to do
    accepted: dict[str, str] = field(default_factory=dict)      # earlier jobs that count as this: what differed, by key
    notes: tuple[str, ...] = ()     # lines for the user
    news: str = ""                  # what the display says in place of the plan, if anything


def capture(done: RunState, take_step: DataParallelStep | LocalSteps, of_step: dict | None = None) -> dict:
    """All state that the run needs to resume, as copies; ``random`` differs between ranks. Raises CheckpointError.
    of_step: the step's state as ``state_of_all`` has it; None: this rank's"""
    return copied({"progress": asdict(done), "model": take_step.model.state_dict(),
                   "optimizer": take_step.optimizer.state_dict(), "step": of_step or take_step.state(),
                   "random": random_state(take_step.device)})


def state_of_all(take_step: DataParallelStep | LocalSteps, workers: Workers, keep: bool) -> dict:
    """The step's state, if ``keep`` with all replicas, which their workers send one at a time; a collective."""
    state, replicas = take_step.state(), take_step.plan.replicas
    if "replicas" not in state or workers.size == 1:
        return state
    everyone = {}
    for number in range(replicas):
        root = number * workers.size // replicas
        sent = share(copied(state["replicas"][number]) if workers.rank == root else None, workers, root)
        if keep:
            everyone[number] = sent
    return {**state, "replicas": everyone}


def copied(state):
    return mapped(state, lambda tensor: tensor.detach().to("cpu", copy=True))


def restore(state: dict, take_step: DataParallelStep | LocalSteps) -> RunState:
    """Restore a captured state without changing it; without ``random`` this rank's generators are left alone."""
    restore_model(state, take_step.model, take_step.optimizer)
    take_step.restore(copied(state["step"]))            # torch would use these very tensors
    if state.get("random") is not None:
        set_random_state(state["random"], take_step.device)
    return RunState(**state["progress"])


def restore_model(state: dict, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(mapped(state["optimizer"], torch.clone))      # torch would use these very tensors
    for group in optimizer.param_groups:
        if "lr_factor" in group:                                            # its name in checkpoints of version 0.6.0
            group["rate_share"] = group.pop("lr_factor")


def share(state: dict | None, workers: Workers, root: int = 0) -> dict | None:
    outline = state and mapped(state, lambda tensor: torch.empty_like(tensor, device="meta"))
    outline = workers.gather(outline if workers.rank == root else None, "state")[root]
    if outline is None:
        return None
    if workers.rank != root:
        state = mapped(outline, lambda tensor: torch.empty_like(tensor, device="cpu"))

    def broadcast(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.contiguous()
        for part in tensor.reshape(-1).view(torch.uint8).split(BROADCAST_BYTES):        # Horovod has not every type
            workers.broadcast_(part, "state", root)
        return tensor
    return mapped(state, broadcast)


def mapped(value, change: Callable[[torch.Tensor], torch.Tensor], where: str = "state"):
    """The same nested dicts, lists and tuples with each tensor changed; raises CheckpointError for other objects."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(inner, change, f"{where}/{key}") for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        items = [mapped(inner, change, f"{where}/{number}") for number, inner in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, np.generic):
        return value.item()
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise CheckpointError(f"{where} is a {type(value).__name__}; a checkpoint holds tensors, numbers, strings, and "
                          "dicts, lists and tuples of them")
