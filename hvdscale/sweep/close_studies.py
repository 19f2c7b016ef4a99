"""Close finished studies: one log each, a summary of the search, and tuned.toml."""
from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence

from ..analysis.search import Search, searches_of
from ..analysis.trials import read_trials
from ..log.reader import read_log
from ..report.search.words import lines
from ..system.lock import Lock
from .collect import LOCK_ATTEMPTS, Chosen, collect
from .farm import SweepState
from .file import Sweep
from .pruning import RETRIED
from .studies import Settled
from .tuned import write_tuned


class Finisher:
    """Closes the studies of a sweep in OUT, each as soon as it is done, and prints what they found."""

    def __init__(self, out: str, sweep: Sweep, state: SweepState, say: Callable[[str], object]):
        self.out, self.sweep, self.state, self.say = out, sweep, state, say
        self._closed: set[str] = set()

    def close_done(self) -> bool:
        """Close a study that is done; False if there is none. Raises LogError."""
        return self._close_first(self._is_done)

    def close_any(self) -> bool:
        """Close a study with results that is not done; False if there is none."""
        return self._close_first(lambda settled: self.state.ledger.results(settled.name))

    def _close_first(self, may_close: Callable[[Settled], object]) -> bool:
        for name, settled in self.state.studies.items():
            if name not in self._closed and may_close(settled):
                self._closed.add(name)
                self._close(settled)
                return True
        return False

    def missing(self) -> str:
        """The number of trials without a result, by study."""
        counts = {name: len(self.state.open(settled)) for name, settled in self.state.studies.items()}
        return ", ".join(f"{count} of {name}" for name, count in counts.items() if count)

    def failed(self) -> str:
        """The number of failed trials by study, and the reason of the last one."""
        reasons = {name: [one.reason for one in self.state.ledger.results(name).values() if one.kind in RETRIED]
                   for name in self.state.studies}
        return ", ".join(f"{len(found)} of {name} ({found[-1]})" for name, found in reasons.items() if found)

    def tuned(self) -> list[str]:
        """The existing files of best points: of all optimizers, then of each."""
        names = ["tuned.toml", *(f"tuned-{optimizer}.toml" for optimizer in self.sweep.optimizers)]
        return [path for path in (os.path.join(self.out, name) for name in names) if os.path.exists(path)]

    def _close(self, settled: Settled) -> None:
        path = collect(self.out, settled.name, lambda: self._choose(settled),
                       {"sweep": json.dumps(settled.sweep.record())},
                       {"trials": settled.study.trials, "max_draws": settled.study.max_draws})
        found = searches_in(path)
        self.say("\n".join(line for search in found for line in lines(search)) or
                 f"{settled.name}: no trial has begun; {self._last_reason(settled)}")
        write_best(self.out, self.sweep, {settled.name: found})

    def _choose(self, settled: Settled) -> list[Chosen]:
        """The study's trials with rows, and the repeats of its winner."""
        state, results = self.state.of(settled), self.state.ledger.results(settled.name)
        chosen = [Chosen(o.number, o.status, o.reason, o.stop_step, results[o.number].pieces) for o in state.outcomes]
        for number in self.state.repeats(settled, state):
            if number in results:
                result = results[number]
                chosen.append(Chosen(number, result.status, result.reason, result.last_step, result.pieces))
        return [one for one in chosen if one.pieces]

    def _last_reason(self, settled: Settled) -> str:
        results = self.state.ledger.results(settled.name)
        return results[max(results)].reason if results else "none has ended"

    def _is_done(self, settled: Settled) -> bool:
        state, results = self.state.of(settled), self.state.ledger.results(settled.name)
        return state.done and all(number in results for number in self.state.repeats(settled, state))


def searches_in(path: str) -> tuple[Search, ...]:
    """The searches in a study's log; raises LogError."""
    with read_log(path) as log:
        return searches_of(read_trials(log))


def write_best(out: str, sweep: Sweep, known: Mapping[str, Sequence[Search]]) -> None:
    """Write tuned.toml for all studies with a log, and one file per optimizer if there are several; raises LogError.

    known  searches by study, so that these logs are not read again
    """
    tuned = os.path.join(out, "tuned.toml")
    with Lock.take(tuned, attempts=LOCK_ATTEMPTS):
        by_optimizer: dict[str, list[Search]] = {}
        for study in sweep.studies:
            path = os.path.join(out, f"{study.name}.h5")
            if os.path.exists(path):
                by_optimizer.setdefault(study.name.rpartition("-b")[0], []).extend(
                    known[study.name] if study.name in known else searches_in(path))
        write_tuned(tuned, [search for found in by_optimizer.values() for search in found])
        for optimizer, found in by_optimizer.items() if len(sweep.optimizers) > 1 else ():
            write_tuned(os.path.join(out, f"tuned-{optimizer}.toml"), found)
