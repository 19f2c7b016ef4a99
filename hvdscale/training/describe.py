"""A plan in words: what hvdscale-train prints before its first step."""

from collections.abc import Iterator, Mapping

from ..formatting.numbers import byte_size, counted, number
from ..formatting.screen import wrap
from ..plan.plan import Plan
from ..plan.scaling import SCALED_BETAS, decay_timescale_of, half_life_of, lr_factor
from ..plan.settings import DECAYS_PER_STEP, DECOUPLED
from .outcome import Start

TRANSPORTS = {"horovod": "Horovod", "torch": "torch.distributed"}
LONGEST = 40        # characters of a value; a longer one, such as a hash, is abbreviated


def describe(plan: Plan, log: str, checkpoint: str | None = None, start: Start | None = None) -> str:
    """The plan, one line per subject; with the folder of checkpoints and the start of the run."""
    start = start or Start()
    every = f"{plan.checkpoint_every} steps" if plan.checkpoint_every else f"{plan.checkpoint_seconds or 0:g} s"
    rows = {
        "data": _entries(plan.data), "workers": describe_workers(plan), "transport": TRANSPORTS.get(plan.transport),
        "global batch": describe_batch(plan), "replicas": _replicas(plan), "learning rate": _lr(plan),
        "optimizer": _optimizer(plan), "weight decay": _decay_timescale(plan), "half-lives": _half_lives(plan),
        "budget": _budget(plan), "evaluation": _evaluation(plan), "average": _average(plan),
        "seed": f"{plan.seed}, {plan.precision}",
        "exact": plan.exact and (f"the same bits at any worker count, in {counted(plan.threads, 'thread')} each on "
                                 f"{plan.exact['arithmetic']}"),
        "log": log,
        "checkpoints": checkpoint and (f"{checkpoint}: every {every}, at the end and at a signal; the newest "
                                       f"{plan.keep_checkpoints} are kept"),
        "resumes": start.checkpoint and f"from {start.checkpoint}, step {start.step}"}
    lines = [wrap(plan.workload + (f" ({_entries(plan.model_args)})" if plan.model_args else "") +
             (f", from the state dict {plan.init_from[:12]}..." if plan.init_from else ""), whole=True)]
    lines += [wrap(text, f"  {name:<15}", whole=True) for name, text in rows.items() if text]
    lines += [wrap(note, "  note: ", whole=True) for note in _warmup_notes(plan)]
    if plan.local_workers > plan.cores and plan.device == "cpu":
        lines.append(wrap(f"{plan.local_workers} workers share {plan.cores} cores, so timings do not transfer to a "
                          "real cluster", "  note: ", whole=True))
    return "\n".join(lines)


def _entries(table: Mapping) -> str:
    def format_value(value):
        if isinstance(value, Mapping):
            return " ".join(f"{name}:{format_value(entry)}" for name, entry in value.items())
        text = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
        return text if len(text) <= LONGEST else f"{text[:12]}..."
    return ", ".join(f"{name}={format_value(value)}" for name, value in table.items())


def describe_workers(plan):
    threads = f", {counted(plan.threads, 'thread')} each" if plan.device == "cpu" else ""
    return f"{plan.workers} on {plan.device}{threads}"


def describe_batch(plan):
    even = plan.workers * plan.local_batch * plan.accumulate == plan.global_batch
    share = f"{plan.local_batch} examples" if even else f"at most {plan.local_batch} examples"
    passes = f" x {plan.accumulate} passes" if plan.accumulate > 1 else ""
    changes = "" if plan.batches.is_constant else f"{plan.batches}; "
    return f"{changes}{plan.global_batch} = {counted(plan.workers, 'worker')} x {share}{passes}"


def _replicas(plan):
    if not plan.local_steps:
        return ""
    every, rate, momentum = (plan.local_steps[name] for name in ("sync_every", "outer_lr", "outer_momentum"))
    outer = f"an outer step at rate {rate:g} with Nesterov momentum {momentum:g}"
    how = "their mean" if (rate, momentum) == (1, 0) else outer
    if exchange := plan.local_steps.get("exchange", ""):
        how += f" of changes sent as {exchange}"
    states = 2 if plan.beta2 is not None or ":" in plan.optimizer else int(bool(plan.momentum))     # of a weight
    of_each = 2 + states + bool(exchange)
    numbers = plan.job.get("model", {}).get("count", 0) * (plan.replicas * of_each + 1 + (momentum > 0))
    size = byte_size(numbers * (8 if plan.precision == "fp64" else 4))
    memory = f"; on one worker {size} of weights, gradients and optimizer states" if numbers else ""
    return f"{plan.replicas}, synchronized every {counted(every, 'step')} by {how}{memory}"


def _lr(plan):
    parts = [f"{plan.peak_lr:g}"]
    if plan.lr_rule == "tuned":
        parts.append(f"as tuned at {plan.batches.first}")
    elif plan.lr_factor != 1:
        parts[0] += f" = {plan.base_lr:g} x {plan.lr_factor:g}"
        capped = plan.lr_factor < lr_factor(plan.lr_rule, plan.batches.first / plan.base_batch)
        parts.append(f"{plan.lr_rule} from batch {plan.base_batch}" + ", capped by max_lr_factor" * capped)
    if plan.warmup != "none":
        flat = " (already the peak)" if plan.start_lr == plan.peak_lr else ""
        parts.append(f"{plan.warmup} warmup of {plan.warmup_steps} steps from {plan.start_lr:g}{flat}")
    return "; ".join(filter(None, [*parts, plan.schedule.describe_decay(), plan.schedule.describe_factors()]))


def _warmup_notes(plan: Plan) -> Iterator[str]:
    if plan.warmup == "none" or plan.start_lr == plan.peak_lr:
        return
    last = plan.budget_steps - 1
    if 0 <= last < plan.warmup_steps:
        yield (f"the warmup takes {counted(plan.warmup_steps, 'step')} and the run {plan.budget_steps}: the rate ends "
               f"at {plan.schedule.lr_at(last):.4g} and never reaches its peak, {plan.peak_lr:g}")
    if plan.start_lr == 0:
        idle = "the first step has" if plan.warmup == "gradual" else f"the first {plan.warmup_steps} steps have"
        yield f"{idle} a learning rate of 0 and no effect; warmup_start_factor sets where the warmup starts"


def _optimizer(plan):
    parts = [plan.optimizer]
    for name in ("momentum", "beta1", "beta2", "epsilon", "trust_coefficient"):
        if getattr(plan, name) is not None:
            parts.append(f"{name.replace('_', ' ')} {getattr(plan, name):g}{_from_base(plan, name)}")
    if plan.muon_scale:
        parts.append(f"updates scaled by {plan.muon_scale}, AdamW beside it at {plan.adamw_lr:g}")
    if plan.lr_in_velocity:
        parts.append(f"rate in the velocity {'with' if plan.momentum_correction else 'without'} momentum correction")
    parts += [f"{what} {value:g}" for what, value in (
        ("weight decay", plan.weight_decay), ("gradient norm at most", plan.clip_norm),
        ("label smoothing", plan.label_smoothing)) if value]
    parts += [f"{name} {value}" for name, value in plan.optimizer_args.items()]
    parts += [f"{name.replace('_', ' ')} by batch {', '.join(f'{value:.6g}' for value in values)}"
              for name, values in (plan.batch_updates or {}).items()]
    return ", ".join(parts)


def _from_base(plan, name):
    """How a rule that scales the moments arrives at one of them; see scaling.scale_moments."""
    kappa, value = plan.lr_factor ** 2, getattr(plan, name)
    if plan.lr_rule not in SCALED_BETAS or plan.lr_factor == 1:
        return ""
    if name == "epsilon":
        return f" = {value * plan.lr_factor:g} / {plan.lr_factor:g}"
    return f" = 1 - {kappa:g} x {(1 - value) / kappa:g}" if name in SCALED_BETAS[plan.lr_rule] else ""


def _decay_timescale(plan):
    if plan.optimizer not in DECOUPLED or not plan.weight_decay > 0:
        return ""
    epochs = decay_timescale_of(plan.weight_decay, plan.peak_lr, plan.batches.first, plan.train_examples)
    steps = 1 / (plan.peak_lr * plan.weight_decay)
    share = f", {steps / plan.budget_steps:.3g} of the budget" if plan.budget_steps else ""
    return f"follows the learning rate; time scale {steps:.4g} steps = {_epochs(f'{epochs:.4g}')}{share}"


def _epochs(number):
    return f"{number} epoch{'' if number == '1' else 's'}"


def _half_lives(plan):
    half_lives = {name: half_life_of(decay, plan.batches.first) for name in DECAYS_PER_STEP
                  if (decay := getattr(plan, name))}
    return ", ".join(f"{name} {number(examples)} examples{_in_tokens(plan, examples)}"
                     for name, examples in half_lives.items())


def _in_tokens(plan, examples):
    return f" = {number(examples * plan.train_tokens / plan.train_examples)} tokens" if plan.train_tokens else ""


def _average(plan):
    if not plan.average:
        return ""
    how = (f"exponential, half-life {number(plan.average_half_life)} examples" if plan.average == "ema" else
           f"mean from step {plan.average_start}")
    return f"{how}; measured as averaged_*"


def _budget(plan):
    epochs = plan.stream.examples_before(plan.budget_steps) / plan.train_examples
    size = f"{plan.budget_steps} steps ({_epochs(f'{epochs:.3g}')} of {plan.train_examples} examples"
    size += f"{_in_tokens(plan, plan.stream.examples_before(plan.budget_steps))})"
    if plan.budget_seconds:
        size = f"{plan.budget_seconds:g} s of steps; evaluations, checkpoints and start-up are not counted"
    if plan.target is None:
        return size
    return f"{size}, {'past the target' if plan.keep_going else 'or until'} {plan.target}"


def _evaluation(plan):
    if not plan.eval_every:
        return "none"
    splits = [f"{split} ({plan.train_eval_examples})" if split == "train" else split for split in plan.eval_splits]
    every = counted(plan.eval_every, "step")
    if plan.eval_every_examples is not None:
        every = f"{number(plan.eval_every_examples)} examples{_in_tokens(plan, plan.eval_every_examples)}"
    return f"every {every}: {', '.join(splits)}"
