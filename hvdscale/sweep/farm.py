"""A group's share of a sweep: it takes one trial after the other from the ledger until none is left for it.

All groups of all jobs take from one ledger, so it makes no difference to the outcome how many there are.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ..errors import FaultError, TrialsError, WorkerLostError
from ..log.schema import Status
from ..training.display import Display
from ..workers.group import Workers
from .ledger import Kind, Ledger, Owner, Result
from .pruning import FIRST_REPEAT, RETRIED, State, failed_alike, settle, threshold, winner
from .studies import Settled
from .trial import Trials

POLL_SECONDS = 0.5
STEP_EXAMPLES = 32      # a step is taken to cost as much beside its examples, until trials have shown what it does


@dataclass(frozen=True)
class Shard:
    """The part of each study that a job starts with: draws whose number is ``index`` modulo ``count``.

    A draw that replaces an infeasible one, and a repeat of a winner, is anyone's.
    """

    index: int = 0
    count: int = 1

    def has(self, number: int, trials: int) -> bool:
        return number >= trials or number % self.count == self.index


@dataclass(frozen=True)
class Task:
    """A trial that is this group's to carry out."""

    study: str
    number: int
    attempt: int


WAIT, NONE = "wait", "none"


class Standing:
    """Where the studies stand, by what the ledger holds at the time of the call."""

    def __init__(self, studies: Sequence[Settled], ledger: Ledger):
        self.studies = {settled.name: settled for settled in studies}
        self.ledger = ledger

    def target(self, settled: Settled) -> str | None:
        """The target that a study's trials are ranked by; None: its objective is another."""
        sweep = settled.sweep
        return str(sweep.targets[-1]) if sweep.by_steps else None

    def state(self, settled: Settled) -> State:
        """Raises LogError, as all of these do."""
        sweep, study = settled.sweep, settled.study
        return settle(self.ledger.results(settled.name), study.trials, study.max_draws, self.target(settled),
                      sweep.keep)

    def winner(self, settled: Settled, state: State) -> int | None:
        """The best draw so far."""
        return winner(state.outcomes, None if settled.sweep.by_steps else settled.minimizes)

    def repeats(self, settled: Settled, state: State) -> list[int]:
        """Numbers of the repeats of the winner, once there is one for good."""
        best = self.winner(settled, state) if state.done else None
        count = settled.sweep.repeats if best is not None else 0
        return [FIRST_REPEAT + 100 * best + repeat for repeat in range(1, count + 1)]

    def wanted(self, settled: Settled) -> list[int]:
        """Numbers of the trials that the study has for certain, finished or not."""
        state = self.state(settled)
        return [*range(state.limit), *self.repeats(settled, state)]

    def threshold(self, settled: Settled, number: int) -> float:
        """The steps at which a trial may be stopped, as known now; see rules.threshold."""
        if number >= FIRST_REPEAT:
            return float("inf")
        return threshold(self.ledger.results(settled.name), number, self.target(settled), settled.sweep.keep)

    def expected_seconds(self) -> dict[str, float]:
        """Of each study, the seconds of a trial: the mean of those ended, else as the others went for their size."""
        ended = {name: [result.seconds for result in self.ledger.results(name).values()
                        if result.kind not in RETRIED] for name in self.studies}
        known = [name for name, seconds in ended.items() if seconds]
        sizes = {name: max(1, settled.budget_steps) * (settled.study.global_batch + STEP_EXAMPLES)
                 for name, settled in self.studies.items()}
        rate = sum(fmean(ended[name]) for name in known) / sum(sizes[name] for name in known) if known else 1.0
        return {name: fmean(seconds) if seconds else rate * sizes[name] for name, seconds in ended.items()}


class Farm:
    """One group's work. All its ranks make the same calls; rank 0 alone has the ledger.

    job   the launch that the group belongs to: it waits for trials of the same launch, which others may have to
          replace or take over, and leaves those of other jobs to these
    tick  called on rank 0 while the group waits, and between trials
    """

    def __init__(self, standing: Standing, trials: Trials, group: Workers, owner: Owner | None, shard: Shard,
                 display: Display, tick: Callable[[], None], stopping: Callable[[], bool], poll=POLL_SECONDS):
        self.standing, self.trials, self.group, self.owner, self.shard = standing, trials, group, owner, shard
        self.display, self.tick, self.stopping, self.poll = display, tick, stopping, poll

    def work(self) -> bool:
        """Carry out trials until none is left for this group; False where a signal stopped it.

        Raises LogError where the ledger or the log fails, TrialsError where all trials of a study fail alike,
        WorkerLostError or FaultError where the group is broken.
        """
        while True:
            with self.group.together("the ledger"):
                task = self._next() if self.group.rank == 0 else WAIT
            said = self.group.gather((task, self.stopping()), "task")
            task = said[0][0]
            if any(stop for _, stop in said):
                if isinstance(task, Task):
                    self._release(task)
                return False
            if isinstance(task, Task):
                if not self._carry_out(task):
                    return False
            elif task == WAIT:
                time.sleep(self.poll)
            else:
                return True

    def _next(self) -> Task | str:
        """The next trial, of the study with the longest ones; claimed for this group."""
        self.tick()
        standing, waits = self.standing, False
        expected = standing.expected_seconds()
        for name in sorted(standing.studies, key=lambda name: (-expected[name], name)):
            settled = standing.studies[name]
            finished, running = standing.ledger.results(name), standing.ledger.running(name)
            _refuse_to_go_on(name, finished)
            for number in standing.wanted(settled):
                if number in finished or number in running or not self.shard.has(number, settled.study.trials):
                    continue
                attempt = standing.ledger.claim(name, number, self.owner)
                if attempt is not None:
                    return Task(name, number, attempt)
                if standing.ledger.lost(name, number):
                    standing.ledger.record(name, Result(
                        number, Status.INCOMPLETE, Kind.LOST, "the process that ran it was killed, time after time",
                        owner=self.owner.name))
                waits = True
            waits = waits or any(claim["job"] == self.owner.job for claim in running.values())
        return WAIT if waits else NONE

    def _carry_out(self, task: Task) -> bool:
        """Whether the trial came to its end; else a signal has stopped it, and another may claim it."""
        settled = self.standing.studies[task.study]
        try:
            result = self.trials.carry_out(settled, task.number,
                                           lambda: self.standing.threshold(settled, task.number), self.display)
        except (WorkerLostError, FaultError) as error:
            result = self.trials.failed(settled, task.number, self._meet_anew(error))
        except BaseException:
            self._release(task)
            raise
        if result is None:
            self._release(task)
        elif self.group.rank == 0:
            self.standing.ledger.record(task.study, result)
            self.trials.forget(settled, task.number)
        return result is not None

    def _meet_anew(self, error: WorkerLostError | FaultError) -> str:
        """What went wrong on one rank, once all have met again; where one is lost for good, the others end here."""
        if self.group.size == 1:
            raise error
        self.group.reform()
        said = self.group.gather(str(error) if isinstance(error, FaultError) else "", "what went wrong")
        return next(filter(None, said), str(error))

    def _release(self, task: Task) -> None:
        if self.group.rank == 0:
            self.standing.ledger.release(task.study, task.number, task.attempt)


def _refuse_to_go_on(name: str, results: Mapping[int, Result]) -> None:
    """Raise TrialsError where trial after trial has failed for one reason."""
    reason = failed_alike(results.values())
    if reason:
        raise TrialsError(f"{name}: all of its {len(results)} trials failed alike: {reason}\nMend that, have them "
                          "taken back with --retry, and start again")
