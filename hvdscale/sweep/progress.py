"""What a sweep prints while it runs: where each study stands, and the time left. A block on a terminal, else lines."""
from __future__ import annotations

import contextlib
import sys
import time

from ..errors import LogError
from ..formatting.numbers import duration
from ..formatting.screen import Screen
from ..training.display import NoDisplay
from .farm import Standing
from .ledger import Kind
from .pruning import REPLACED, RETRIED
from .studies import Settled

EVERY_SECONDS = 1.0, 10.0           # between two drawings of the block, two lines


class Progress(NoDisplay):
    """The display of the sweep, shown during the trials of the group that has it."""

    def __init__(self, standing: Standing, terminal: bool, out=None, clock=time.monotonic):
        self._standing, self._clock, self._told = standing, clock, {}
        self._screen = Screen(out or sys.stdout, terminal, EVERY_SECONDS)

    def say(self, text):
        self._screen.say(text)

    def step(self, step, examples, seconds, loss):
        with contextlib.suppress(LogError):         # which all ranks meet together before the next trial
            self.tick()

    def tick(self) -> None:
        """Show where the sweep stands, if it is time; raises LogError where the ledger cannot be read."""
        if self._screen.due(self._clock()):
            self.show()

    def show(self) -> None:
        """Show where the sweep stands, on paper only what has changed."""
        standings = {name: where(self._standing, settled) for name, settled in self._standing.studies.items()}
        block, self._screen.drawn = self._screen.terminal, self._clock()
        lines = {name: line for name, line in standings.items() if block or self._told.get(name) != line}
        if not lines:
            return
        text = [f"{name:<{max(map(len, standings))}}  {line}" for name, line in lines.items()]
        if len(standings) > 1 or block:
            text.append(overall(self._standing))
        self._screen.block(text, self._screen.drawn)
        self._told = standings

    def end(self):
        """A trial has ended; others follow."""


def where(standing: Standing, settled: Settled) -> str:
    """Where a study stands, in a line."""
    results, running = standing.ledger.results(settled.name), standing.ledger.running(settled.name)
    state = standing.state(settled)
    kinds = [outcome.kind for outcome in state.outcomes]
    kinds += [results[number].kind for number in range(state.prefix, state.limit) if number in results]
    counts = [f"{sum(kind not in REPLACED for kind in kinds)} of {settled.study.trials} feasible",
              f"{len(running)} running" * bool(running),
              *(f"{count} {word}" for word, counted in (("pruned", (Kind.PRUNED,)), ("diverged", (Kind.DIVERGED,)),
                                                        ("failed", RETRIED))
                if (count := sum(kind in counted for kind in kinds)))]
    return ", ".join(filter(None, counts)) + _best(standing, settled, state)


def _best(standing, settled, state) -> str:
    best = standing.winner(settled, state)
    if best is None:
        return ""
    outcome = state.outcomes[best]
    if settled.sweep.by_steps:
        return f"; best {outcome.steps:,.0f} steps (trial {best})"
    return f"; best {settled.sweep.objective} {outcome.best:.4g} (trial {best})"


def overall(standing: Standing) -> str:
    """How much of the sweep is done, and the time left as its trials have gone so far.

    Repeats of winners are counted from the start; draws in place of others are not, before there is need of them.
    """
    expected, done, wanted, more, left, busy = standing.expected_seconds(), 0, 0, 0, 0.0, 0
    for name, settled in standing.studies.items():
        results, numbers, state = standing.ledger.results(name), standing.wanted(settled), standing.state(settled)
        running = standing.ledger.running(name)
        ended = sum(number in results for number in numbers)
        count = len(numbers) + (0 if state.done else settled.sweep.repeats)
        done, wanted, busy = done + ended, wanted + count, busy + len(running)
        more += 0 if state.done else settled.study.max_draws - state.limit
        left += (count - ended - len(running) / 2) * expected[name]
    said = f"sweep: {done} of {wanted} trials done"
    if done and done < wanted:
        said += f", about {duration(left / max(1, busy), rough=True)} left"
    return said + f"; up to {more} more in place of draws that diverge or fail" * (more > 0)
