"""A group's share of a sweep: it takes trials from the ledger, one by one, until none is left for it.

All groups of all jobs share one ledger, so their number does not affect the outcome.
"""

import time
from collections.abc import Callable, Mapping, Sequence

from ..errors import FaultError, TrialsError, WorkerLostError
from ..plan.search_space import DrawEnd
from ..training.display import Display
from ..workers.group import Workers
from .ledger import FIRST_REPEAT, DrawResult, Ledger, Owner
from .pruning import StudyState, failed_alike, threshold, winner
from .studies import Study
from .trial import Trials

POLL_SECONDS = 0.5
STEP_EXAMPLES = 32      # assumed fixed cost of a step in examples, until trials were timed


Claim = tuple[str, int, int]        # a trial that this group has claimed: study, number, attempt
WAIT, NONE = "wait", "none"


class SweepState:
    """The state of the studies according to the ledger at the time of the call. Methods raise LogError."""

    def __init__(self, studies: Sequence[Study], ledger: Ledger):
        self.studies = {study.name: study for study in studies}
        self.ledger = ledger
        self.closed: set[str] = set()       # studies that have their log: see collect
        self._states: dict[str, tuple[Mapping[int, DrawResult], StudyState]] = {}      # each of these results

    def of(self, study: Study) -> StudyState:
        results, spec = self.ledger.results(study.name), study.spec
        known, state = self._states.get(study.name, (None, None))
        if state is None or known is not results:
            state = StudyState(spec.trials, spec.max_draws, study.target, study.sweep.keep)
            self._states[study.name] = results, state
        return state.extend(results)

    def winner(self, study: Study) -> DrawResult | None:
        return winner(self.of(study).results, study.target, study.minimizes)

    def repeats(self, study: Study) -> range:
        """Numbers of the winner's repeats, once the winner is final."""
        best = self.winner(study) if self.of(study).done else None
        if best is None:
            return range(0)
        first = FIRST_REPEAT + 100 * best.number + 1
        return range(first, first + study.sweep.repeats)

    def open(self, study: Study) -> list[int]:
        """Numbers of the trials that certainly belong to the study, and have no result."""
        state, results = self.of(study), self.ledger.results(study.name)
        return [number for number in (*range(len(state.results), state.limit), *self.repeats(study))
                if number not in results]

    def threshold(self, study: Study, number: int) -> float:
        """The number of steps at which a trial may be stopped, as known now; see pruning.threshold."""
        keep = None if number >= FIRST_REPEAT else study.sweep.keep
        return threshold(self.ledger.results(study.name), number, study.target, keep)

    def expected_seconds(self) -> dict[str, float]:
        """Each study's expected seconds a trial: the mean of finished ones, else scaled from other studies by size."""
        states = {name: self.of(study) for name, study in self.studies.items()}
        known = {name: state.seconds / state.timed for name, state in states.items() if state.timed}
        sizes = {name: max(1, study.budget_steps) * (study.spec.global_batch + STEP_EXAMPLES)
                 for name, study in self.studies.items()}
        rate = sum(known.values()) / sum(sizes[name] for name in known) if known else 1.0
        return {name: known.get(name, rate * sizes[name]) for name in self.studies}


class Farm:
    """One group's work. All its ranks make the same calls; only rank 0 has the ledger, and calls ``tick`` now and then.
    It waits for running trials of the same launch, which may need a replacement or another attempt, but not for those
    of other jobs."""

    def __init__(self, state: SweepState, trials: Trials, group: Workers, owner: Owner | None, display: Display,
                 tick: Callable[[], None], stopping: Callable[[], bool]):
        self.state, self.trials, self.group, self.owner = state, trials, group, owner
        self.display, self.tick, self.stopping = display, tick, stopping

    def work(self) -> bool:
        """Run trials until none is left for this group; False if a signal stopped it. Raises LogError if the ledger or
        the log fails, TrialsError if all trials of a study fail alike, WorkerLostError or FaultError if the group is
        broken."""
        while True:
            task: Claim | str = WAIT
            with self.group.together("the ledger"):
                if self.group.rank == 0:
                    with self.state.ledger.one_look():
                        self.tick()
                        task = self._next()
            gathered = self.group.gather((task, self.stopping()), "task")
            task = gathered[0][0]
            if any(stop for _, stop in gathered):
                if isinstance(task, tuple):
                    self._release(*task)
                return False
            if isinstance(task, tuple):
                if not self._carry_out(*task):
                    return False
            elif task == WAIT:
                time.sleep(POLL_SECONDS)
            else:
                return True

    def _next(self) -> Claim | str:
        """Claim the next trial, if any, from the study with the longest trials first."""
        state, waits = self.state, False
        expected = state.expected_seconds()
        for name in sorted(state.studies, key=lambda name: (-expected[name], name)):
            study = state.studies[name]
            finished, running = state.ledger.results(name), state.ledger.running(name)
            if reason := failed_alike(finished.values()):
                raise TrialsError(f"{name}: all of its {len(finished)} trials failed alike: {reason}\nFix this, take "
                                  "them back with --retry, and start again")
            for number in state.open(study):
                if number in running:
                    continue
                attempt = state.ledger.claim(name, number, self.owner)
                if attempt is not None:
                    return name, number, attempt
                if state.ledger.lost(name, number):
                    state.ledger.record(name, DrawResult(
                        number, DrawEnd.LOST, "the process that ran it was killed, time after time",
                        owner=self.owner.name))
                waits = True
            waits = waits or any(claim["job"] == self.owner.job for claim in running.values())
        return WAIT if waits else NONE

    def _carry_out(self, name: str, number: int, attempt: int) -> bool:
        """Run the trial to its end; False if a signal stopped it, so that another group may claim it."""
        study = self.state.studies[name]
        try:
            result = self.trials.carry_out(study, number, lambda: self.state.threshold(study, number), self.display)
        except (WorkerLostError, FaultError) as error:
            if self.group.size == 1:
                raise
            self.group.reform()             # if a rank is lost for good, the others end here
            errors = self.group.gather(str(error) if isinstance(error, FaultError) else "", "what went wrong")
            result = self.trials.end(study, DrawEnd.FAILED, next(filter(None, errors), str(error)))
        except BaseException:
            self._release(name, number, attempt)
            raise
        if result is None:
            self._release(name, number, attempt)
        elif self.group.rank == 0:
            self.state.ledger.record(name, result)
            self.trials.forget(study, number)
        return result is not None

    def _release(self, name: str, number: int, attempt: int) -> None:
        if self.group.rank == 0:
            self.state.ledger.release(name, number, attempt)
