"""Checks of what follows from the settings: weight decay and the learning rate of every step."""
from __future__ import annotations

import math

import torch

from ..formatting.numbers import list_first
from ..plan.plan import Plan
from ..plan.schedule import FALLING, PLATEAU
from ..training.job import Job
from ..update.optimizers import make_optimizer, norms_and_biases
from .finding import Finding
from .kinds import JOB
from .probe_step import Sample

DECAY, RATE = "weight decay", "learning rate"
LOOKED_AT = 100_000         # steps whose rate is computed, at most


def decay(sample: Sample) -> Finding:
    """Which parameters an update shrinks when all gradients are zero, and which of them should decay.

    The check takes a step from parameters of 1, so it also finds an optimizer class with its own decay.
    """
    plan, model = sample.job.plan, sample.model()
    optimizer, apart = make_optimizer(plan, model), norms_and_biases(model)
    for group in optimizer.param_groups:
        group["lr"] = plan.peak_lr
    named = [(path, p) for path, p in model.named_parameters() if p.requires_grad]
    with torch.no_grad():
        for _, parameter in named:
            parameter.fill_(1.0)
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    decays = {path: bool((p != 1).any()) for path, p in named}
    wanted = {path: plan.weight_decay > 0 and (plan.decay_norm_and_bias or id(p) not in apart) for path, p in named}
    sizes: dict[tuple[bool, str], list[int]] = {}
    for path, p in named:
        kind = "biases and normalization" if id(p) in apart else "weights"
        sizes.setdefault((not decays[path], kind), []).append(p.numel())
    rows = tuple((kind, f"{len(of_kind)} tensors, {sum(of_kind):,} numbers", "do not decay" if kept else "decay")
                 for (kept, kind), of_kind in sorted(sizes.items(), key=lambda item: item[0][0]))
    unasked = [path for path in decays if decays[path] and not wanted[path]]
    if unasked:
        biases = "biases and normalization parameters among them" if any(
            id(p) in apart for path, p in named if path in unasked) else "though weight_decay is 0"
        return JOB.finding(DECAY, "unasked", plan, names=list_first(unasked, 3), which=biases, rows=rows)
    idle = [path for path in decays if wanted[path] and not decays[path]]
    return JOB.finding(DECAY, "idle" if idle else "as_asked", plan, names=list_first(idle, 3), rows=rows)


def learning_rate(job: Job) -> Finding:
    """The rate at the steps where its schedule changes, and whether it is finite and not negative throughout."""
    plan, rate = job.plan, job.plan.schedule.lr_at
    last = plan.budget_steps - 1 if plan.budget_steps else None
    rows = tuple((f"step {step:,}", f"{rate(step):.6g}", what) for step, what in _turns(plan, last))
    checked = range(0, last + 1 if last is not None else LOOKED_AT, max(1, (last or 0) // LOOKED_AT))
    function = "of the step and the evaluations" if plan.decay == PLATEAU else "of the step"
    wrong = next((step for step in checked if not (math.isfinite(rate(step)) and rate(step) >= 0)), None)
    return JOB.finding(RATE, "function" if wrong is None else "not_finite", plan, of=function, step=wrong,
                       rate=str(rate(wrong or 0)), rows=rows)


def _turns(plan: Plan, last: int | None) -> list[tuple[int, str]]:
    """Steps at which to show the rate, in order, each with its reason."""
    turns = {0: "first", 1: "second"}
    if plan.warmup != "none":
        turns |= {plan.warmup_steps - 1: "last of the warmup", plan.warmup_steps: "peak"}
    if plan.decay == "step":
        turns |= {step: f"times {plan.decay_factor:g}" for step in plan.decay_at}
    elif plan.decay in FALLING:
        middle = (plan.decay_steps + plan.schedule.falls_from) // 2
        turns |= {middle: "halfway through the decay", plan.decay_steps: "end of the decay"}
    turns |= {step: f"batch {batch}" for step, batch in plan.batches.pairs if step}
    if last is not None:
        turns = {step: what for step, what in turns.items() if step <= last} | {last: "last"}
    return sorted(turns.items())
