"""The plan: everything a run will do, settled before its first step and stored whole in its log.

A plan has three parts. The problem determines the sequence of updates. The execution says how they are computed:
changing it must change no update. The measurement says what is recorded and when the run ends.
"""
from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from ..target import Target
from .batch_schedule import BatchSchedule
from .schedule import FALLING, Schedule
from .settings import flat
from .shards import Pass, Stream, fewest_passes, group_bounds, group_passes, step_passes

# hvdscale.plan.settings says what each key means; here lengths are in steps, whatever unit the user typed


@dataclass(frozen=True)
class Problem:
    """What determines the sequence of updates."""

    workload: str
    dataset: str
    model: str
    model_args: dict
    data: dict                  # data_args, and what the data set's own record says
    init_from: str | None       # SHA-256 of the state dict that the model starts from
    train_examples: int
    global_batch: int           # the largest, if it changes
    batch_schedule: tuple[tuple[int, int], ...] | None          # (first step, batch); None: a constant batch
    batch_lr_factors: tuple[tuple[int, float], ...] | None      # (first step, factor on the rate); None: 1
    batch_updates: dict[str, tuple[float, ...]] | None      # what else changes with the batch: by field, by piece
    ghost_batch: int
    last_batch: str
    seed: int
    precision: str
    compression: str
    loss_scale: float           # 1: the loss is not scaled
    group_by_group: bool
    exact: dict | None          # threads and arithmetic of a run whose sums are not rounded; None: sums are
    unused_parameters: str
    optimizer: str
    optimizer_args: dict
    momentum: float | None              # None: not of this optimizer; so for all down to muon_scale
    lr_in_velocity: bool | None
    momentum_correction: bool | None    # None too where the rate is not in the velocity
    beta1: float | None
    beta2: float | None
    epsilon: float | None
    trust_coefficient: float | None
    adamw_lr: float | None              # its peak
    muon_scale: str | None
    weight_decay: float
    decay_norm_and_bias: bool
    clip_norm: float | None
    label_smoothing: float
    base_lr: float
    base_batch: int
    lr_rule: str
    lr_factor: float
    peak_lr: float
    start_lr: float
    warmup: str
    warmup_steps: int
    decay: str
    decay_steps: int
    decay_at: tuple[int, ...]
    decay_factor: float
    end_lr_factor: float
    decay_start: int | None     # None: the end of the warmup
    plateau: dict | None        # what a plateau decay follows, see settle_plateau; None: another decay
    average: str | None         # ema or tail; it changes no update, but a checkpoint has its state
    average_half_life: float | None
    average_start: int | None
    local_steps: dict | None    # of replicas that are synchronized, see settle_local_steps; None: of every step

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.peak_lr, self.start_lr, self.warmup, self.warmup_steps, self.decay, self.decay_steps,
                        self.decay_at, self.decay_factor, self.end_lr_factor, self.decay_start,
                        self.batch_lr_factors or (), self.plateau)

    @cached_property
    def batches(self) -> BatchSchedule:
        return BatchSchedule.of_problem({"batch_schedule": self.batch_schedule}, self.global_batch)

    @property
    def stream(self) -> Stream:
        return Stream(self.train_examples, self.batches, self.seed, self.last_batch)

    @property
    def replicas(self) -> int:
        return self.local_steps["replicas"] if self.local_steps else 1

    def ghost_groups(self, batch: int) -> int:
        return len(group_bounds(batch, self.ghost_batch)) - 1

    def updates_at(self, step: int) -> dict[str, float]:
        piece = self.batches.piece(step)
        return {name: values[piece] for name, values in (self.batch_updates or {}).items()}

    @property
    def scales_loss(self) -> bool:
        """Whether gradients are, or travel, in a type in which small ones vanish."""
        return "fp16" in (self.precision, self.compression)

    def metaparameters(self) -> dict[str, float]:
        """The metaparameters as numbers, by the log's names; NaN: does not apply."""
        may_not_apply = {name: getattr(self, name) for name in (
            "momentum", "beta1", "beta2", "epsilon", "trust_coefficient", "clip_norm")}
        return {"learning_rate": self.peak_lr,
                **{name: math.nan if value is None else value for name, value in may_not_apply.items()},
                "weight_decay": self.weight_decay, "label_smoothing": self.label_smoothing,
                "warmup_steps": float(self.warmup_steps),
                "decay_steps": float(self.decay_steps) if self.decay in FALLING else math.nan,
                "end_lr_factor": self.end_lr_factor if self.decay in FALLING else math.nan}


@dataclass(frozen=True)
class Measurement:
    """What is measured, and when the run ends."""

    budget_steps: int           # 0: the budget is in seconds
    budget_seconds: float | None
    target: str | None
    keep_going: bool
    eval_every: int             # 0: never; in steps of the first batch where they are counted in examples
    eval_every_examples: float | None   # None: evaluations are counted in steps
    train_tokens: int | None    # that the loss counts in the training set; None: it counts examples
    noise_every: int | None     # None: see noise_steps
    fixed_examples: int | None  # training examples, if nothing is drawn anew at a visit; None: something is, or unknown
    eval_batch: int
    eval_splits: tuple[str, ...]
    train_eval_examples: int

    @property
    def stop_target(self) -> Target | None:
        return Target.parse(self.target) if self.target else None


@dataclass(frozen=True)
class Execution:
    """How the updates are computed: workers, passes, device, checkpoints."""

    workers: int
    local_workers: int
    cores: int
    local_batch: int                    # the most examples in one pass
    accumulate: int                     # at the largest batch, over all replicas; a smaller one as local_batch needs
    device: str
    transport: str              # single, horovod or torch
    deterministic: bool
    threads: int
    bucket_mib: float
    loader_workers: int
    untimed_passes: int
    stall_seconds: float
    commit_every: int                   # steps; 0: as their cost allows
    checkpoint_every: int               # steps; 0: by time, or never
    checkpoint_seconds: float | None    # None: by steps, or never
    keep_checkpoints: int


@dataclass(frozen=True)
class Plan(Execution, Measurement, Problem):
    """A problem with its measurement and execution. Code that must not depend on the rest takes a Problem."""

    job: Mapping[str, Any] = field(default_factory=dict)    # digests of the user's code and data; see plan.job

    def passes(self, size: int, rank: int) -> list[Pass]:
        return self.passes_by_rank(size)[rank]

    def passes_by_rank(self, size: int) -> list[list[Pass]]:
        """Each rank's passes over a step of ``size`` examples, those of its replicas one after the other."""
        ranks: list[list[Pass]] = [[] for _ in range(self.workers)]
        for replica in range(self.replicas):
            for member, passes in enumerate(self.passes_of(replica, size)):
                ranks[replica * self.workers // self.replicas + member] += passes
        return ranks

    def passes_of(self, replica: int, size: int) -> list[list[Pass]]:
        """The passes of each of a replica's workers over its share of a step, fewer in a short step of few groups."""
        share, start = size // self.replicas, size // self.replicas * replica
        batch = size if size in self.batches.sizes else self.global_batch
        if self.group_by_group:
            workers = group_passes(share, self.ghost_batch, self.workers_each)
        else:
            accumulate, groups = self.accumulate_at(batch), self.ghost_groups(share)
            if groups < accumulate and not self.cuts_groups(batch):
                accumulate = groups
            workers = step_passes(share, self.ghost_batch, self.workers_each, accumulate)
        return [[Pass(start + part.start, start + part.stop, part.shared) for part in passes] for passes in workers]

    @property
    def workers_each(self) -> int:
        """The workers that compute one replica."""
        return max(1, self.workers // self.replicas)

    def accumulate_at(self, batch: int) -> int:
        """Passes of a worker over a replica's share of a step of one of the schedule's batches."""
        most = self.accumulate // max(1, self.replicas // self.workers)
        if batch == self.global_batch:
            return most
        return fewest_passes(batch // self.replicas, self.ghost_batch, self.workers_each, self.local_batch, most)

    def cuts_groups(self, batch: int) -> bool:
        """Whether a ghost group of this batch is cut over several passes of a worker."""
        return self.ghost_groups(batch // self.replicas) < self.accumulate_at(batch)

    def at_batch(self, global_batch: int, **changes: Any) -> Plan:
        """The plan of synchronous steps at a constant batch."""
        return replace(self, global_batch=global_batch, batch_schedule=None, batch_lr_factors=None, batch_updates=None,
                       local_steps=None, **changes)

    def evaluates_at(self, step: int) -> bool:
        return self.eval_every > 0 and (step == self.budget_steps or self.on_grid(step))

    def on_grid(self, step: int) -> bool:
        if self.eval_every_examples is None:
            return step % self.eval_every == 0
        seen, before = (self.stream.examples_before(at) // self.eval_every_examples for at in (step, step - 1))
        return seen > before

    def evaluations_between(self, step: int, last: int) -> float:
        """How often a run that ends after ``last`` steps evaluates after more than ``step`` of them, at its end too."""
        if not self.eval_every or last <= step:
            return 0
        if self.eval_every_examples is None:
            return _ends_between(step, last, self.eval_every)
        examples_before = self.stream.examples_before
        return _ends_between(examples_before(step), examples_before(last), self.eval_every_examples)

    def checkpoints_between(self, step: int, last: int, seconds: float) -> float:
        """Likewise of checkpoints, if any are kept; ``seconds``: that the steps between them take."""
        if last <= step:
            return 0
        if self.checkpoint_every:
            return _ends_between(step, last, self.checkpoint_every)
        return seconds // self.checkpoint_seconds + 1 if self.checkpoint_seconds else 1

    @property
    def noise_steps(self) -> int:
        """Steps between measurements of the noise scale, by default such that they cost less than 1 %; 0: never."""
        if self.noise_every is not None:
            return self.noise_every
        return 10 if self.workers > 1 or self.exact else 100

    def as_record(self, asked: dict) -> dict:
        def part(kind: type) -> dict:
            return {field.name: getattr(self, field.name) for field in fields(kind)}
        return {"problem": part(Problem), "measurement": part(Measurement), "execution": part(Execution),
                **({"job": dict(self.job)} if self.job else {}), "asked": asked}


def _ends_between(start: float, stop: float, every: float) -> float:
    """How many multiples of ``every`` lie above start and below stop, and stop itself."""
    return -(-stop // every) - start // every


def differences(then: Mapping, now: Mapping) -> dict[str, str]:
    """What differs between two records, by name: ``lr was 0.1, is now 0.2``."""
    old, new = flat(then), flat(now)
    return {name: f"{name} was {old.get(name, 'not set')}, is now {new.get(name, 'not set')}"
            for name in {**old, **new} if old.get(name) != new.get(name)}
