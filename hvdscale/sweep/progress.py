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
from .ledger import RETRIED
from .studies import Study

EVERY_SECONDS = 1.0, 10.0           # between updates of the block; between lines


class SweepDisplay(NoDisplay):
    def __init__(self, states: SweepState, terminal: bool, out=None, clock=time.monotonic):
        self._states, self._clock, self._printed = states, clock, {}
        self._screen = Screen(out or sys.stdout, terminal, EVERY_SECONDS)

    def say(self, text):
        self._screen.say(text)

    def step(self, step, examples, seconds, loss):
        with contextlib.suppress(LogError):         # raised on all ranks together before the next trial
            self.tick()

    def tick(self) -> None:
        """Show the state of the sweep if it is time; raises LogError."""
        if self._screen.due(self._clock()):
            self.show()

    def show(self) -> None:
        """Show the state of the sweep; without a terminal only what has changed."""
        current = {name: describe_study(self._states, study) for name, study in self._states.studies.items()}
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


def describe_study(states: SweepState, study: Study) -> str:
    results, running, state = states.ledger.results(study.name), states.ledger.running(study.name), states.of(study)
    later = range(len(state.results), state.limit)
    ended = [*state.results, *(results[number] for number in later if number in results)]
    counts = [f"{sum(result.feasible for result in ended)} of {study.spec.trials} feasible",
              f"{len(running)} running" if running else "",
              *(f"{count} {word}" for word, kinds in (("pruned", (DrawEnd.PRUNED,)), ("diverged", (DrawEnd.DIVERGED,)),
                                                      ("failed", RETRIED))
                if (count := sum(result.kind in kinds for result in ended)))]
    line, best = ", ".join(filter(None, counts)), states.winner(study)
    if best is None:
        return line
    found = f"{study.sweep.objective} {best.best:.4g}"
    if study.sweep.by_steps:
        found = f"{best.steps_to(study.target):,.0f} steps"
    return f"{line}; best {found} (trial {best.number})"


def describe_sweep(states: SweepState) -> str:
    """The share of the sweep that is done, and the time left, extrapolated from its trials. Repeats of winners count
    from the start, replacement draws only once they are needed."""
    expected, wanted, missing, more, left, busy = states.expected_seconds(), 0, 0, 0, 0.0, 0
    for name, study in states.studies.items():
        state, running, to_do = states.of(study), len(states.ledger.running(name)), len(states.open(study))
        repeats = len(states.repeats(study))
        if not state.done:
            repeats = study.sweep.repeats
            to_do += repeats
            more += study.spec.max_draws - state.limit
        wanted, missing, busy = wanted + state.limit + repeats, missing + to_do, busy + running
        left += (to_do - running / 2) * expected[name]
    text = f"sweep: {wanted - missing} of {wanted} trials done"
    if 0 < missing < wanted:
        text += f", about {duration(left / max(1, busy), rough=True)} left"
    return f"{text}; up to {more} more in place of draws that diverge or fail" if more > 0 else text
