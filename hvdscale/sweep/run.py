"""Run a sweep on one group of workers, from its file to its end; or estimate its steps and hours before it starts."""

import contextlib
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from ..errors import ExitCode, LogError, UsageError
from ..formatting.numbers import counted, duration, listed
from ..formatting.screen import Screen, say
from ..formatting.text_table import aligned
from ..plan.search_space import DrawEnd
from ..plan.settings import Settings
from ..plan.settle import AVERAGED
from ..system.lock import describe
from ..training.display import NoDisplay
from ..training.prepare import current_job, prepare, read_data
from ..workers.group import Workers
from ..workers.launch import Process
from ..workload import Data
from ..workloads import find
from .collect import close_one, refuse_foreign_results, tuned_files
from .farm import Farm, SweepState
from .file import StudySpec, Sweep
from .ledger import RETRIED, Ledger, Owner
from .studies import Study, keep_record, plan_of, refuse_other, settle_study

MEASURED_STEPS = 5          # of an estimate, after a warm-up pass
EVERY_SECONDS = 1.0, 10.0           # between updates of the block; between lines


class SweepDisplay(NoDisplay):
    """The state of each study, and the time left: a block on a terminal, otherwise lines."""

    def __init__(self, states: SweepState, terminal: bool, out=None, clock=time.monotonic):
        self._states, self._clock, self._printed = states, clock, {}
        self._screen = Screen(out or sys.stdout, terminal, EVERY_SECONDS)

    def say(self, text):
        self._screen.say(text)

    def step(self, *of_trial):
        """Show the state of the sweep if it is time."""
        if self._screen.due(self._clock()):
            with contextlib.suppress(LogError):     # raised on all ranks together before the next trial
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
    found = (f"{best.steps_to(study.target):,.0f} steps" if study.sweep.by_steps else
             f"{study.sweep.objective} {best.best:.4g}")
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


class SweepRun:
    """One group's share of a sweep; ``again``: in place of a killed process. For the others see cli.tune."""

    def __init__(self, asked, group: Workers, here: Process, signals, again: bool = False):
        self.asked, self.sweep, self.group, self.here = asked, asked.sweep, group, here
        self.signals, self.groups = signals, here.size // group.size
        self.again, self.speaks = again, here.rank == 0
        self._owner: Owner | None = None
        self._accepted: dict[str, str] = {}     # earlier jobs that count as this one
        self._notes: list[str] = []

    def carry_out(self) -> int:
        """Run the sweep; returns the exit code, or raises the same HvdscaleError on all ranks of the group."""
        out = None if self.asked.mode == "dry-run" else self.asked.out
        studies, data = self._settle(out)
        if out is None:
            if self.here.rank < self.group.size:
                found = [estimate(study, data, self.group) for study in studies]
                if self.speaks:
                    say(estimate_table(found, self.groups))
            return ExitCode.DONE
        self.signals.watch()
        with self.group.together("the sweep's folder"):
            if self.group.rank == 0:
                self._owner = Owner.take(out, self.asked.take_over, self.here.job)
        try:
            return ExitCode.DONE if self._work(out, studies, data) else ExitCode.PREEMPTED
        finally:
            if self._owner:
                self._owner.release()

    def _work(self, out: str, studies: list[Study], data: Data) -> bool:
        """Run the open trials; False if a signal stopped it."""
        states = SweepState(studies, Ledger(out, self._owner))
        display = SweepDisplay(states, self.asked.terminal) if self.speaks else NoDisplay()

        def tick() -> None:
            if self.speaks:
                display.step()
                close_one(states, display.say)

        farm = Farm(states, data, self.group, self._owner, display, tick, self.signals, self._accepted)
        if self.speaks and not self.again:
            display.say(self._introduction(studies, states))
        try:
            finished = farm.work()
            with self.group.together("the log"):
                farm.close()
        except BaseException:
            farm.let_go()
            raise
        while True:             # one study per collective, so that no rank waits long for the one that collects it
            with self.group.together("a study's log"):
                more = self.speaks and close_one(states, display.say, begun=True)
            if not self.group.gather(more, "more")[0]:
                break
        with self.group.together("the end of the sweep"):
            if self.speaks:
                display.show()
                for line in last_lines(states, self.asked, finished):
                    display.say(line)
        return finished

    def others_gone(self) -> bool:
        names = [spec.name for spec in self.sweep.studies]
        with contextlib.suppress(LogError):
            return not self._owner or not Ledger(self.asked.out).at_work(names, self.here.job, self._owner.name)
        return True

    def _settle(self, out: str | None) -> tuple[list[Study], Data]:
        with self.group.together("the sweep"):
            workload, wanted = find(self.sweep.workload), wanted_studies(self.sweep, self.asked.only)
            if out is not None:
                refuse_other(out, self.sweep)
                refuse_foreign_results(self.asked.path, out, self.sweep)
        with self.group.together("the data"):
            settings = Settings.build(workload.defaults, self.sweep.settings, self.asked.free)
            data = read_data(workload, settings)
        studies = []
        with self.group.together("the studies"):
            if self.group.rank == 0:
                studies = [settle_study(self.sweep, replace(spec, layer={**spec.layer, **self.asked.free}), workload,
                                        data, out) for spec in wanted]
                for study in studies:
                    for number in range(study.spec.max_draws):
                        plan_of(study, number, workload, data)          # refuses an invalid one
                if out is not None:
                    job = current_job(self.sweep.workload, workload, data, settings.model_args)
                    self._accepted, self._notes = keep_record(out, self.sweep, job, self.asked.accept_changes)
        return self.group.gather(studies, "studies")[0], data

    def _introduction(self, studies: Sequence[Study], states: SweepState) -> str:
        sweep = self.sweep
        done = sum(len(states.ledger.results(study.name)) for study in studies)
        searched = ", ".join(dict.fromkeys(parameter.name for study in studies for parameter in study.space))
        aim = f"steps to {listed(sweep.targets)}" if sweep.by_steps else f"the best {sweep.objective}"
        trials = sorted({study.spec.trials for study in studies})
        count = counted(len(studies), "study", "studies") + (", each" if len(studies) > 1 else "")
        lines = [f"{self.asked.path}: {sweep.workload}, {count} of {' or '.join(map(str, trials))} feasible trials",
                 f"  searched    {searched}: for {aim}",
                 f"  workers     {counted(self.groups, 'group')} of {self.group.size}",
                 f"  folder      {self.asked.out}" + (f": {done} trials are done already" if done else "")]
        if sweep.keep:
            lines.append(f"  pruning     exact: the {sweep.keep} fewest steps of a study stay what they would be")
        return "\n".join([*lines, *(f"  note        {note}" for note in self._notes)])


def report_status(asked) -> None:
    sweep, out = asked.sweep, asked.out
    if not refuse_other(out, sweep):
        raise LogError(f"{out}: no sweep has begun there")
    better = find(sweep.workload).metrics.get(sweep.objective.partition("/")[2].removeprefix(AVERAGED), "min")
    studies = [Study(sweep, spec, budget_steps=0, budget_examples=0, eval_every=0, minimizes=better == "min", space=(),
                     points=()) for spec in wanted_studies(sweep, asked.only)]
    states = SweepState(studies, Ledger(out))
    display = SweepDisplay(states, asked.terminal)
    display.show()
    while close_one(states, display.say, begun=True):
        pass
    for line in last_lines(states, asked, True):
        display.say(line)


def take_back_failed(asked) -> None:
    """Let the next run repeat failed and lost trials; raises LogError or UsageError."""
    refuse_other(asked.out, asked.sweep)
    ledger = Ledger(asked.out)
    if busy := ledger.owners():
        more = f", and {len(busy) - 1} more" if len(busy) > 1 else ""
        raise UsageError(f"--retry: {describe(busy[0])} is at work in {asked.out}{more}; wait until they have ended")
    for spec in wanted_studies(asked.sweep, asked.only):
        if numbers := ledger.take_back(spec.name, RETRIED):
            say(f"{spec.name}: taken back: {', '.join(map(str, numbers))}")
    say("the same command without --retry runs what was taken back")


def last_lines(states: SweepState, asked, finished: bool) -> list[str]:
    """What is missing, what has failed with the reason of the last, the files of best points, and what to do next."""
    counts = {name: len(states.open(study)) for name, study in states.studies.items()}
    missing = ", ".join(f"{count} of {name}" for name, count in counts.items() if count)
    reasons = {name: [one.reason for one in states.ledger.results(name).values() if one.kind in RETRIED]
               for name in states.studies}
    failed = ", ".join(f"{len(found)} of {name} ({found[-1]})" for name, found in reasons.items() if found)
    tuned = [path for path in tuned_files(asked.out, asked.sweep).values() if os.path.exists(path)]
    others = "other jobs may be at work on them, else " if finished else ""
    lines = [f"not done: {missing}; {others}the same command resumes"] if missing else []
    lines += [f"failed: {failed}; --retry takes them back, to be run again"] if failed else []
    return lines + ([f"tuned: {', '.join(tuned)}\nnext: hvdscale-report {asked.out}"] if tuned else [])


def wanted_studies(sweep: Sweep, only: dict[str, list[str]]) -> list[StudySpec]:
    wanted = list(sweep.studies)
    for word, of_study in (("batch", lambda s: str(s.global_batch)), ("optimizer", lambda s: s.optimizer)):
        known = dict.fromkeys(map(of_study, sweep.studies))
        for value in only.get(word, ()):
            if value not in known:
                raise UsageError(f"--only {word}={value}: the sweep has {', '.join(known)}")
        wanted = [spec for spec in wanted if of_study(spec) in only.get(word, known)]
    return wanted


def estimate(study: Study, data: Data, group: Workers) -> tuple[Study, float, float]:
    """The study, its seconds per step and per evaluation, measured on its first draw; a collective of the group."""
    job = prepare(study.sweep.workload, study.layers(0, "none"), group, data)
    take_step, evaluate = job.start(group)
    take_step.warm_up(1)
    steps = [take_step(step, 0.0, set()).step_seconds for step in range(MEASURED_STEPS)]
    started = time.perf_counter()
    evaluate(job.model, job.plan.eval_splits)
    ended = time.perf_counter()
    take_step.close()
    evaluate.loader.close()
    return study, median(steps), ended - started


def estimate_table(found: Sequence[tuple[Study, float, float]], groups: int) -> str:
    """Upper bounds for the trials of each study, with its seconds per step and per evaluation on a group; a larger
    batch takes longer in proportion at most."""
    lines = [("study", "trials", "draws at most", "steps", "examples", "evaluations", "s a step", "time at most")]
    totals, every_second = [0, 0, 0], 0.0
    for study, step_seconds, evaluation_seconds in found:
        trials, steps, examples = study.spec.trials + study.sweep.repeats, study.budget_steps, study.budget_examples
        evaluations = math.ceil(steps / study.eval_every) + 1 if study.eval_every else 0
        seconds = trials * study.spec.layer["seconds"] if not steps else trials * (
            examples / study.spec.global_batch * step_seconds + evaluations * evaluation_seconds)
        totals = [total + more for total, more in zip(totals, (trials, trials * steps, trials * examples))]
        every_second += seconds
        budget = [f"{steps:,}", f"{examples:,}"] if steps else ["by time", "by time"]
        lines.append((study.name, f"{trials}", f"{study.spec.max_draws}", *budget, f"{evaluations}",
                      f"{step_seconds:.2g}", duration(seconds / groups, rough=True)))
    lines = aligned(lines, left=(0,))
    lines.insert(1, "-" * len(lines[0]))
    kinds = ("trials", "steps", "examples") if all(study.budget_steps for study, *_ in found) else ("trials",)
    counts = ", ".join(f"{total:,} {kind}" for total, kind in zip(totals, kinds))
    lines.append(f"\n{counts}: {duration(every_second / groups, rough=True)} at most with "
                 f"{counted(groups, 'group')} of workers.\nThat is if every trial goes to the end of its budget; draws "
                 "that diverge are replaced, and come on top.")
    return "\n".join(lines)
