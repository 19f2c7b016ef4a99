"""Settling a plan: from what was asked, by the user and by default, to all that a run will do."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

from ..errors import PlanError, UsageError
from ..formatting.numbers import counted, listed
from ..system.inputs import sha256_of
from ..target import SPLITS, Target
from .batch_schedule import FOLLOWS_RULE, SEESAW, STAYS, BatchSchedule
from .lengths import Length
from .local_steps import refuse_uneven_replicas, settle_ghost_batch, settle_local_steps
from .metaparameters import tuned_for
from .plan import Plan
from .scaling import SCALED_BETAS, TUNED, decay_of, exponent, lr_factor, scale_moments, weight_decay_of
from .schedule import FALLING, INVERSE_SQRT, PLATEAU
from .settings import ACTS_ONLY_WITH, DECOUPLED, HALF_LIVES, NO_CLASS, OPTIMIZER_KEYS, OPTIMIZERS, Settings
from .shards import Stream, fewest_passes, largest_pass
from .values import LARGEST_INT, MOST, none_of

GLOBAL, GHOST_BATCH = "global", 32
AVERAGED = "averaged_"      # before the name of a metric: that of the averaged weights
PLANNED = frozenset(field.name for field in fields(Plan))       # a setting of such a name is planned as it was set


@dataclass(frozen=True)
class Place:
    """Where a run takes place: workers, the host's cores for them, the device of rank 0, what joins them."""

    workers: int = 1
    local_workers: int = 1
    cores: int = 1
    device: str = "cpu"
    transport: str = "single"


class NamedWorkload(Protocol):
    """What a plan asks of a workload: names, and its metrics with "min" or "max" each."""

    name: str
    dataset: str
    model: str
    metrics: Mapping[str, str]


def settle(settings: Settings, workload: NamedWorkload, train_examples: int, val_examples: int, place: Place,
           train_tokens: int | None = None) -> Plan:
    """The plan for these settings at this place, for the training examples that there are after train_subset, with the
    tokens that the loss counts (None: it counts examples). Raises PlanError or UsageError for what cannot hold."""
    settings = count_in_examples(settings, workload.name, train_examples, train_tokens)
    batches, accumulate = settle_batches(settings, place.workers, train_examples)
    settings = count_in_examples(settle_tuned(settings, workload.name, batches.first), workload.name, train_examples,
                                 train_tokens)
    stream = Stream(train_examples, batches, settings.seed, settings.last_batch)
    refuse_uneven_replicas(settings.replicas, stream, place.workers)
    shares, workers = batches.divided(settings.replicas), max(1, place.workers // settings.replicas)    # of a replica
    ghost_batch = batches.largest if settings.ghost_batch == GLOBAL else int(settings.ghost_batch or GHOST_BATCH)
    ghost_batch = settle_ghost_batch(ghost_batch, "ghost_batch" in settings.typed, settings.replicas, stream)
    accumulate = settle_accumulate(settings, shares.largest, ghost_batch, workers, accumulate)
    refuse_unused(settings)
    metrics = with_averaged(workload.metrics, settings.average)
    target = settle_target(settings, metrics)
    budget_steps = settle_budget(settings, stream)
    local_steps = settle_local_steps(settings, stream, budget_steps)
    schedule, evaluations = settle_schedule(settings, stream, budget_steps), settle_evaluations(settings, stream)
    plateau = settle_plateau(settings, metrics, target, evaluations["eval_every"])
    splits = {name.strip() for name in settings.eval_splits.split(",")}
    if splits - set(SPLITS):
        raise PlanError(f"eval_splits = {settings.eval_splits!r} is not a list of {', '.join(SPLITS)}")
    splits |= {target.split} if target else set()
    splits |= {plateau["metric"].partition("/")[0]} if plateau else set()
    saved = None if settings.checkpoint is None else settings.checkpoint_every or CHECKPOINT_EVERY
    as_set = {name: value for name, value in vars(settings).items() if name in PLANNED}
    return Plan(**as_set | dict(
        workload=workload.name, dataset=workload.dataset, model=workload.model, data=settings.data_args,
        init_from=settings.init_from and sha256_of(settings.init_from, UsageError),
        train_examples=train_examples, train_tokens=train_tokens, fixed_examples=None, global_batch=batches.largest,
        batch_schedule=None if batches.is_constant else batches.pairs, ghost_batch=ghost_batch,
        loss_scale=settings.loss_scale if _has_fp16(settings) else 1.0,
        group_by_group=settings.group_by_group == "always", exact=settle_exact(settings), plateau=plateau, **schedule,
        **settle_updates(settings, stream, schedule), **settle_average(settings, stream, budget_steps),
        local_steps=local_steps, noise_every=0 if local_steps else settings.noise_every,
        budget_steps=budget_steps, budget_seconds=_seconds(settings.budget), target=target and str(target),
        **evaluations, eval_splits=tuple(split for split in SPLITS if split in splits),
        train_eval_examples=min(train_examples, settings.train_eval_examples or val_examples or train_examples),
        **vars(place), local_batch=largest_of(shares, ghost_batch, workers, accumulate),
        accumulate=accumulate * max(1, settings.replicas // place.workers),
        threads=settings.threads or (1 if settings.exact else max(1, place.cores // place.local_workers)),
        commit_every=settings.commit_every or 0, checkpoint_every=saved.in_steps(stream) if saved else 0,
        checkpoint_seconds=_seconds(saved), keep_checkpoints=settings.keep_checkpoints if saved else 0))


def count_in_examples(settings: Settings, workload: str, train_examples: int, train_tokens: int | None) -> Settings:
    in_examples: dict[str, Any] = {}
    for name, length in settings.in_tokens.items():
        if not train_tokens:
            raise PlanError(f"{name} = '{length}': {workload} counts examples, not tokens; give it in examples, or let "
                            "its training split count its tokens (count_tokens)")
        in_examples[name] = length.divided(train_tokens / train_examples)
    return replace(settings, **in_examples)


def settle_batches(settings: Settings, workers: int, train_examples: int) -> tuple[BatchSchedule, int]:
    """The global batch of every step, and the accumulation at the largest; raises PlanError for one that cannot be."""
    schedule = settings.batch_schedule
    if schedule is None:
        batch, accumulate = settle_batch(settings, workers, train_examples)
        return BatchSchedule((batch,)), accumulate
    name = f"batch_schedule = {schedule}"
    if settings.last_batch != "carry":
        raise PlanError(f"{name} needs last_batch = carry, under which every step has its global batch, and "
                        f"last_batch is {settings.last_batch}; give one of the two")
    try:
        batches = (BatchSchedule.of_pairs(schedule.amount) if schedule.unit == "steps" else
                   BatchSchedule.by_examples(schedule.in_examples(train_examples)))
    except PlanError as error:
        raise PlanError(f"{name}: {error}") from None
    if batches.largest > train_examples:
        raise PlanError(f"{name}: a batch of {batches.largest} is larger than the training set of "
                        f"{train_examples} examples; end at a smaller one")
    if batches.smallest < workers:
        raise PlanError(f"{name} leaves some of {counted(workers, 'worker')} without an example at its smallest batch; "
                        "use fewer workers, or larger batches")
    if batches.largest < workers * settings.accumulate:
        raise PlanError(f"{name} leaves some of {counted(workers, 'worker')}{_passes(settings.accumulate)} without an "
                        "example at its largest batch; use fewer passes, or larger batches")
    return batches, settings.accumulate


def settle_batch(settings: Settings, workers: int, train_examples: int) -> tuple[int, int]:
    typed, accumulate = settings.typed, settings.accumulate
    local, batch = settings.local_batch, settings.global_batch
    if batch is None:
        if local is None:
            raise PlanError("no batch: give --local-batch or --global-batch")
        batch = workers * local * accumulate
    elif local is not None and {"global_batch", "local_batch"} <= typed:
        if "accumulate" not in typed:
            accumulate = max(1, batch // (workers * local))
        if workers * local * accumulate != batch:
            raise PlanError(
                f"--global-batch {batch} is not {counted(workers, 'worker')} x --local-batch {local}"
                f"{_passes(accumulate)} = {workers * local * accumulate}. What fits: "
                f"{_fitting(settings, batch, workers * local, train_examples, workers)}")
    if batch > train_examples:
        raise PlanError(f"a global batch of {batch} ({counted(workers, 'worker')} x {batch / workers / accumulate:g} "
                        f"examples{_passes(accumulate)}) is larger than the training set of {train_examples} examples; "
                        "use fewer workers or a smaller batch")
    if batch < workers * accumulate:
        fits = f"at most {counted(batch // accumulate, 'worker')}" if batch >= accumulate else "fewer passes"
        raise PlanError(f"a global batch of {batch} leaves some of {counted(workers, 'worker')}{_passes(accumulate)} "
                        f"without an example; use {fits}, or a larger batch")
    return batch, accumulate


def largest_of(batches: BatchSchedule, ghost_batch: int, workers: int, accumulate: int) -> int:
    most = largest_pass(batches.largest, ghost_batch, workers, accumulate)
    smaller = {batch: fewest_passes(batch, ghost_batch, workers, most, accumulate)
               for batch in batches.sizes if batch < batches.largest}
    return max([most, *(largest_pass(batch, ghost_batch, workers, passes) for batch, passes in smaller.items())])


def settle_accumulate(settings: Settings, global_batch: int, ghost_batch: int, workers: int, accumulate: int) -> int:
    """The accumulation as typed, or the least under which no pass is larger than max_local_batch."""
    most = settings.max_local_batch
    if most is None:
        return accumulate
    if "accumulate" in settings.typed:
        largest = largest_pass(global_batch, ghost_batch, workers, accumulate)
        if largest > most:
            raise PlanError(f"--accumulate {accumulate} leaves passes of {largest} examples, more than "
                            f"--max-local-batch {most}; leave one of them out")
        return accumulate
    return fewest_passes(global_batch, ghost_batch, workers, most, at_most=-(-global_batch // workers))


def _fitting(settings: Settings, batch: int, unit: int, train_examples: int, workers: int) -> str:
    """Global batches that fit the other numbers typed; ``unit`` examples are one pass of all workers."""
    below = unit * max(1, batch // unit)
    near = [unit * settings.accumulate] if "accumulate" in settings.typed else [below, below + unit]
    fitting = [str(fits) for fits in near if fits <= train_examples]
    said = [f"--global-batch {' or '.join(fitting)}"] if fitting else []
    if workers * settings.accumulate <= batch <= train_examples:
        said.append(f"--global-batch {batch} without --local-batch, in uneven shares")
    return "; or ".join(said) or "fewer workers, or a smaller --local-batch"


def _passes(accumulate: int) -> str:
    return f" x {accumulate} passes" if accumulate > 1 else ""


def settle_tuned(settings: Settings, workload: str, global_batch: int) -> Settings:
    """The settings with the metaparameters tuned for this batch, under the rule ``tuned``; what was typed wins."""
    if settings.lr_rule != TUNED:
        exponent(settings.lr_rule)
        return settings
    if settings.metaparameters is None:
        raise PlanError("--lr-rule tuned needs --metaparameters FILE.toml, with tables such as [global_batch.256]")
    tuned = tuned_for(settings.metaparameters, workload, global_batch)
    if "optimizer" in settings.typed and tuned.get("optimizer", settings.optimizer) != settings.optimizer:
        raise PlanError(f"--optimizer {settings.optimizer}: what {settings.metaparameters} has for global batch "
                        f"{global_batch} was tuned for {tuned['optimizer']}; leave --optimizer out, or give a file "
                        f"tuned for {settings.optimizer}")
    optimizer = tuned.get("optimizer", settings.optimizer)
    if ":" in optimizer and optimizer != settings.optimizer and not optimizer.startswith("torch.optim:"):
        raise PlanError(f"{settings.metaparameters}: names the optimizer {optimizer}, whose module would be imported, "
                        f"and run; if you know that code, give --optimizer {optimizer}, too")
    return settings.over(tuned)


# keys that act only with a folder of checkpoints
OF_CHECKPOINTS = ("resume", "checkpoint_every", "keep_checkpoints")
CHECKPOINT_EVERY = Length(300.0, "seconds")


def refuse_unused(settings: Settings) -> None:
    """Raise PlanError for a key that was typed and would do nothing."""
    typed = settings.typed
    for name, (other, values) in ACTS_ONLY_WITH.items():
        if name in typed and getattr(settings, other) not in values:
            raise PlanError(f"{settings.named(name)} acts only with {other} = {listed(values, 'or')}, and {other} is "
                            f"{getattr(settings, other)}; give one of the two")
    for name, acts, needed in (
            *((name, settings.checkpoint is not None, "a folder of checkpoints; give --checkpoint DIR")
              for name in OF_CHECKPOINTS),
            ("loss_scale", _has_fp16(settings), "precision = fp16 or compression = fp16; leave it out"),
            ("momentum_correction", settings.lr_in_velocity or settings.optimizer == "lars",
             "lr_in_velocity = true or optimizer = lars: outside the velocity the rate may change without a correction"
             "; leave it out"),
            ("decay_norm_and_bias", settings.weight_decay or settings.decay_timescale is not None,
             "a weight_decay above 0; give one"),
            ("batch_schedule_lr", settings.batch_schedule is not None,
             "a batch_schedule; give one, such as [[0, 64], [2000, 128]]")):
        if name in typed and not acts:
            raise PlanError(f"{settings.named(name)} acts only with {needed}")
    if "optimizer_args" in typed and settings.optimizer in OPTIMIZERS:
        raise PlanError(f"optimizer_args = {settings.optimizer_args} is for a module:Class such as torch.optim:SGD, "
                        f"not for {settings.optimizer}")
    if settings.lr_per_example is not None or settings.lr_rule == TUNED:
        reason = "lr_rule = tuned" if settings.lr_per_example is None else "lr_per_example"
        for name in sorted({"base_batch", "max_lr_factor"} & typed):
            raise PlanError(f"{name} does nothing beside {reason}, which gives the rate itself; leave it out")


def settle_exact(settings: Settings) -> dict | None:
    if not settings.exact:
        return None
    for name, rounds in {"compression": "fp16", "group_by_group": "never"}.items():
        if getattr(settings, name) == rounds:
            raise PlanError(f"exact = true sums the gradients of each ghost group without rounding; {name} = {rounds} "
                            "does not; leave one of the two out")
    if settings.bucket_mib:
        raise PlanError("exact = true sums gradients in one piece, after the backward pass; leave bucket_mib out")
    return {"threads": settings.threads or 1}


def _has_fp16(settings: Settings) -> bool:
    return "fp16" in (settings.precision, settings.compression)


def settle_optimizer(settings: Settings, global_batch: int, train_examples: int) -> dict:
    """The optimizer's fields of the plan, by name, those given by a half-life as at the global batch. LARS has the rate
    in its velocity, uncorrected, as its paper does."""
    name = settings.optimizer
    if name not in OPTIMIZERS and ":" not in name:
        raise UsageError(f"optimizer {none_of(name, OPTIMIZERS, NO_CLASS)}")
    settled = {key: getattr(settings, key) if key in OPTIMIZERS.get(name, ()) else None for key in OPTIMIZER_KEYS}
    for key, half_life in HALF_LIVES.items():
        length = getattr(settings, half_life)
        if settled[key] is not None and length is not None:
            settled[key] = decay_of(length.in_examples(train_examples), global_batch)
    if "epsilon" in OPTIMIZERS.get(name, ()) and settings.epsilon is None:
        settled["epsilon"] = 1e-6 if name == "lamb" else 1e-8
    corrected, settled["momentum_correction"] = settings.momentum_correction, None
    if name == "lars":
        settled.update(lr_in_velocity=True, momentum_correction=corrected is True)
    elif settled["lr_in_velocity"]:
        settled["momentum_correction"] = corrected is not False
    return dict(optimizer=name, optimizer_args={} if name in OPTIMIZERS else settings.optimizer_args, **settled)


def settle_updates(settings: Settings, stream: Stream, schedule: Mapping) -> dict:
    batches, rule, base_batch = stream.batches, schedule["lr_rule"], schedule["base_batch"]
    found = []
    for batch, (_, factor) in zip(batches.sizes, schedule["batch_lr_factors"] or ((0, 1.0),)):
        optimizer = settle_optimizer(settings, batch, stream.examples)
        at = batch if settings.batch_schedule_lr == FOLLOWS_RULE else batches.first
        optimizer |= settle_moments(settings, optimizer, rule, at, base_batch)
        if settings.optimizer == "muon":
            optimizer["adamw_lr"] = (settings.adamw_lr or schedule["base_lr"]) * schedule["lr_factor"]
        weight_decay, timescale = settings.weight_decay, settings.decay_timescale
        if timescale is not None and settings.optimizer in DECOUPLED:
            epochs = timescale.amount if timescale.unit == "epochs" else timescale.amount / stream.examples
            weight_decay = weight_decay_of(epochs, schedule["peak_lr"] * factor, batch, stream.examples)
        found.append({**optimizer, "weight_decay": weight_decay})
    changing = {name: tuple(one[name] for one in found) for name, value in found[0].items()
                if any(one[name] != value for one in found)}
    return {**found[0], "batch_updates": changing or None}


def settle_moments(settings: Settings, optimizer: Mapping, rule: str, global_batch: int, base_batch: int) -> dict:
    """beta1, beta2 and epsilon at the global batch, under a rule that scales them; {} under another."""
    if rule not in SCALED_BETAS:
        return {}
    if optimizer["beta2"] is None:
        having = " or ".join(name for name, keys in OPTIMIZERS.items() if "beta2" in keys)
        raise PlanError(f"lr_rule = {rule} scales {', '.join(SCALED_BETAS[rule])} and epsilon, and optimizer "
                        f"{optimizer['optimizer']} has no such keys; choose --optimizer {having}, or --lr-rule sqrt")
    for name in SCALED_BETAS[rule]:
        half_life = HALF_LIVES[name]
        if getattr(settings, half_life) is not None:
            raise PlanError(f"lr_rule = {rule} scales {name}, and {half_life} gives it at any batch; leave {half_life} "
                            "out, or choose --lr-rule sqrt beside it")
    moments = {name: optimizer[name] for name in ("beta1", "beta2", "epsilon")}
    try:
        return scale_moments(rule, global_batch / base_batch, moments, settings.max_lr_factor)
    except PlanError as error:
        leave = " --lr-rule adam_sqrt:beta2, which leaves beta1 as it is," if "beta1" in SCALED_BETAS[rule] else ""
        raise PlanError(f"{error}, here {base_batch}. Choose a smaller batch,{leave} or max_lr_factor") from None


def settle_lr(settings: Settings, global_batch: int) -> tuple[str, float, int, float, float]:
    """Rule, base learning rate, base batch, factor and peak learning rate. With lr_per_example the peak is that rate
    times B (Masters & Luschi 2018, section 2.1): linear from a base batch of 1."""
    if settings.lr_per_example is not None:
        if "lr_rule" in settings.typed and settings.lr_rule != "linear":
            raise PlanError(f"lr_per_example is a rate times the global batch, so --lr-rule {settings.lr_rule} "
                            "cannot hold beside it")
        return "linear", settings.lr_per_example, 1, float(global_batch), settings.lr_per_example * global_batch
    if settings.lr is None:
        raise PlanError("no learning rate: give --lr (with --base-batch, where it was tuned)")
    if settings.lr_rule == TUNED:
        return TUNED, settings.lr, global_batch, 1.0, settings.lr
    base_batch = settings.base_batch or global_batch
    factor = lr_factor(settings.lr_rule, global_batch / base_batch, settings.max_lr_factor)
    return settings.lr_rule, settings.lr, base_batch, factor, settings.lr * factor


def settle_schedule(settings: Settings, stream: Stream, budget_steps: int) -> dict:
    """The learning rate's fields of the plan; warmup starts at the base rate, or at 0 if a tuned rate has none."""
    rule, base_lr, base_batch, factor, peak_lr = settle_lr(settings, stream.batches.first)
    warmup_length = settings.warmup_length if settings.warmup != "none" else None
    warmup_steps = warmup_length.in_steps(stream) if warmup_length else 0
    start_lr = 0.0 if rule == TUNED else min(base_lr, peak_lr)
    if settings.warmup_start_factor is not None:
        start_lr = settings.warmup_start_factor * peak_lr
    falls, decay_steps = settings.decay in FALLING, 0
    if falls:
        decay_steps = settings.decay_end.in_steps(stream) if settings.decay_end else budget_steps
    decay_start = settings.decay_start.in_steps(stream) if settings.decay_start else None
    if decay_start is not None and decay_start < warmup_steps:
        raise PlanError(f"{settings.decay} decay starts at step {decay_start}, within the warmup of {warmup_steps} "
                        "steps; give a later decay_start, or leave it out")
    if falls and decay_steps <= (decay_start or warmup_steps):
        within, instead = f"within the warmup of {warmup_steps} steps", "warmup=none"
        if decay_start:
            within, instead = f"before its start at step {decay_start}", "an earlier decay_start"
        raise PlanError(f"{settings.decay} decay ends at step {decay_steps}, {within}; give a decay_end "
                        f"beyond it, or {instead}" +
                        ("" if decay_steps else " (a budget in seconds has no last step)"))
    if settings.decay == INVERSE_SQRT and not (decay_start or warmup_steps):
        raise PlanError(f"{INVERSE_SQRT} decay is peak x sqrt(start / step), and its start is step 0; give a warmup "
                        "or a decay_start")
    decay_at = tuple(length.in_steps(stream) for length in settings.decay_at or ())
    if settings.decay == "step" and not decay_at:
        raise PlanError("decay = 'step' needs decay_at, such as decay_at = '[30, 60, 80] epochs'")
    return dict(lr_rule=rule, base_lr=base_lr, base_batch=base_batch, lr_factor=factor, peak_lr=peak_lr,
                start_lr=start_lr if warmup_steps else peak_lr, warmup=settings.warmup if warmup_steps else "none",
                warmup_steps=warmup_steps, decay_steps=decay_steps, decay_at=decay_at, decay_start=decay_start,
                batch_lr_factors=settle_rate_factors(settings, stream.batches, rule, base_batch))


def settle_rate_factors(settings: Settings, batches: BatchSchedule, rule: str, base_batch: int
                        ) -> tuple[tuple[int, float], ...] | None:
    """(first step, factor on the learning rate, relative to the first) by piece; None for a constant batch.

    By batch_schedule_lr; rule: by the rule's own factors, so that the rate is that of a run at this batch; stay: 1;
    seesaw: sqrt(B' / B) from batch B' to batch B. Raises PlanError for a way that does not fit the rule or the decay.

    Seesaw (Meterez et al. 2025, arXiv:2510.14717): where a standard schedule would halve the rate, divide it by sqrt(2)
    and double the batch instead. More generally, rate r -> a r becomes rate r -> sqrt(a) r and batch B -> B / a. For
    normalized SGD, their proxy of Adam, both have the same loss by examples where noise dominates the gradient. For
    SGD the equivalent of halving the rate is doubling the batch alone: stay. From the abstract and summaries alone.
    """
    how = settings.batch_schedule_lr
    if batches.is_constant:
        return None
    if how == FOLLOWS_RULE and rule == TUNED:
        raise PlanError("lr_rule = tuned has one rate, and batch_schedule_lr = rule needs one at every batch; choose "
                        "batch_schedule_lr = stay or seesaw, or --lr-rule linear or sqrt")
    if how == SEESAW and settings.decay != "constant":
        raise PlanError(f"batch_schedule_lr = seesaw takes the place of a decay, and decay is {settings.decay}; choose "
                        "decay = constant, or batch_schedule_lr = stay")
    if how == STAYS:
        factors = [1.0] * len(batches.sizes)
    elif how == SEESAW:
        factors = [math.sqrt(batches.first / size) for size in batches.sizes]
    else:
        by_rule = [lr_factor(rule, size / base_batch, settings.max_lr_factor) for size in batches.sizes]
        factors = [factor / by_rule[0] for factor in by_rule]
    return tuple(zip(batches.starts, factors))


def settle_plateau(settings: Settings, metrics: Mapping[str, str], target: Target | None, eval_every: int
                   ) -> dict | None:
    """The plan's ``plateau``: metric (``split/name``), better (min or max), patience, threshold and cooldown; None for
    another decay. It is torch's ReduceLROnPlateau, with threshold_mode = rel and patience in evaluations;
    ``schedule.reductions`` has its steps."""
    if settings.decay != PLATEAU:
        return None
    if not eval_every:
        raise PlanError("decay = plateau follows an evaluated metric, and eval_every = 0 evaluates none; give "
                        "an eval_every, or another decay")
    column = settings.decay_metric or (target.column if target else None)
    split, _, name = (column or "").partition("/")
    if split not in SPLITS or name not in metrics:
        given = f"decay_metric = {column!r} is none of its metrics" if column else "there is no target to take it from"
        raise PlanError(f"decay = plateau follows an evaluated metric, and {given}; give decay_metric, "
                        f"{' or '.join(SPLITS)}, / and one of {', '.join(metrics)}, such as val/{next(iter(metrics))}")
    if settings.decay_factor >= 1:
        raise PlanError(f"decay_factor = {settings.decay_factor:g} does not reduce the rate on a plateau; give one "
                        "below 1, such as 0.1")
    return {"metric": column, "better": metrics[name], "patience": settings.decay_patience,
            "threshold": settings.decay_threshold, "cooldown": settings.decay_cooldown}


def with_averaged(metrics: Mapping[str, str], average: str | None) -> dict[str, str]:
    """The metrics, "min" or "max" by name, with those of the averaged weights if there is an average."""
    averaged = metrics if average not in (None, "none") else {}
    return {**metrics, **{f"{AVERAGED}{name}": way for name, way in averaged.items()}}


def settle_average(settings: Settings, stream: Stream, budget_steps: int) -> dict:
    half_life, start = settings.average_half_life, settings.average_start
    if settings.average == "none":
        return dict(average=None, average_half_life=None, average_start=None)
    if settings.average == "ema":
        if half_life is None:
            raise PlanError("average = ema needs average_half_life, such as '1e5 examples': how far back the weights "
                            "count")
        return dict(average="ema", average_half_life=half_life.in_examples(stream.examples), average_start=None)
    if start is None and not budget_steps:
        raise PlanError("average = tail needs average_start: a budget in seconds has no half in steps")
    first = budget_steps // 2 if start is None else start.in_steps(stream)
    if 0 < budget_steps <= first:
        raise PlanError(f"average = tail starts at step {first}, and the budget is {budget_steps} steps; give an "
                        "earlier average_start")
    return dict(average="tail", average_half_life=None, average_start=first)


def settle_target(settings: Settings, metrics: Mapping[str, str]) -> Target | None:
    if settings.target in (None, "none"):
        return None
    if settings.eval_every and not settings.eval_every.amount:
        if "target" in settings.typed:
            raise PlanError(f"--target {settings.target} is never held against anything under --eval-every 0; give one")
        return None
    target = Target.parse(settings.target)
    if target.metric not in metrics:
        raise PlanError(f"target {settings.target!r}: the workload measures {', '.join(metrics)}; {target.metric!r} is "
                        "none of these")
    if target.minimizes != (metrics[target.metric] == "min"):
        better, sign = ("smaller", "<") if metrics[target.metric] == "min" else ("larger", ">")
        raise PlanError(f"target {settings.target!r}: {better} values of {target.metric} are better, so its target is "
                        f"{target.column}{sign}{target.value:g}")
    return target


def settle_evaluations(settings: Settings, stream: Stream) -> dict:
    """When to evaluate, by default once an epoch: steps between evaluations at the first batch, 0: never; and examples
    between them where they are counted in these, as where the batch changes."""
    every, first = settings.eval_every or Length(1.0, "epochs"), stream.batches.first
    if every.unit == "examples" and every.amount:
        return dict(eval_every=max(1, round(every.amount / first)), eval_every_examples=float(every.amount))
    steps = every.in_steps(replace(stream, batches=BatchSchedule((first,))))
    in_steps = every.unit == "steps" or stream.batches.is_constant
    return dict(eval_every=steps, eval_every_examples=None if in_steps else steps * first)


def settle_budget(settings: Settings, stream: Stream) -> int:
    if settings.budget is None:
        raise PlanError("no budget: give --steps, --epochs or --budget, such as --budget '1e8 tokens'")
    steps = settings.budget.in_steps(stream)
    if steps > MOST or stream.examples_before(steps) > LARGEST_INT:
        raise PlanError(f"a budget of {settings.budget} is {steps:,} steps, more than a log can count; give a shorter "
                        "one")
    return steps


def _seconds(length: Length | None) -> float | None:
    return length.amount if length is not None and length.unit == "seconds" else None
