"""Learning-rate scaling rules: the ratio of the global batch to the base batch -> the factor on the learning rate.

linear    factor r: k steps at batch n are close to one step at batch kn and k times the rate (Goyal et al. 2017, 2.1)
sqrt      factor sqrt(r), which holds the variance of the update fixed (Krizhevsky 2014, arXiv:1404.5997, section 5)
none      factor 1
power:P   factor r**P
adam_sqrt        factor sqrt(r); beta1, beta2 and epsilon follow the batch too, see ``scale_moments``
adam_sqrt:beta2  the same, but beta1 stays

Weight decay that is decoupled subtracts rate times decay from a weight, so it follows the rate. Its time scale in
examples is B / (rate decay), see decay_timescale_of: fixed under linear, it grows by sqrt(r) under sqrt and adam_sqrt,
by r under none and by r**(1 - P) under power:P, unless ``decay_timescale`` holds it.
"""

import contextlib
import math
from collections.abc import Mapping

from ..errors import PlanError, UsageError

ADAM_SQRT = "adam_sqrt"
# the rules that scale the optimizer's moments, and the decays that each scales
SCALED_BETAS = {ADAM_SQRT: ("beta1", "beta2"), f"{ADAM_SQRT}:beta2": ("beta2",)}
EXPONENTS = {"linear": 1.0, "sqrt": 0.5, "none": 0.0, **dict.fromkeys(SCALED_BETAS, 0.5)}
TUNED = "tuned"
NO_DECAY = 1e-12            # a decay of the moments below this is none: rounding alone


def exponent(rule: str) -> float:
    """The power of the batch ratio that the rule applies; raises UsageError for a rule that is none."""
    if rule in EXPONENTS:
        return EXPONENTS[rule]
    word, _, written = rule.partition(":")
    with contextlib.suppress(ValueError):
        if word == "power" and abs(power := float(written)) <= 10:
            return power
    raise UsageError(f"lr_rule = {rule!r} is none of linear, sqrt, none, {', '.join(SCALED_BETAS)}, tuned and power:P "
                     "(P from -10 to 10, such as power:0.7)")


def lr_factor(rule: str, batch_ratio: float, largest: float | None = None) -> float:
    """What the rule multiplies the base learning rate by at B/B0 = batch_ratio, at most ``largest``."""
    factor = batch_ratio ** exponent(rule)
    return factor if largest is None else min(factor, largest)


def scale_moments(rule: str, batch_ratio: float, moments: Mapping[str, float], largest: float | None = None
                  ) -> dict[str, float]:
    """beta1, beta2 and epsilon at kappa times the base batch: 1 - beta times kappa, epsilon over sqrt(kappa).

    kappa is the batch ratio B/B0 or, where the rate's factor is capped at ``largest``, at most that squared.
    Together with the rate times sqrt(kappa) this is the square root scaling rule of Malladi et al. 2022
    (arXiv:2205.10287): with noise of the gradient in proportion to 1 / sqrt(B), rate * noise, (1 - beta) / rate^2 and
    epsilon / noise stay as they are, so the limiting stochastic differential equation does too. The formulas are from
    the abstract and the first author's summary (2024, "How to Scale Hyperparameters as Batch Size Increases").
    They hold where noise dominates the gradient. Weight decay and LAMB's trust ratios are not part of either text.

    Raises PlanError where kappa (1 - beta) reaches 1, as then no decay is left, naming the largest kappa.
    """
    kappa = batch_ratio if largest is None else min(batch_ratio, largest ** 2)
    scaled = {name: 1 - kappa * (1 - moments[name]) if kappa != 1 else moments[name] for name in SCALED_BETAS[rule]}
    spent = [name for name, beta in scaled.items() if beta < NO_DECAY and kappa > 1]
    if spent:
        limit = min(1 / (1 - moments[name]) for name in SCALED_BETAS[rule])
        said = " and ".join(f"1 - {name} = {1 - moments[name]:g} to {1 - scaled[name]:g}" for name in spent)
        raise PlanError(f"lr_rule = {rule} at {kappa:g} times the base batch takes {said}, and it must stay below 1: "
                        f"the batch may be less than {limit:g} times the base batch")
    return {**moments, **scaled, "epsilon": moments["epsilon"] / math.sqrt(kappa)}


# time scales of an optimizer in examples or epochs, which a larger batch leaves as they are

def decay_of(half_life: float, global_batch: int) -> float:
    """The decay per step, 2^(-B / half_life), of a mean where an example's weight halves over ``half_life`` examples.

    Marek et al. 2025 (arXiv:2507.07101) hold the half-life of Adam's second moment, in tokens, over the batch. That is
    from the abstract alone; the formula is the definition of a half-life. From a base batch B0 it is beta^(B / B0), to
    first order in 1 - beta the rule of scale_moments. The learning rate and its decay stay as they are.

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
