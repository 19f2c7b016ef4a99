"""Display of a running sweep: the state of each study, and the time left. A block on a terminal, otherwise lines."""
from __future__ import annotations

import contextlib
import sys
import time

from ..errors import LogError
from ..formatting.numbers import duration
from ..formatting.screen import Screen
from ..plan.search_space import DrawEnd
from ..training.display import NoDisplay
from .farm import SweepState
from .pruning import REPLACED, RETRIED
from .studies import Settled

EVERY_SECONDS = 1.0, 10.0           # between updates of the block; between lines


class Progress(NoDisplay):
    """The sweep's display during the trials of one group."""

    def __init__(self, states: SweepState, terminal: bool, out=None, clock=time.monotonic):
        self._states, self._clock, self._printed = states, clock, {}
        self._screen = Screen(out or sys.stdout, terminal, EVERY_SECONDS)

    def say(self, text):
        self._screen.say(text)

    def step(self, step, examples, seconds, loss):
        with contextlib.suppress(LogError):         # raised on all ranks together before the next trial
            self.tick()

    def tick(self) -> None:
        """Show the state of the sweep if it is time; raises LogError if the ledger cannot be read."""
        if self._screen.due(self._clock()):
            self.show()

    def show(self) -> None:
        """Show the state of the sweep; without a terminal only what has changed."""
        current = {name: describe_study(self._states, settled) for name, settled in self._states.studies.items()}
        block, self._screen.drawn = self._screen.terminal, self._clock()
        lines = {name: line for name, line in current.items() if block or self._printed.get(name) != line}
        if not lines:
            return
        text = [f"{name:<{max(map(len, current))}}  {line}" for name, line in lines.items()]
        if len(current) > 1 or block:
            text.append(describe_sweep(self._states))
        self._screen.block(text, self._screen.drawn)
        self._printed = current

    def end(self):
        """A trial has ended; others follow."""


def describe_study(states: SweepState, settled: Settled) -> str:
    results, running = states.ledger.results(settled.name), states.ledger.running(settled.name)
    state = states.of(settled)
    kinds = [outcome.kind for outcome in state.outcomes]
    kinds += [results[number].kind for number in range(state.prefix, state.limit) if number in results]
    counts = [f"{sum(kind not in REPLACED for kind in kinds)} of {settled.study.trials} feasible",
              f"{len(running)} running" * bool(running),
              *(f"{count} {word}" for word, ends in (("pruned", (DrawEnd.PRUNED,)), ("diverged", (DrawEnd.DIVERGED,)),
                                                     ("failed", RETRIED))
                if (count := sum(kind in ends for kind in kinds)))]
    return ", ".join(filter(None, counts)) + _best(states, settled, state)


def _best(states, settled, state) -> str:
    best = states.winner(settled, state)
    if best is None:
        return ""
    outcome = state.outcomes[best]
    if settled.sweep.by_steps:
        return f"; best {outcome.steps:,.0f} steps (trial {best})"
    return f"; best {settled.sweep.objective} {outcome.best:.4g} (trial {best})"


def describe_sweep(states: SweepState) -> str:
    """The share of the sweep that is done, and the time left, extrapolated from its trials.

    Repeats of winners count from the start, replacement draws only once they are needed.
    """
    expected, done, wanted, more, left, busy = states.expected_seconds(), 0, 0, 0, 0.0, 0
    for name, settled in states.studies.items():
        results, numbers, state = states.ledger.results(name), states.wanted(settled), states.of(settled)
        running = states.ledger.running(name)
        ended = sum(number in results for number in numbers)
        count = len(numbers) + (0 if state.done else settled.sweep.repeats)
        done, wanted, busy = done + ended, wanted + count, busy + len(running)
        more += 0 if state.done else settled.study.max_draws - state.limit
        left += (count - ended - len(running) / 2) * expected[name]
    text = f"sweep: {done} of {wanted} trials done"
    if done and done < wanted:
        text += f", about {duration(left / max(1, busy), rough=True)} left"
    return text + f"; up to {more} more in place of draws that diverge or fail" * (more > 0)
