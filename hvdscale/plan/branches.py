"""Branches of a run: at k times its global batch, from its checkpoints, each over the same number of examples.

See analysis/branches.py for what they measure.
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import PlanError, UsageError
from ..target import SPLITS
from .scaling import SCALED_BETAS, TUNED, exponent, lr_factor
from .settings import key_of

if TYPE_CHECKING:
    from .plan import Problem

LINEAR = ("sgd", "momentum", "nesterov")        # the optimizers whose rate grows as the batch by default
SHARES = (0.125, 0.25, 0.5, 1.0)                # of the budget, at which there are branches by default
STEPS = 16                                      # of a branch at the largest batch, at least, by default
NOISE_POINTS = 50                               # measured steps of a branch at the smallest batch
# keys of the base run that say where it writes, or act on its own batch
OF_BASE = ("accumulate", "checkpoint", "checkpoint_every", "keep_checkpoints", "resume", "log", "save_model",
           "overwrite", "metaparameters", "keep_going", "batch_schedule_lr")
TOKEN_TOLERANCE = "0.01"        # nats, of a language model (Merrill et al. 2025)


@dataclass(frozen=True)
class BranchRequest:
    """What the user asks of the branches; see hvdscale-branch for each, and SHARES and STEPS for the defaults."""

    at: tuple[int, ...] = ()
    factors: tuple[int, ...] = (1, 2, 4, 8, 16)
    orders: int = 3
    examples: int | None = None
    evaluations: int = 8
    rule: str | None = None
    metric: str | None = None
    tolerance: str | None = None


class Origin:
    """A checkpoint that branches start from: its problem, the id of its log, steps done, its job ({}: unknown), and its
    path; the examples that were seen, and the batch."""

    def __init__(self, problem: Problem, log: str, step: int, job: Mapping[str, Any] | None = None, path: str = ""
                 ) -> None:
        self.problem, self.log, self.step, self.job, self.path = problem, log, step, job or {}, path
        self.examples, self.batch = problem.stream.examples_before(step), problem.batches.at(step)

    @property
    def rate(self) -> float:
        """The learning rate of the base run's next step; raises PlanError if it is 0."""
        rate = self.problem.schedule.lr_at(self.step)
        if not rate > 0:
            raise PlanError(f"--at {self.step}: the learning rate of the run is {rate:g} there, so no branch would "
                            "train; choose steps after the warmup, and before the end of the decay")
        return rate


class Branch:
    """One branch: the factor k on the batch, the order of its data (from 1), its steps, and its entry in the log."""

    def __init__(self, origin: Origin, factor: int, order: int, length: int, rule: str, metric: str, tolerance: str
                 ) -> None:
        self.origin, self.factor, self.order, self.steps = origin, factor, order, length // (factor * origin.batch)
        self.record: dict[str, Any] = {
            "base": origin.log, "step": origin.step, "examples": origin.examples, "base_batch": origin.batch,
            "factor": factor, "order": order, "length": length, "rule": rule,
            "rate": origin.rate * lr_factor(rule, factor), "metric": metric, "tolerance": tolerance}
        self.name = branch_name(self.record)


def branch_name(record: Mapping[str, Any]) -> str:
    return f"at{record['step']}-k{record['factor']}-r{record['order']}"


def rule_of(asked: BranchRequest, optimizer: str) -> str:
    """The rule for the rate, by default linear for SGD and sqrt for others; raises UsageError."""
    rule = asked.rule or ("linear" if optimizer in LINEAR else "sqrt")
    if rule == TUNED:
        raise UsageError("--rule tuned: branches follow a rule; choose linear, sqrt, none, adam_sqrt or power:P")
    exponent(rule)
    return rule


def metric_of(asked: BranchRequest, metrics: Mapping[str, str]) -> str:
    """The metric whose values are the losses, by default of the training examples; raises UsageError."""
    losses = [name for name, better in metrics.items() if better == "min"]
    if asked.metric is None and losses:
        return f"train/{'cross_entropy' if 'cross_entropy' in losses else losses[0]}"
    split, _, name = (asked.metric or "").partition("/")
    if split not in SPLITS or name not in losses:
        raise UsageError(f"--metric {asked.metric or 'train/...'}: is no loss of the workload; give "
                         f"{' or '.join(SPLITS)}, / and one of "
                         f"{', '.join(losses) or 'none: the workload measures nothing that should be small'}")
    return f"{split}/{name}"


def tolerance_of(asked: BranchRequest, metrics: Mapping[str, str], default: str) -> str:
    return asked.tolerance or (TOKEN_TOLERANCE if "perplexity" in metrics else default)


def steps_at(asked: BranchRequest, budget_steps: int) -> tuple[int, ...]:
    """The steps of the base run at which there are branches; raises PlanError if nothing says which."""
    if asked.at:
        if late := [step for step in asked.at if step > budget_steps > 0]:
            raise PlanError(f"--at {late[0]}: is beyond the run's {budget_steps} steps; name earlier steps, or a "
                            "longer run by --steps")
        return asked.at
    if not budget_steps:
        raise PlanError("a budget in seconds has no last step; give --at, the steps at which to branch")
    return tuple(sorted({max(1, round(share * budget_steps)) for share in SHARES}))


def length_of(asked: BranchRequest, global_batch: int) -> int:
    """Examples of every branch: as asked, rounded up so that all batches divide the space between evaluations."""
    unit = global_batch * math.lcm(*asked.factors) * asked.evaluations
    wanted = asked.examples or STEPS * global_batch * max(asked.factors)
    return unit * math.ceil(wanted / unit)


def branches_at(asked: BranchRequest, origin: Origin, rule: str, metric: str, tolerance: str) -> list[Branch]:
    length = length_of(asked, origin.batch)
    return [Branch(origin, factor, order, length, rule, metric, tolerance)
            for order in range(1, asked.orders + 1) for factor in asked.factors]


def layers_of(branch: Branch, layers: Iterable[Mapping[str, Any]], evaluations: int) -> list[dict]:
    """The settings of a branch: those of the base run, the strongest last, then its own."""
    origin, record, problem = branch.origin, branch.record, branch.origin.problem
    kept = [{name: value for name, value in layer.items() if key_of(name) not in OF_BASE} for layer in layers]
    # Adam's moments there, where a rule has scaled them from those that were set
    scaled = ("beta1", "beta2", "epsilon") if problem.lr_rule in SCALED_BETAS else ()
    moments = {name: problem.updates_at(origin.step).get(name, getattr(problem, name)) for name in scaled}
    own = dict(global_batch=branch.factor * origin.batch, ghost_batch=problem.ghost_batch, lr=origin.rate,
               base_batch=origin.batch, lr_rule=record["rule"], warmup="none", decay="constant",
               seed=problem.seed + branch.order, steps=branch.steps, eval_every=branch.steps // evaluations,
               eval_splits=record["metric"].partition("/")[0], target="none", **moments)
    if problem.adamw_lr is not None:
        own["adamw_lr"] = origin.rate * problem.adamw_lr / problem.peak_lr
    if not any("max_lr_factor" in layer for layer in kept):
        own["max_lr_factor"] = 2 * max(1.0, lr_factor(record["rule"], branch.factor))       # no cap
    if not any("noise_every" in layer for layer in kept):
        own["noise_every"] = max(1, branch.steps // NOISE_POINTS)
    return [*kept, own]


# fields of the problem in which a branch may differ from its base
OF_BRANCH = {"global_batch", "batch_schedule", "batch_lr_factors", "batch_updates", "seed", "base_lr", "base_batch",
             "lr_rule", "lr_factor", "peak_lr", "start_lr", "warmup", "warmup_steps", "decay", "decay_steps",
             "decay_at", "decay_factor", "end_lr_factor", "decay_start", "plateau", "adamw_lr", "momentum", "beta1",
             "beta2", "epsilon", "weight_decay"}


def refuse_other_problem(branch: Mapping[str, Any], base: Mapping[str, Any]) -> None:
    fixed = [name for name in base if name not in OF_BRANCH]
    from .plan import differences                       # slow, and --help of hvdscale-branch can do without
    differ = differences(*({name: problem.get(name) for name in fixed} for problem in (base, branch)))
    if differ:
        raise PlanError(f"the checkpoints are of another problem: {'; '.join(differ.values())}. Give the settings that "
                        "the run was made with")
