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
from .ledger import DrawResult
from .studies import Study
from .tuned import write_tuned


def close_one(states: SweepState, say: Callable[[str], object], begun: bool = False) -> bool:
    """Close a study that is done, and print what it found; False if there is none. Raises LogError.

    begun  where none is done, close one that has results
    """
    left = [study for study in states.studies.values() if study.name not in states.closed]
    study = next((study for study in left if states.of(study).done and not states.open(study)), None)
    if study is None and begun:
        study = next((study for study in left if states.ledger.results(study.name)), None)
    if study is None:
        return False
    states.closed.add(study.name)
    out = states.ledger.out
    path = collect(out, study.name, lambda: _choose(states, study), {"sweep": json.dumps(study.sweep.record)},
                   {"trials": study.spec.trials, "max_draws": study.spec.max_draws})
    searches = searches_in(path)
    said = [line for search in searches for line in lines(search)]
    if not said:
        results = states.ledger.results(study.name)
        reason = results[max(results)].reason if results else "none has ended"
        said = [f"{study.name}: no trial has begun; {reason}"]
    say("\n".join(said))
    write_best(out, study.sweep, {study.name: searches})
    return True


def _choose(states: SweepState, study: Study) -> list[DrawResult]:
    """The study's trials with rows, and the repeats of its winner."""
    results = states.ledger.results(study.name)
    repeats = [results[number] for number in states.repeats(study) if number in results]
    return [one for one in (*states.of(study).results, *repeats) if one.pieces]


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
