"""Squared gradient norms of a measured step, of each share and of the reduced gradient; see analysis/noise.py.

With several workers a share is a worker's: its squared norm is taken before the reduction, and reduced in its tail. At
one worker the first examples (an eighth of the batch, or a ghost group) are one share, whose gradient is computed once
more before the step; the rest is the other share, whose gradient is the whole gradient minus the first. Either way the
step's update is bit-identical to an unmeasured one, and no state is kept between measurements. Of an exact plan each
ghost group is a share, at any number of workers.

    noise.first(step)                   the pass that is computed once more, at one worker
    noise.keep(gradients, count)        its result
    note = noise.begin(step)            before the step's own passes
    note(gradients)                     this rank's own, a bucket at a time, before the reduction
    tail = noise.tail(count, scale)     to be summed over the workers
    noise.columns(...)                  the row's values
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from ..modules.layers import is_batch_norm
from ..plan.plan import Plan
from ..plan.shards import Pass, group_bounds
from .gradients import GradientBuffer

SHARE = 8                   # at one worker, 1 / SHARE of the batch is computed twice
COLUMNS = ("local_sqnorm", "reduced_sqnorm", "local_examples")


def why_not_measured(plan: Plan, model: nn.Module) -> str:
    """Why no step can be measured though the plan asks for it; empty if steps can be, or need not be."""
    if not plan.noise_steps or any(can_measure(plan, model, batch) for batch in plan.batches.sizes):
        return ""
    joined = joins_examples(plan, model)
    refusal = "the gradient noise scale is not measured: "
    if not joined:
        return refusal + "a batch of one example has none"
    examples = f"{min(plan.global_batch, plan.ghost_batch)} examples, which " + (
        "passing group by group keeps whole" if plan.group_by_group else "batch-norm keeps whole")
    why = f"with one ghost group of {examples}, a step has no two parts to compare"
    if plan.workers > 1:
        why = (f"with ghost groups of {examples}, spread over several workers, a worker has no separate part of a step "
               "to compare")
    return f"{refusal}{why}; use a smaller --ghost-batch"


def can_measure(plan: Plan, model: nn.Module, batch: int) -> bool:
    """Whether a step of one of the schedule's batches has two parts to compare."""
    alone = plan.workers == 1 or plan.exact
    cut = plan.ghost_groups(batch) < 2 if alone else any(part.shared for part in plan.passes(batch, 0))
    return batch > 1 and not (cut and joins_examples(plan, model))


def joins_examples(plan: Plan, model: nn.Module) -> bool:
    """Whether an example's gradient depends on the others of its ghost group, so that shares must be whole groups."""
    return plan.group_by_group or any(map(is_batch_norm, model.modules()))


class Shares(NamedTuple):
    """How a step is split for the measurement."""

    batch: int
    examples: int       # this rank's
    first: Pass         # the first share, at one worker
    number: int         # of shares


class GradientNoise:
    """The gradient measurements of a run, every ``plan.noise_steps`` steps; see the module's docstring. Gradients are
    those of a GradientBuffer: of the sum of losses, divided by the step's batch, times the loss scale."""

    def __init__(self, plan: Plan, model: nn.Module, rank: int):
        self._stream, self._by_group = plan.stream, bool(plan.exact)
        self._alone = plan.workers == 1 and not self._by_group
        self._every = 0 if why_not_measured(plan, model) else plan.noise_steps
        self._by_batch: dict[int, Shares] = {}
        for batch in plan.batches.sizes if self._every else ():
            if can_measure(plan, model, batch):
                bounds = group_bounds(batch, plan.ghost_batch)
                size = bounds[1] if joins_examples(plan, model) else max(1, batch // SHARE)
                self._by_batch[batch] = Shares(
                    batch, sum(part.stop - part.start for part in plan.passes(batch, rank)),
                    Pass(0, size, shared=size not in bounds), len(bounds) - 1 if plan.exact else max(2, plan.workers))
        self.size = 1 if self._every and not self._alone else 0         # of the tail
        self._shares: Shares | None = None              # of the step; None: it is not measured
        self._own: float | None = None                  # the squared norm; None: likewise
        self._kept: tuple[Tensor, float] | None = None

    def first(self, step: int) -> Pass | None:
        """The pass whose gradients ``keep`` needs before the step; None if there is none."""
        shares = self._due(step)
        return shares.first if self._alone and shares else None

    def keep(self, gradients: Tensor, count: float) -> None:
        self._kept = gradients.clone(), count

    def begin(self, step: int) -> Callable[[Tensor], None] | None:
        """Start the step's own passes; returns the function to call on this rank's gradients before the reduction."""
        self._shares = self._due(step)
        self._own = 0.0 if self._shares else None
        return self._note if self._own is not None and not self._alone else None

    def tail(self, count: float, scale: float, examples: int | None = None) -> list[float]:
        """The squared norm of this rank's mean gradient, or of a noted ghost group's, weighted by the examples."""
        if not self.size or self._own is None or not count:
            return [0.0] * self.size
        batch = self._shares.batch
        weight = (batch / count / scale) ** 2 * (examples or self._shares.examples) / batch
        return [weight * self._own]

    def columns(self, buffer: GradientBuffer, tail: Sequence[float], count: float, scale: float) -> dict[str, float]:
        """The row's values by column, from what is summed over the workers; empty if not measured, or not finite."""
        if self._own is None:
            return {}
        gradients, batch = buffer.gradients, self._shares.batch
        reduced = (batch / count / scale) ** 2 * _sqnorm(gradients)
        local = 0.0 if self._alone else tail[0]
        if self._alone:                     # the summed tail of two shares: the kept gradient, and the rest
            (first, first_count), self._kept = self._kept, None
            size = self._shares.first.stop
            for share, share_count, examples in ((first, first_count, size),
                                                 (gradients - first, count - first_count, batch - size)):
                weight = (batch / share_count / scale) ** 2 * examples / batch if share_count else math.nan
                local += weight * _sqnorm(share)
        return {"local_sqnorm": local, "reduced_sqnorm": reduced,
                "local_examples": batch / self._shares.number} if math.isfinite(reduced + local) else {}

    def _note(self, gradients: Tensor) -> None:
        self._own = _sqnorm(gradients) + (0.0 if self._by_group else self._own)

    def _due(self, step: int) -> Shares | None:
        """The shares of a step to measure: at the interval, if it has a full batch; else None."""
        return self._by_batch.get(self._stream.size(step)) if self._every and step % self._every == 0 else None


def _sqnorm(gradients: Tensor) -> float:
    return gradients.dot(gradients).item()
