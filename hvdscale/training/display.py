"""Rank 0's output while training: a progress bar on a terminal, lines elsewhere."""

import math
import sys
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from ..analysis.step_breakdown import find_outlier
from ..formatting.numbers import counted
from ..formatting.screen import Screen, time_left
from ..plan.plan import Plan
from ..system.cores import LOST
from ..workers.launch import on_terminal
from .snapshot import Outcome

LINE_SECONDS, BAR_SECONDS = 2.0, 0.1
LEAST_TIMED, MOST_TIMED = 20, 500       # steps, of the latest, in which a rank is found slow


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
        busy = self.busy_host() and f" ({self.busy_host()})"
        for spent, what in ((data, "getting its data"), (passes, "in its passes")):
            if found := find_outlier(np.median(spent, axis=1), float(np.median(seconds))):
                return (f"rank {found[0]} is slow: {1000 * found[1]:.3g} ms a step {what}, the others "
                        f"{1000 * found[2]:.3g}; they wait for it{busy}")
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
    def __init__(self) -> None:
        pass

    def _print_nothing(self, *given: object) -> None:
        pass

    say = resume = evaluation = checkpoint = plateau = scaled = step = ranks = measured = end = _print_nothing


def _usual(seconds: Sequence[float]) -> float:
    """The mean without the first, which may be slower, if there are others."""
    return sum(seconds[1:] or seconds) / max(1, len(seconds[1:]), len(seconds[:1]))
