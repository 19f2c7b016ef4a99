"""What rank 0 prints: the plan, then progress: a bar on a terminal, lines elsewhere."""
from __future__ import annotations

import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from ..formatting.escaping import printable
from ..formatting.numbers import counted
from ..plan.plan import Plan
from ..plan.scaling import lr_factor
from ..workers.launch import launched
from .outcome import Outcome, Start

LINE_SECONDS, BAR_SECONDS, WIDTH = 2.0, 0.1, 24
LONGEST = 40        # letters of a value; of a longer one, such as a hash, the first are shown


class Quiet:
    """Prints nothing: the ranks above 0."""

    def say(self, text: str) -> None:
        """A line of text."""

    def evaluation(self, step: int, measured: dict[str, float]) -> None:
        """What was measured after ``step`` steps."""

    def step(self, step: int, examples: int, seconds: float, loss: float) -> None:
        """Progress: steps and examples done in the seconds, and the last loss."""

    def measured(self, outcome: Outcome) -> None:
        """The last evaluation, by ``split/metric``; with its step where others followed."""

    def end(self) -> None:
        """No progress follows."""


class Display(Quiet):
    """Progress of a plan, with the metric that the target names (else the validation error or loss).

    empty  splits without examples, whose metrics are NaN and are not shown
    """

    def __init__(self, plan: Plan, metrics: Iterable[str], empty: Collection[str] = (), out=sys.stdout,
                 clock=time.monotonic):
        self._plan, self._out, self._clock, self._empty = plan, out, clock, empty
        self._first, self._seen, self._nans = None, Counter(), Counter()       # evaluations, by what they measured
        self._bar = on_terminal(out)
        target = plan.stop_target
        self._column = target.column if target else f"val/{[*metrics][-1]}"
        self._value = "-"
        self._drawn, self._shown_step = float("-inf"), -1
        self._loss, self._speed = "", ""

    def say(self, text):
        self._erase()
        print(printable(text), file=self._out, flush=True)

    def evaluation(self, step, measured):
        self._note_nans(step, measured)
        self._value = f"{measured.get(self._column, float('nan')):.4g}"
        if step == 0 or step == self._plan.budget_steps:
            self._show(step)

    def step(self, step, examples, seconds, loss):
        rate = examples / seconds
        left = _remaining(self._plan, step, seconds)
        speed = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
        self._loss, self._speed = f"loss {loss:<10.4g}", f"{speed} examples/s  {left}"
        if self._clock() - self._drawn >= (BAR_SECONDS if self._bar else LINE_SECONDS):
            self._show(step)

    def measured(self, outcome):
        if outcome.measured:
            at = f"at step {outcome.evaluated}: " if outcome.evaluated != outcome.step else ""
            values = ", ".join(f"{name} {value:.4g}" for name, value in sorted(self._shown(outcome.measured).items()))
            self.say(f"  {at}{values}")
        for name, count in self._nans.items():
            since = f" since step {self._first}" if self._first else ""
            self.say(f"  note: {name} was NaN at {count} of {counted(self._seen[name], 'evaluation')}{since}")

    def end(self):
        if self._shown_step >= 0:
            self._erase()

    def _shown(self, measured):
        """What was measured, but for splits without examples."""
        return {name: value for name, value in measured.items() if name.partition("/")[0] not in self._empty}

    def _note_nans(self, step, measured):
        shown = self._shown(measured)
        self._first = step if self._first is None else self._first
        self._seen.update([*shown])
        for name in [name for name, value in shown.items() if value != value]:
            if name not in self._nans:
                never = ", which never meets the target" if self._plan.target and name == self._column else ""
                self.say(f"  note: {name} is NaN at step {step}{never}")
            self._nans[name] += 1

    def _show(self, step):
        self._drawn, self._shown_step = self._clock(), step
        budget = self._plan.budget_steps
        count = f"step {step:>{len(str(budget))}}/{budget}" if budget else f"step {step}"
        progress = f"{self._loss}{self._column} {self._value:<9}{self._speed}".rstrip()
        if not self._bar:
            print(f"{count}  {progress}", file=self._out, flush=True)
            return
        share = step / budget if budget else 0
        filled = int(WIDTH * share)
        bar = "#" * filled + "-" * (WIDTH - filled)
        line = f"[{bar}] {count}  {progress}"
        self._out.write("\r\x1b[K" + line[:shutil.get_terminal_size().columns - 1])       # one more would wrap
        self._out.flush()

    def _erase(self):
        if self._bar:
            self._out.write("\r\x1b[K")


def on_terminal(out) -> bool:
    """Whether what is printed reaches a terminal as it is: launchers give their workers terminals of their own, and
    horovodrun marks every line."""
    if not out.isatty() or launched() is None:
        return out.isatty()
    try:
        return os.readlink(f"/proc/{os.getppid()}/fd/1").startswith(("/dev/pts/", "/dev/tty"))
    except OSError:
        return False


def _remaining(plan: Plan, step: int, seconds: float) -> str:
    left = plan.budget_seconds - seconds if plan.budget_seconds else seconds / step * (plan.budget_steps - step)
    left = max(0, round(left))
    return f"{left // 60}:{left % 60:02d} left"


def describe(plan: Plan, log: str, checkpoint: str | None = None, start: Start | None = None) -> str:
    """The plan in words and numbers, a line each; with the folder of checkpoints and where the run starts."""
    start = start or Start()
    rows = [("workers", _workers(plan)), ("global batch", _batch(plan)), ("learning rate", _lr(plan)),
            ("optimizer", _optimizer(plan)), ("budget", _budget(plan)), ("evaluation", _evaluation(plan)),
            ("seed", f"{plan.seed}, {plan.precision}"), ("log", log)]
    if checkpoint is not None:
        rows.append(("checkpoints", _checkpoints(plan, checkpoint)))
    if start.checkpoint:
        rows.append(("goes on", f"from {start.checkpoint}, step {start.step}"))
    if plan.data:
        rows.insert(0, ("data", _entries(plan.data)))
    lines = [plan.workload + (f" ({_entries(plan.model_args)})" if plan.model_args else "") +
             (f", from the state dict {plan.init_from[:12]}..." if plan.init_from else "")]
    lines += [f"  {name:<15}{text}" for name, text in rows]
    if plan.local_workers > plan.cores and plan.device == "cpu":
        lines.append(f"  note: {plan.local_workers} workers share {plan.cores} cores, so times say nothing of a "
                     f"real cluster")
    return "\n".join(lines)


def _entries(table: Mapping) -> str:
    """The entries of a table, each shown in a word or two."""
    def shown(value):
        if isinstance(value, Mapping):
            return " ".join(f"{name}:{shown(entry)}" for name, entry in value.items())
        text = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
        return text if len(text) <= LONGEST else f"{text[:12]}..."
    return ", ".join(f"{name}={shown(value)}" for name, value in table.items())


def regrouped(plan: Plan, start: Start) -> str:
    """How an elastic job goes on."""
    return f"{start.previous_end}: goes on after step {start.step} with workers {_workers(plan)}; " \
           f"global batch {_batch(plan)}"


def _checkpoints(plan, folder):
    every = f"{plan.checkpoint_every} steps" if plan.checkpoint_every else f"{plan.checkpoint_seconds:g} s"
    return f"{folder}: every {every}, at the end and at a signal; the newest {plan.keep_checkpoints} are kept"


def _workers(plan):
    threads = f", {plan.threads} thread{'s' * (plan.threads > 1)} each" if plan.device == "cpu" else ""
    return f"{plan.workers} on {plan.device}{threads}"


def _batch(plan):
    even = plan.workers * plan.local_batch * plan.accumulate == plan.global_batch
    share = f"{plan.local_batch} examples" if even else f"at most {plan.local_batch} examples"
    passes = f" x {plan.accumulate} passes" if plan.accumulate > 1 else ""
    return f"{plan.global_batch} = {plan.workers} worker{'s' * (plan.workers > 1)} x {share}{passes}"


def _lr(plan):
    parts = [f"{plan.peak_lr:g}"]
    if plan.lr_rule == "tuned":
        parts.append(f"as tuned at {plan.global_batch}")
    elif plan.lr_factor != 1:
        parts[0] += f" = {plan.base_lr:g} x {plan.lr_factor:g}"
        capped = plan.lr_factor < lr_factor(plan.lr_rule, plan.global_batch / plan.base_batch)
        parts.append(f"{plan.lr_rule} from batch {plan.base_batch}" + ", capped by max_lr_factor" * capped)
    if plan.warmup != "none":
        flat = " (its peak: no climb)" if plan.start_lr == plan.peak_lr else ""
        parts.append(f"{plan.warmup} warmup of {plan.warmup_steps} steps from {plan.start_lr:g}{flat}")
    if plan.decay == "step":
        parts.append(f"x {plan.decay_factor:g} at steps {', '.join(map(str, plan.decay_at))}")
    elif plan.decay != "constant":
        parts.append(f"{plan.decay} decay to {plan.end_lr_factor * plan.peak_lr:g} at step {plan.decay_steps}")
    return "; ".join(parts)


def _optimizer(plan):
    parts = [plan.optimizer]
    for name in ("momentum", "beta1", "beta2", "epsilon", "trust_coefficient"):
        parts += [f"{name.replace('_', ' ')} {getattr(plan, name):g}"] if getattr(plan, name) is not None else []
    if plan.lr_in_velocity:
        parts.append(f"rate in the velocity {'with' if plan.momentum_correction else 'without'} momentum correction")
    parts += [f"weight decay {plan.weight_decay:g}"] * (plan.weight_decay > 0)
    parts += [f"gradient norm at most {plan.clip_norm:g}"] if plan.clip_norm is not None else []
    parts += [f"label smoothing {plan.label_smoothing:g}"] * (plan.label_smoothing > 0)
    parts += [f"{name} {value}" for name, value in plan.optimizer_args.items()]
    return ", ".join(parts)


def _budget(plan):
    epochs = plan.stream.examples_before(plan.budget_steps) / plan.train_examples
    size = f"{plan.budget_steps} steps ({epochs:.3g} epoch{'s' * (epochs != 1)} of {plan.train_examples} examples)"
    if plan.budget_seconds:
        size = f"{plan.budget_seconds:g} s"
    if plan.target is None:
        return size
    return f"{size}, {'through the target' if plan.keep_going else 'or less: until'} {plan.target}"


def _evaluation(plan):
    if not plan.eval_every:
        return "none"
    splits = [f"{split} ({plan.train_eval_examples})" if split == "train" else split for split in plan.eval_splits]
    return f"every {plan.eval_every} step{'s' * (plan.eval_every > 1)}: {', '.join(splits)}"
