"""The learning rate as a pure function of the step: warmup, then decay.

    schedule = Schedule(peak_lr=3.2, start_lr=0.1, warmup="gradual", warmup_steps=780)
    schedule.lr_at(0) -> 0.1;  schedule.lr_at(780) -> 3.2
"""
from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from operator import itemgetter
from typing import Any

from ..formatting.numbers import counted

# decays from the peak to end_lr_factor of it: the share of the way that is behind after a share of the steps
FALLING = {"linear": lambda done: done, "cosine": lambda done: (1 - math.cos(math.pi * done)) / 2, "1-sqrt": math.sqrt}
INVERSE_SQRT = "inverse_sqrt"
STARTED = (*FALLING, INVERSE_SQRT)          # those that have a start
PLATEAU = "plateau"
DECAYS = ("constant", "step", *STARTED, PLATEAU)


@dataclass(frozen=True)
class Schedule:
    """Learning rates of all steps; step 0 is the first update.

    warmup  gradual: straight from start_lr at step 0 to peak_lr at step warmup_steps (Goyal et al. 2017, section 2.2);
            constant: start_lr before that step, peak_lr from it; none: peak_lr at once
    decay   linear: straight from peak_lr at step decay_start to end_lr_factor * peak_lr at step decay_steps, and that
            from there (Shallue et al. 2019); cosine: half a cosine between the same two; 1-sqrt: the square root of
            the share of the steps is behind (Haegele et al. 2024, arXiv:2405.18392, section 3); inverse_sqrt:
            peak_lr * sqrt(decay_start / step) (Vaswani et al. 2017, arXiv:1706.03762, equation 3); step: times
            decay_factor at each of decay_at; plateau: likewise at the evaluations that ``reductions`` finds, but no
            lower than end_lr_factor * peak_lr; constant: none
    decay_start     None: the warmup's end. A later one holds peak_lr until then: warmup-stable-decay (Hu et al. 2024,
            arXiv:2404.06395, section 4)
    batch_lr_factors  (first step, factor) pairs: all of this times the factor, where the batch changes
    """

    peak_lr: float
    start_lr: float = 0.0
    warmup: str = "none"
    warmup_steps: int = 0
    decay: str = "constant"
    decay_steps: int = 0
    decay_at: tuple[int, ...] = ()
    decay_factor: float = 0.1
    end_lr_factor: float = 0.0
    decay_start: int | None = None
    batch_lr_factors: tuple[tuple[int, float], ...] = ()
    plateau: Mapping[str, Any] | None = None        # see settle.settle_plateau

    @classmethod
    def of(cls, problem: Mapping) -> Schedule | None:
        """The schedule of a plan as a log has it; None where the plan does not say."""
        factors = problem.get("batch_lr_factors") or ()
        older = {"decay_start": None, "plateau": None}          # what plans of older logs lack, as the factors
        problem = {**older, **problem, "batch_lr_factors": factors}
        names = [field.name for field in fields(cls)]
        return cls(**{name: problem[name] for name in names}) if all(name in problem for name in names) else None

    @property
    def falls_from(self) -> int:
        warmed_up = self.warmup_steps if self.warmup != "none" else 0
        return warmed_up if self.decay_start is None else self.decay_start

    def describe(self, format_lr: Callable[[float], str] = "{:g}".format) -> str:
        words = format_lr(self.peak_lr)
        if self.warmup != "none":
            way = "climbing" if self.warmup == "gradual" else "held, then raised"
            words = f"{format_lr(self.start_lr)}, {way} to {words} at step {self.warmup_steps}"
        return ", ".join([words, *self.describe_changes(format_lr)])

    def describe_changes(self, format_lr: Callable[[float], str] = "{:g}".format) -> list[str]:
        """What becomes of the peak: the decay, and the factors where the batch changes."""
        decay = "" if self.decay == "constant" else self._describe_decay(format_lr)
        changes = zip(self.batch_lr_factors, self.batch_lr_factors[1:])
        factors = (f"x {after:.4g} from step {start}" for (_, before), (start, after) in changes if after != before)
        return [*filter(None, [decay, ", ".join(factors)])]

    def _describe_decay(self, format_lr: Callable[[float], str]) -> str:
        if self.decay == "step":
            return f"x {self.decay_factor:g} at steps {', '.join(map(str, self.decay_at))}"
        if self.plateau:
            lowest = self.end_lr_factor * self.peak_lr
            least = f", but no lower than {format_lr(lowest)}" if self.end_lr_factor > 0 else ""
            return (f"x {self.decay_factor:g} when {self.plateau['metric']} has not improved in more than "
                    f"{counted(self.plateau['patience'], 'evaluation')}{least}")
        warmed = 0 if self.warmup == "none" else self.warmup_steps
        held = f"held to step {self.decay_start}, then " if self.falls_from > warmed else ""
        if self.decay == INVERSE_SQRT:
            return f"{held}falling as 1/sqrt(step)"
        return f"{held}{self.decay} decay to {format_lr(self.end_lr_factor * self.peak_lr)} at step {self.decay_steps}"

    def after(self, evaluations: Iterable[tuple[int, float]]) -> Schedule:
        """The schedule given the evaluations so far, (step, value) each; another one only for a plateau decay."""
        return self if self.plateau is None else replace(self, decay_at=reductions(self.plateau, evaluations))

    def lr_at(self, step: int) -> float:
        """The learning rate of the update that follows ``step`` done steps."""
        at = bisect_right(self.batch_lr_factors, step, key=itemgetter(0))
        factor = self.batch_lr_factors[at - 1][1] if at else 1.0
        if self.warmup != "none" and step < self.warmup_steps:
            climbed = step / self.warmup_steps if self.warmup == "gradual" else 0.0
            return (self.start_lr + (self.peak_lr - self.start_lr) * climbed) * factor
        return self.peak_lr * self._decay_at(step) * factor

    def _decay_at(self, step: int) -> float:
        if self.decay == "constant":
            return 1.0
        if self.decay in ("step", PLATEAU):
            return max(self.end_lr_factor, self.decay_factor ** sum(step >= at for at in self.decay_at))
        start = self.falls_from
        if self.decay == INVERSE_SQRT:
            return math.sqrt(start / max(start, step))
        done = min(1.0, max(0, step - start) / max(1, self.decay_steps - start))
        return 1.0 + (self.end_lr_factor - 1.0) * FALLING[self.decay](done)


def reductions(plateau: Mapping[str, Any], evaluations: Iterable[tuple[int, float]]) -> tuple[int, ...]:
    """The steps, of (step, value) each, at which torch's ReduceLROnPlateau reduces the rate."""
    sign = 1 if plateau["better"] == "min" else -1
    best, bad, resting, found = sign * math.inf, 0, 0, []
    for step, value in evaluations:
        if sign * value < sign * best * (1 - sign * plateau["threshold"]):
            best, bad = value, 0
        else:
            bad += 1
        if resting:
            resting, bad = resting - 1, 0
        if bad > plateau["patience"]:
            found.append(step)
            resting, bad = plateau["cooldown"], 0
    return tuple(found)
