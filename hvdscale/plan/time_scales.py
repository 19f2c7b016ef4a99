"""Time scales of an optimizer in examples or epochs, which a larger batch leaves as they are."""
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


def decay_timescale_of(weight_decay: float, peak_lr: float, global_batch: int, train_examples: int) -> float:
    """tau = B / (rate decay D) in epochs, over which decoupled decay forgets all but 1/e of an update.

    AdamW's weights are a mean of its updates over the last 1 / (rate decay) steps, with D the training examples
    B / (rate decay D) epochs (Wang & Aitchison 2024, arXiv:2405.13698, who find the best tau roughly constant). Bergsma
    et al. 2025 (arXiv:2505.13738) train for one epoch, so that tau is a share of the run. They find that the best decay
    is linear in B at one rate and D, and that tau follows the tokens per parameter. Both papers are cited from their
    abstracts alone. The rate is the schedule's peak.
    """
    return global_batch / (peak_lr * weight_decay * train_examples)


def weight_decay_of(timescale: float, peak_lr: float, global_batch: int, train_examples: int) -> float:
    """The decoupled weight decay whose ``decay_timescale_of`` is ``timescale`` epochs; it does not follow the rate.
    Raises PlanError for a time scale of a step or less, under which a step would remove all of a weight."""
    step = global_batch / train_examples
    if timescale <= step:
        raise PlanError(f"decay_timescale = {timescale:g} epochs is no longer than a step of {step:g} epochs, which "
                        "would remove all of a weight; choose a longer one")
    return global_batch / (peak_lr * timescale * train_examples)
