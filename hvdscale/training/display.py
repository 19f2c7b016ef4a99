"""What rank 0 prints: a plan in words, before the first step; then a progress bar on a terminal, lines elsewhere."""

import math
import sys
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from ..analysis.step_breakdown import find_outlier
from ..formatting.numbers import byte_size, counted, number
from ..formatting.screen import Screen, time_left, wrap
from ..plan.plan import Plan
from ..plan.scaling import SCALED_BETAS, decay_timescale_of, half_life_of, lr_factor
from ..plan.settings import DECAYS_PER_STEP, DECOUPLED
from ..system.cores import LOST
from ..workers.launch import on_terminal
from .snapshot import Outcome, Start

TRANSPORTS = {"horovod": "Horovod", "torch": "torch.distributed"}
LONGEST = 40        # characters of a value; a longer one, such as a hash, is abbreviated
LINE_SECONDS, BAR_SECONDS = 2.0, 0.1
LEAST_TIMED, MOST_TIMED = 20, 500       # steps, of the latest, in which a rank is found slow


def describe(plan: Plan, log: str, checkpoint: str | None = None, start: Start | None = None) -> str:
    """The plan, one line per subject; with the folder of checkpoints and the start of the run."""
    start = start or Start()
    every = f"{plan.checkpoint_every} steps" if plan.checkpoint_every else f"{plan.checkpoint_seconds or 0:g} s"
    rows = {
        "data": _entries(plan.data), "workers": describe_workers(plan), "transport": TRANSPORTS.get(plan.transport),
        "global batch": describe_batch(plan), "replicas": plan.local_steps and _replicas(plan),
        "learning rate": _lr(plan), "optimizer": _optimizer(plan),
        "weight decay": plan.optimizer in DECOUPLED and plan.weight_decay > 0 and _decay_timescale(plan),
        "half-lives": _half_lives(plan), "budget": _budget(plan),
        "evaluation": _evaluation(plan) if plan.eval_every else "none", "average": plan.average and _average(plan),
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
    if plan.warmup != "none" and plan.start_lr != plan.peak_lr:
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
        parts.append(f"set for batch {plan.batches.first} itself (lr_rule tuned)")
    elif plan.lr_factor != 1:
        parts[0] += f" = {plan.base_lr:g} x {plan.lr_factor:g}"
        capped = plan.lr_factor < lr_factor(plan.lr_rule, plan.batches.first / plan.base_batch)
        parts.append(f"{plan.lr_rule} from batch {plan.base_batch}" + ", capped by max_lr_factor" * capped)
    if plan.warmup != "none":
        flat = " (already the peak)" if plan.start_lr == plan.peak_lr else ""
        parts.append(f"{plan.warmup} warmup of {plan.warmup_steps} steps from {plan.start_lr:g}{flat}")
    return "; ".join([*parts, *plan.schedule.describe_changes()])


def _warmup_notes(plan: Plan) -> Iterator[str]:
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
    splits = [f"{split} ({plan.train_eval_examples})" if split == "train" else split for split in plan.eval_splits]
    every = counted(plan.eval_every, "step")
    if plan.eval_every_examples is not None:
        every = f"{number(plan.eval_every_examples)} examples{_in_tokens(plan, plan.eval_every_examples)}"
    return f"every {every}: {', '.join(splits)}"


class Display:
    """Rank 0's output: progress, with the metric of the target (else the last validation metric)."""

    def __init__(self, plan: Plan, metrics: Iterable[str], empty: Collection[str] = (), out=None, clock=time.monotonic):
        self._plan, self._clock, self._empty, out = plan, clock, empty, out or sys.stdout
        self._screen = Screen(out, on_terminal(out), (BAR_SECONDS, LINE_SECONDS))
        self._first, self._seen, self._nans = None, Counter(), Counter()       # evaluations by metric
        target = plan.stop_target
        self._column = target.column if target else f"val/{[*metrics][-1]}"
        self._value, self._newest, self._scaled, self._busy = "-", None, "", 0.0
        self._by_rank = deque(maxlen=MOST_TIMED)        # seconds of a step, and those of each worker
        self._slow_said, self._born, self._whole_said = "", clock(), False
        self._evaluations, self._checkpoints = [], []   # seconds of each
        self._from = None       # the clock without these, and the examples, after the first step

    def resume(self, measured: Mapping[str, float]) -> None:
        """Show what an earlier start has measured, if anything, until the next evaluation."""
        if self._column in measured:
            self._value = f"{measured[self._column]:.4g}"

    def say(self, text: str) -> None:
        self._screen.say(text)

    def evaluation(self, step: int, measured: Mapping[str, float], seconds: float = 0.0) -> None:
        self._evaluations.append(seconds)
        shown, self._first = self._select(measured), step if self._first is None else self._first
        self._seen.update([*shown])
        for name in [name for name, value in shown.items() if math.isnan(value)]:
            if name not in self._nans:
                never = ", which never meets the target" if self._plan.target and name == self._column else ""
                self.say(f"  note: {name} is NaN at step {step}{never}")
            self._nans[name] += 1
        self._value = f"{measured.get(self._column, float('nan')):.4g}"
        if step == 0 or step == self._plan.budget_steps:
            self._show(step)

    def checkpoint(self, seconds: float) -> None:
        self._checkpoints.append(seconds)

    def plateau(self, step: int, metric: str, before: float, lr: float) -> None:
        self.say(f"  step {step}: {metric} is on a plateau; the learning rate falls from {before:g} to {lr:g}")

    def scaled(self, loss_scale: float, skipped: int) -> None:
        """Show from now on the last step's loss scale, and how many updates fp16 overflow has prevented."""
        self._scaled = f"loss scale {loss_scale:g}, {counted(skipped, 'update')} skipped"

    def ranks(self, seconds: float, by_rank: Sequence[float], without_core: float) -> None:
        """Note a step's seconds and by_rank, and its part without a core: see StepResult."""
        self._by_rank.append((seconds, by_rank))
        self._busy = self._busy if math.isnan(without_core) else without_core / seconds

    def busy_host(self) -> str:
        """How long a worker waited for a core that others had, in words; "" where that is little."""
        busy = self._busy
        return f"the host is busy: a worker waited for a core for {busy:.0%} of its time" if busy > LOST else ""

    def slow_rank(self) -> str:
        """The rank for which the others waited in the latest steps, in words; "" where shares differ."""
        plan = self._plan
        if len(self._by_rank) < LEAST_TIMED or plan.workers * plan.local_batch * plan.accumulate != plan.global_batch:
            return ""
        seconds, by_rank = zip(*self._by_rank)
        data, passes = np.array(by_rank).reshape(len(by_rank), 2, -1).transpose(1, 2, 0)
        for spent, what in ((data, "getting its data"), (passes, "in its passes")):
            if found := find_outlier(np.median(spent, axis=1), float(np.median(seconds))):
                return (f"rank {found[0]} is slow: {1000 * found[1]:.3g} ms a step {what}, the others "
                        f"{1000 * found[2]:.3g}; they wait for it{self.busy_host() and f' ({self.busy_host()})'}")
        return ""

    def step(self, step: int, seconds: float, loss: float) -> None:
        """Show progress if due: steps done in these seconds, and the last loss."""
        self._newest = step, seconds, loss
        if self._from is None:
            self._from = self._in_steps(), self._plan.stream.examples_before(step)
        if self._screen.due(self._clock()):
            self._show(step)

    def measured(self, outcome: Outcome) -> None:
        """Print the last evaluation, by ``split/metric``; with its step if others followed."""
        if outcome.measured:
            at = f"at step {outcome.evaluated}: " if outcome.evaluated != outcome.step else ""
            values = ", ".join(f"{name} {value:.4g}" for name, value in sorted(self._select(outcome.measured).items()))
            self.say(f"  {at}{values}")
        if self._scaled:
            self.say(f"  fp16: {self._scaled} of {outcome.step}; /steps in the log has both by step")
        if note := self.slow_rank() or self.busy_host():
            self.say(f"  note: {note}")
        for name, count in self._nans.items():
            since = f" since step {self._first}" if self._first else ""
            self.say(f"  note: {name} was NaN at {count} of {counted(self._seen[name], 'evaluation')}{since}")

    def end(self) -> None:
        self._screen.erase()

    def _select(self, measured):
        return {name: value for name, value in measured.items() if name.partition("/")[0] not in self._empty}

    def _show(self, step):
        budget, loss, speed = self._plan.budget_steps, "", ""
        count = f"step {step:>{len(str(budget))}}/{budget}" if budget else f"step {step}"
        if self._newest:
            at, seconds, value = self._newest
            examples = self._plan.stream.examples_before(at)
            rate, left = examples / seconds, self._seconds_left(at, examples, seconds)
            loss = f"loss {value:<10.4g}"
            speed = (f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}") + " examples/s  " + time_left(left)
            whole = self._plan.budget_seconds
            if whole and seconds >= whole / 10 and not self._whole_said:
                self._whole_said = True
                self.say(f"  note: the budget of {whole:g} s counts steps alone; with evaluations and checkpoints the "
                         f"run takes about {self._clock() - self._born + left:.0f} s")
            slow = self.slow_rank()
            if slow and slow.partition(":")[0] != self._slow_said:      # once for each rank
                self._slow_said = slow.partition(":")[0]
                self.say(f"  note: {slow}")
        progress = "  ".join(filter(None, [f"{loss}{self._column} {self._value:<9}{speed}".rstrip(), self._scaled]))
        self._screen.line(f"{count}  {progress}", self._clock(), step / budget if budget else 0)

    def _seconds_left(self, step: int, examples: int, seconds: float) -> float:
        plan, (clock, before) = self._plan, self._from
        taken, last = self._in_steps() - clock, plan.budget_steps
        per_example = taken / (examples - before) if examples > before and taken > 0 else seconds / examples
        if plan.budget_seconds:
            last = round(step * max(1.0, plan.budget_seconds / seconds))
        left = per_example * (plan.stream.examples_before(last) - examples)
        left += plan.evaluations_between(step, last) * _usual(self._evaluations)
        return left + plan.checkpoints_between(step, last, left) * _usual(self._checkpoints)

    def _in_steps(self) -> float:
        return self._clock() - sum(self._evaluations) - sum(self._checkpoints)


class NoDisplay(Display):
    def _nothing(self, *given: object) -> None:
        pass

    __init__ = say = resume = evaluation = checkpoint = plateau = scaled = step = ranks = measured = end = _nothing


def _usual(seconds: Sequence[float]) -> float:
    """The mean without the first, which may be slower, if there are others."""
    return sum(seconds[1:] or seconds) / max(1, len(seconds[1:]), len(seconds[:1]))
