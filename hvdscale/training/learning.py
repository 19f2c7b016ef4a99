"""What the last lines of a run say where it did not learn: its loss, and what often keeps a loss at chance."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from ..analysis.step_breakdown import LossCourse, read_steps
from ..data.splits import tensors_of
from ..errors import HvdscaleError
from ..log.reader import read_log
from ..log.schema import Status
from .evaluate import try_measuring
from .prepare import Job
from .snapshot import Outcome
from .run_log import TRIAL

LARGEST = 20.0          # of inputs that are scaled
NEAR_CHANCE = 0.02      # share of ln K
SUM_TO_ONE = 1e-3


@dataclass(frozen=True)
class ForwardPass:
    """What went through the model for a few examples."""

    inputs: tuple[float, float] | None = None       # their range; None: no numbers
    outputs: Tensor | None = None           # one row an example; None: something else
    classes: int = 0                        # K, of a row of K outputs
    chance: float = math.nan                # the cross-entropy of guessing among them; NaN: there are no classes

    def suspects(self) -> Iterator[str]:
        if self.inputs and max(map(abs, self.inputs)) > LARGEST:
            low, high = self.inputs
            yield f"the model's inputs range from {low:g} to {high:g}; scale them to about -1 to 1"
        rows = None if self.outputs is None else self.outputs.double()
        if rows is not None and (rows >= 0).all() and ((rows.sum(1) - 1).abs() < SUM_TO_ONE).all():
            yield ("the model's outputs sum to 1 for each example, as after a softmax; torch's cross_entropy expects "
                   "them before it")


def look(job: Job) -> ForwardPass:
    """What goes through the model when its first training examples are measured; nothing where its code fails."""
    seen: list[tuple[object, object]] = []
    hook = job.model.register_forward_hook(lambda model, given, returned: seen.append((given, returned)))
    try:
        try_measuring(job.workload, job.data.evaluated(len(job.data.train))["train"], job.model, job.plan.precision,
                      job.device)
    except (HvdscaleError, RuntimeError, TypeError, ValueError):
        return ForwardPass()
    finally:
        hook.remove()
    given, returned = seen[0] if seen else ((), None)
    numbers = [tensor for _, tensor in tensors_of(given) if tensor.is_floating_point() and tensor.numel()]
    ends = (min(float(one.min()) for one in numbers), max(float(one.max()) for one in numbers)) if numbers else None
    if not isinstance(returned, Tensor) or not returned.is_floating_point() or returned.ndim != 2 or (
            returned.shape[1] < 2):
        return ForwardPass(ends)
    return ForwardPass(ends, returned, returned.shape[1], math.log(returned.shape[1]))


def not_learned(job: Job, outcome: Outcome, log: str) -> list[str]:
    """Lines for the user where a run diverged, or its loss did not fall or ended near chance or above; else []."""
    target = job.plan.stop_target
    if outcome.stop.status == Status.INFEASIBLE:
        return list(look(job).suspects())
    if outcome.stop.status != Status.COMPLETE or not job.plan.eval_every or (
            target and target.met_by(outcome.measured.get(target.column, math.nan))):
        return []
    with read_log(log) as found:
        course = read_steps(found).get(TRIAL, {}).get("losses")
    return describe_course(course, look(job)) if course else []


def describe_course(course: LossCourse, seen: ForwardPass) -> list[str]:
    near, fell = abs(course.last - seen.chance) <= NEAR_CHANCE * seen.chance, course.last < course.first
    if fell and not near and not course.last > seen.chance:
        return []
    said = (f"the mean training loss was {course.first:.4g} over the first {course.steps} steps and {course.last:.4g} "
            "over the last ones")
    if not near and not fell:
        return [f"did not learn: {said}", *seen.suspects(),
                "a lower learning rate may help; fine-tuning or a GAN can rightly keep its loss"]
    return [f"the loss ended {'near' if near else 'above'} chance: {said}; guessing among {seen.classes} classes gives "
            f"{seen.chance:.4g}", *(list(seen.suspects()) or ["a lower learning rate may help"])]
