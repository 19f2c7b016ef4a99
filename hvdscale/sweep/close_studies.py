"""What becomes of studies that are done: a log each, what the search says of itself, and tuned.toml."""
from __future__ import annotations

import json
import os
from collections.abc import Callable

from ..analysis.search import Search, searches_of
from ..analysis.trials import read_trials
from ..log.reader import read_log
from ..report.search.words import lines
from ..system.lock import Lock
from .collect import LOCK_ATTEMPTS, Chosen, collect
from .farm import Standing
from .file import Sweep
from .pruning import RETRIED
from .studies import Settled
from .tuned import write_tuned


class Finisher:
    """Collects the studies of a sweep in OUT, each as soon as it is done, and says what it found."""

    def __init__(self, out: str, sweep: Sweep, standing: Standing, say: Callable[[str], object]):
        self.out, self.sweep, self.standing, self.say = out, sweep, standing, say
        self._told: set[str] = set()

    def tick(self) -> bool:
        """Close a study that is done by now; False where there is none. Raises LogError."""
        for name, settled in self.standing.studies.items():
            if name not in self._told and self._is_done(settled):
                self._told.add(name)
                self._close(settled)
                return True
        return False

    def rest(self) -> bool:
        """Close one of the studies that are not done; False where there is none."""
        for name, settled in self.standing.studies.items():
            if name not in self._told and self.standing.ledger.results(name):
                self._told.add(name)
                self._close(settled)
                return True
        return False

    def missing(self) -> str:
        """How many trials of which studies have no result."""
        counts = {}
        for name, settled in self.standing.studies.items():
            results = self.standing.ledger.results(name)
            counts[name] = sum(number not in results for number in self.standing.wanted(settled))
        return ", ".join(f"{count} of {name}" for name, count in counts.items() if count)

    def failed(self) -> str:
        """How many trials of which studies failed, and why the last of them did."""
        reasons = {name: [one.reason for one in self.standing.ledger.results(name).values() if one.kind in RETRIED]
                   for name in self.standing.studies}
        return ", ".join(f"{len(said)} of {name} ({said[-1]})" for name, said in reasons.items() if said)

    def tuned(self) -> list[str]:
        """The files of best points that there are: of all optimizers, then of each."""
        names = ["tuned.toml", *(f"tuned-{optimizer}.toml" for optimizer in self.sweep.optimizers)]
        return [path for path in (os.path.join(self.out, name) for name in names) if os.path.exists(path)]

    def _close(self, settled: Settled) -> None:
        """Write the study's log and the best points, and say what it holds."""
        path = collect(self.out, settled.name, lambda: self._chosen(settled),
                       {"sweep": json.dumps(settled.sweep.record())},
                       {"trials": settled.study.trials, "max_draws": settled.study.max_draws})
        found = searches_in(path)
        self.say("\n".join(line for search in found for line in lines(search)) or
                 f"{settled.name}: no trial has begun; {self._last_reason(settled)}")
        write_best(self.out, self.sweep)

    def _chosen(self, settled: Settled) -> list[Chosen]:
        """The trials of the study that have rows, as it settled them, and the repeats of its winner."""
        state, results = self.standing.state(settled), self.standing.ledger.results(settled.name)
        chosen = [Chosen(o.number, o.status, o.reason, o.stop_step, results[o.number].pieces) for o in state.outcomes]
        for number in self.standing.repeats(settled, state):
            if number in results:
                result = results[number]
                chosen.append(Chosen(number, result.status, result.reason, result.last_step, result.pieces))
        return [one for one in chosen if one.pieces]

    def _last_reason(self, settled: Settled) -> str:
        results = self.standing.ledger.results(settled.name)
        return results[max(results)].reason if results else "none has ended"

    def _is_done(self, settled: Settled) -> bool:
        state, results = self.standing.state(settled), self.standing.ledger.results(settled.name)
        return state.done and all(number in results for number in self.standing.repeats(settled, state))


def searches_in(path: str) -> tuple[Search, ...]:
    """What the log of a study says of its search; raises LogError."""
    with read_log(path) as log:
        return searches_of(read_trials(log))


def write_best(out: str, sweep: Sweep) -> None:
    """Write tuned.toml of all studies that have a log, and with several optimizers a file of each; raises LogError."""
    tuned = os.path.join(out, "tuned.toml")
    with Lock.take(tuned, attempts=LOCK_ATTEMPTS):
        by_optimizer: dict[str, list[Search]] = {}
        for study in sweep.studies:
            path = os.path.join(out, f"{study.name}.h5")
            if os.path.exists(path):
                by_optimizer.setdefault(study.name.rpartition("-b")[0], []).extend(searches_in(path))
        write_tuned(tuned, [search for found in by_optimizer.values() for search in found])
        for optimizer, found in by_optimizer.items() if len(sweep.optimizers) > 1 else ():
            write_tuned(os.path.join(out, f"tuned-{optimizer}.toml"), found)
