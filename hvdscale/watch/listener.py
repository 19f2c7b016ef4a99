"""What happens in a watched script, and who is told of it."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .lines import line_of_call
from .patches import Patches


class Listener:
    """What happens in a watched script, in the order in which it happens; a listener overrides what it needs.

    A line is the ``file:line`` of the script's call. Nothing that a listener is given may be changed or kept alive.
    """

    def parameters_added(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has a further group of parameters."""

    def schedule_made(self, schedule: Any) -> None:
        """A learning-rate schedule of torch.optim was made."""

    def forward_begins(self) -> None:
        """The first module since the last backward pass is called with gradients enabled."""

    def inference(self, module: torch.nn.Module) -> None:
        """A module that is part of no other one's call is called with gradients disabled."""

    def loss(self, name: str, value: torch.Tensor, given: dict[str, Any], line: str) -> None:
        """One of torch's loss functions returned a value that has a gradient; ``given``: its arguments by name."""

    def loss_scaled(self, scale: float) -> None:
        """A GradScaler multiplied what will be differentiated."""

    def unscaled(self, optimizer: torch.optim.Optimizer) -> None:
        """A GradScaler is about to divide the gradients again."""

    def precision_lowered(self) -> None:
        """torch.autocast begins."""

    def pass_begins(self, roots: Sequence[torch.Tensor]) -> None:
        """A backward pass from these values begins."""

    def gradient(self, parameter: torch.Tensor, gradient: torch.Tensor, first: bool | None = None) -> None:
        """A parameter's local gradient of the running pass, before any reduction and before it is added to .grad.

        first  whether it is the first of a sum over passes; None: it is, if .grad has none
        """

    def pass_ends(self, roots: Sequence[torch.Tensor], line: str) -> None:
        """A backward pass has ended."""

    def clipping(self, parameters: list[torch.Tensor]) -> None:
        """Gradients are about to be clipped."""

    def clipped(self, parameters: list[torch.Tensor], norm: float, limit: float, line: str) -> None:
        """Gradients were clipped: their norm before (nan: by value), and the allowed one."""

    def reducing(self, optimizer: torch.optim.Optimizer) -> None:
        """Horovod's optimizer waits for the gradients, whose reduction began during the backward pass."""

    def step_begins(self, optimizer: torch.optim.Optimizer, line: str) -> None:
        """An optimizer's step begins; those that it takes by other optimizers are not told."""

    def writes(self, optimizer: torch.optim.Optimizer, evaluated: bool) -> None:
        """The gradient is what the step will take. It may be told again within a step, which then takes the last one,
        but for a closure (``evaluated``), whose first evaluation is at the parameters that the step begins with."""

    def step_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """The parameters have been updated."""

    def iteration_begins(self, iterator: Any) -> None:
        """A pass over a DataLoader begins."""

    def examples(self, examples: list) -> None:
        """Examples that this process has read for the batch that follows, before they are collated."""

    def reading(self, begins: bool) -> None:
        """Examples are about to be read, or have been; in loader workers this is told in their process."""

    def batch_wanted(self, iterator: Any) -> None:
        """A loader is asked for a batch."""

    def batch(self, iterator: Any, index: Any, data: Any) -> None:
        """A loader returns a batch; ``index``: what its sampler gave for it, None if unknown."""

    def iteration_ends(self, iterator: Any) -> None:
        """A loader has no further batch."""

    def ends_early(self, iterator: Any) -> bool:
        """Whether a loader is to end now, although it has further batches."""
        return False

    def mode(self, training: bool) -> None:
        """A module was put into training or evaluation mode."""

    def batch_norm(self, examples: int) -> None:
        """Batch-norm took statistics over this many examples, in training."""

    def wrapped(self, broadcast_buffers: bool, ranks: int) -> None:
        """DistributedDataParallel wraps a model, and broadcasts its buffers before each forward pass or not; ``ranks``:
        of its process group."""

    def combined(self, call: str) -> None:
        """A collective is about to combine what the ranks have."""

    def combination_ends(self) -> None:
        """Its call has returned; one that is asynchronous may go on."""

    def sharded(self, by: str) -> None:
        """Parameters are divided among the ranks, so that none has a whole gradient."""

    def written(self, path: str) -> None:
        """A file was opened for writing."""

    def read(self, path: str) -> None:
        """A file that is no code was opened for reading."""

    def renamed(self, path: str, to: str) -> None:
        """A file or folder is about to get another name."""

    def saving(self, path: str, state: Any) -> None:
        """A checkpoint is about to be written; ``path``: of its file or folder, empty for a buffer in memory."""

    def saved(self, path: str) -> None:
        """It has been written."""

    def loaded(self, path: str) -> None:
        """A checkpoint has been read."""

    def instead(self, text: str) -> None:
        """What the script asks for and cannot have here, and what it had instead, in a sentence."""

    def remark(self, text: str) -> None:
        """What was changed so that the script could run here, or what cannot be followed, in a sentence."""


class Watch:
    """The patches, and the listeners that are told.

    local_workers  on this machine;  workers  of the run;  details  whether every gradient and line is told
    """

    def __init__(self, listeners: Sequence[Listener], local_workers: int = 1, workers: int = 1, details: bool = True):
        self.listeners, self.local_workers, self.workers = tuple(listeners), local_workers, workers
        self.details = details
        self.patches = Patches()

    def line_of_call(self) -> str:
        """The line of the running call, see lines; empty without details."""
        return line_of_call() if self.details else ""

    def tell(self, event: str, *told: Any) -> None:
        """Call the method of that name of every listener."""
        for listener in self.listeners:
            getattr(listener, event)(*told)
