"""Time scales of an optimizer in examples or epochs, which a larger batch leaves as they are.

    decay_of(693.0, 64) -> 0.938...;  half_life_of(0.938, 64) -> 693...
"""
from __future__ import annotations

import math

from ..errors import PlanError


def decay_of(half_life: float, global_batch: int) -> float:
    """The decay per step, 2^(-B / half_life), of a mean where an example's weight halves over ``half_life`` examples.

    Marek et al. 2025 (arXiv:2507.07101) hold the half-life of Adam's second moment, in tokens, over the batch. That is
    from the abstract alone; the formula is the definition of a half-life. From a base batch B0 it is beta^(B / B0), to
    first order in 1 - beta the rule of scaling.scale_moments. The learning rate and its decay stay as they are.

    Raises PlanError for a half-life so long that the decay rounds to 1.
    """
    decay = 2 ** (-global_batch / half_life)
    if decay >= 1:
        raise PlanError(f"a half-life of {half_life:g} examples at a global batch of {global_batch} is a decay of 1 a "
                        "step, which never forgets; choose a shorter half-life")
    return decay


def half_life_of(decay: float, global_batch: int) -> float:
    """The examples, B ln 2 / -ln decay, over which the weight of an example halves; 0 for a decay of 0."""
    return global_batch * math.log(2) / -math.log(decay) if decay > 0 else 0.0
