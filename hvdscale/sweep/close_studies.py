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
from .collect import LOCK_ATTEMPTS, collect
from .farm import SweepState
from .file import Sweep
from .ledger import RETRIED, DrawResult
from .studies import Study
from .tuned import write_tuned


class Finisher:
    """Closes the studies of a sweep in OUT, each as soon as it is done, and prints what they found."""

    def __init__(self, out: str, sweep: Sweep, state: SweepState, say: Callable[[str], object]):
        self.out, self.sweep, self.state, self.say = out, sweep, state, say
        self._closed: set[str] = set()

    def close_done(self) -> bool:
        """Close a study that is done; False if there is none. Raises LogError."""
        return self._close_first(lambda study: self.state.of(study).done and not self.state.open(study))

    def close_any(self) -> bool:
        """Close a study that is done, else one with results; False if there is none. Raises LogError."""
        return self.close_done() or self._close_first(lambda study: self.state.ledger.results(study.name))

    def _close_first(self, may_close: Callable[[Study], object]) -> bool:
        for name, study in self.state.studies.items():
            if name not in self._closed and may_close(study):
                self._closed.add(name)
                self._close(study)
                return True
        return False

    def missing(self) -> str:
        """The number of trials without a result, by study."""
        counts = {name: len(self.state.open(study)) for name, study in self.state.studies.items()}
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

    def _close(self, study: Study) -> None:
        path = collect(self.out, study.name, lambda: self._choose(study),
                       {"sweep": json.dumps(study.sweep.record)},
                       {"trials": study.spec.trials, "max_draws": study.spec.max_draws})
        found = searches_in(path)
        said = [line for search in found for line in lines(search)]
        if not said:
            results = self.state.ledger.results(study.name)
            reason = results[max(results)].reason if results else "none has ended"
            said = [f"{study.name}: no trial has begun; {reason}"]
        self.say("\n".join(said))
        write_best(self.out, self.sweep, {study.name: found})

    def _choose(self, study: Study) -> list[DrawResult]:
        """The study's trials with rows, and the repeats of its winner."""
        results = self.state.ledger.results(study.name)
        repeats = [results[number] for number in self.state.repeats(study) if number in results]
        return [one for one in (*self.state.of(study).results, *repeats) if one.pieces]


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
        for spec in sweep.studies:
            path = os.path.join(out, f"{spec.name}.h5")
            if os.path.exists(path):
                by_optimizer.setdefault(spec.name.rpartition("-b")[0], []).extend(
                    known[spec.name] if spec.name in known else searches_in(path))
        write_tuned(tuned, [search for found in by_optimizer.values() for search in found])
        for optimizer, found in by_optimizer.items() if len(sweep.optimizers) > 1 else ():
            write_tuned(os.path.join(out, f"tuned-{optimizer}.toml"), found)
