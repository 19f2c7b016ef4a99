"""What becomes of studies that are done: a log each, what the search says of itself, and tuned.toml."""
from __future__ import annotations

import json
import os
from collections.abc import Callable

from ..analysis.search import Search, searches_of
from ..analysis.trials import read_trials
from ..log.reader import read_log
from ..report.search import lines
from .collect import Chosen, collect
from .farm import Standing
from .studies import Settled
from .tuned import write_tuned


class Finisher:
    """Collects the studies of a sweep in OUT, each as soon as it is done, and says what it found."""

    def __init__(self, out: str, standing: Standing, say: Callable[[str], object]):
        self.out, self.standing, self.say = out, standing, say
        self._searches: dict[str, Search] = {}
        self._told: set[str] = set()

    def tick(self) -> None:
        """Close the studies that are done by now; raises LogError."""
        for name, settled in self.standing.studies.items():
            if name not in self._told and self._is_done(settled):
                self._told.add(name)
                self.close(settled)
                self.tuned()

    def end(self) -> list[str]:
        """Collect what there is of the others, too; gives the paths of all that was written."""
        self.tick()
        for name, settled in self.standing.studies.items():
            if name not in self._told and self.standing.ledger.results(name):
                self.close(settled)
        return self.tuned()

    def close(self, settled: Settled) -> None:
        """Write the study's log, and say what it holds."""
        state, results = self.standing.state(settled), self.standing.ledger.results(settled.name)
        chosen = [Chosen(o.number, o.status, o.reason, o.stop_step, results[o.number].pieces) for o in state.outcomes]
        for number in self.standing.repeats(settled, state):
            if number in results:
                result = results[number]
                chosen.append(Chosen(number, result.status, result.reason, result.last_step, result.pieces))
        begun = [one for one in chosen if one.pieces]
        if not begun:
            self.say(f"{settled.name}: no trial has begun: {chosen[0].reason if chosen else 'none has ended'}")
            return
        path = collect(self.out, settled.name, begun, {"sweep": json.dumps(settled.sweep.record())})
        with read_log(path) as log:
            (search,) = searches_of(read_trials(log))
        self._searches[settled.name] = search
        self.say("\n".join(lines(search)))

    def tuned(self) -> list[str]:
        """Write the best points, and with several optimizers those of each, too; gives the paths."""
        by_optimizer: dict[str, list[Search]] = {}
        for name, search in self._searches.items():
            optimizer = name.rpartition("-b")[0]
            by_optimizer.setdefault(optimizer, []).append(search)
        files = {"tuned.toml": list(self._searches.values())}
        if len(by_optimizer) > 1:
            files |= {f"tuned-{optimizer}.toml": found for optimizer, found in by_optimizer.items()}
        for name, found in files.items():
            write_tuned(os.path.join(self.out, name), found)
        return [os.path.join(self.out, name) for name in files] if self._searches else []

    def _is_done(self, settled: Settled) -> bool:
        state, results = self.standing.state(settled), self.standing.ledger.results(settled.name)
        return state.done and all(number in results for number in self.standing.repeats(settled, state))
