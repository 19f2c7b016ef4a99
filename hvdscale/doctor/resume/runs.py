"""The runs of a script that is stopped and started again, and what may be compared between them."""
from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UsageError
from ...watch.runner import ENDED, FAILED, ScriptRequest
from ..finding import Finding
from ..lost import KINDS
from ..script.compare.pair import Pair, batches_of, trained
from ..script.folder import Workplace, make_workplace
from ..script.record import (LOADED, READ, SAVED, WRITTEN, FileUse, GeneratorUse, Iteration, Record, Start, least,
                             uses)
from ..script.runs import Run, ScriptError, checked, run_ranks

RUNS = ("first", "second", "stopped", "resumed")
ENOUGH = 3                  # updates by which a place in a course is recognized, and a stream of random numbers
RANK = "hvdscale.doctor.resume.listen"
SEEDS = "loader workers"    # a name as of a generator
SIGNALS = {"kill": 9, "term": 15, "int": 2, "usr1": 10}
BEYOND = 2                  # updates that the resumed run may make beyond the end of the uninterrupted one
# of each rank; no epoch is cut short. stop: after so many updates, by the signal. most: updates at most; 0: so many
# ``after`` the first checkpoint, or the update ``least``. in_save: where it is killed in the first save after ``save``
TASK = {"updates": 1 << 60, "stop": 0, "signal": 0, "most": 0, "least": 0, "after": 0, "in_save": 0, "save": 0}


@dataclass(frozen=True)
class ResumeRequest:
    """What is to be run, and how it is stopped."""

    script: ScriptRequest
    again: str              # arguments that the script gets as well when it is started again
    stop: int               # the update after which it is stopped
    how: str                # a key of SIGNALS
    workers: int            # of all runs but the last
    then: int               # workers of that
    in_save: bool = False
    in_place: bool = False


@dataclass
class Both:
    """The runs, a record a rank; what is compared begins with the update on whose state the loaded checkpoint holds."""

    asked: ResumeRequest
    first: Sequence[Record]                 # without a stop
    written: Sequence[str]                  # by that
    left: Collection[str]                   # checkpoints that were there before, and are left out of the copies
    second: Sequence[Record] = ()           # as the first; missing, as all that follow, where nothing was saved
    stopped: Sequence[Record] = ()
    stop_at: int = 0                        # the update after which that was stopped
    resumed: Sequence[Record] = ()
    error: str = ""                         # what that ended with
    # by where a run was killed while it saved: its records, those of the run after it, its error
    torn: Mapping[str, tuple[list[Record], list[Record], str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for records in (self.first, self.second, self.stopped, self.resumed):
            leave_skipped(records, self.first)
        self.again, self.other_count = self.asked.again, self.asked.then != self.asked.workers
        self.loaded = find_loaded(self.stopped, self.resumed)
        self.passes = max((by.passes for _, by in self.loaded), default=0)      # before the save, of the next update
        self.made, self.stop = least(self.first), max(self.stop_at, least(self.stopped))
        self.held = self._held()
        self.left_over, self.redone = self.made - self.held, max(0, self.stop - self.held)
        self.after = max(0, min(least(self.resumed), self.left_over))       # updates that both have made
        self.ends = all(record.state == ENDED for record in self.first)
        self.epochs = sorted({one.updates for one in trained(self.first[0])})      # the updates before each of them
        saves = [*(by for _, by in self.loaded), *uses(self.stopped, SAVED)[::-1]]
        self.saved_by, self.loaded_by = (next((one.line for one in of if one.line), "") for of in (
            saves, [one for one, _ in self.loaded]))
        self.lines = ", ".join(f"{how} by {line}" for how, line in (
            ("saved", self.saved_by), ("loaded", self.loaded_by)) if line)

    def finding(self, check: str, kind: str, **given: Any) -> Finding:
        """See Kinds.finding; the words know what this has, such as the update that the checkpoint holds."""
        given = {"where": self.loaded_by, "lines": self.lines, "ends": self.ends, **given}
        found = KINDS.finding(check, kind, self, **given)
        return found if found.differs else replace(found, where="")

    def _held(self) -> int:
        """The updates whose result the loaded checkpoint holds: those before whose next one the stopped run had the
        parameters that the resumed run starts with; else those before the loaded file was written."""
        files = max((by.updates for _, by in self.loaded), default=0)
        same = [at for at in range(1, self.stop + 2) if (each := self.starts(at)) and all(
            alike(was, now, self.resumed[0].optimized) for was, now in each)]
        return min(same, key=lambda at: abs(at - files), default=files)

    def starts(self, at: int) -> list[tuple[Start, Start]]:
        """By rank what it should start from, as the stopped run had it after so many updates, else the uninterrupted
        one where that has the parameters of the second one; and what it starts from. Empty where some of it was not
        seen, or belongs to the parts that a number of ranks had."""
        found = []
        for rank, record in enumerate(self.resumed):
            was, *others = (run[0 if self.other_count else rank].start(at) for run in (
                self.stopped, self.first, self.second))
            if was is None and alike(*others, self.first[0].optimized):
                was = others[0]
            found.append((was, record.start(0)))
        divided = any(record.sharded and not any(one.parts for one in record.starts) for record in self.first)
        return [] if self.other_count and divided or not all(map(all, found)) else found

    @cached_property
    def keys(self) -> dict[str, list[list[list]]]:
        """By run whose ranks all have a loader, for each update, what identifies the examples of each rank; of ranks
        together, if their number changes. An empty list where they are unknown."""
        found = {}
        for name in RUNS:
            records = [*getattr(self, name)]
            if all(map(trained, records)):
                pair = Pair(records[0], records, None)
                found[name] = [pair.keys(records, at) for at in range(pair.updates)]
                if self.other_count:
                    found[name] = [[sorted(sum(ranks, []), key=repr)] if ranks else [] for ranks in found[name]]
        return found

    def draws(self, record: Record, begin: int = 0, end: int | None = None) -> list[GeneratorUse]:
        """What a rank drew from generators in these updates, the next few without an end: in reading, where the seeds
        of loader workers are as one more generator, and in passes."""
        found, batches = [], batches_of(record, record.updates)
        if end is None:
            end = begin + (1 if self.other_count else ENOUGH)
        for at, update in enumerate(record.updates[begin:end], begin):
            found += [one.draws for one in batches[at] if one.draws]
            found += [one for each in update.passes for one in (each.prepared, each.draws)]
            if record.drew_in_workers:
                found.append(GeneratorUse({SEEDS: str(loop_of(record, at).seed)}, frozenset({SEEDS})))
        return found


def loop_of(record: Record, at: int) -> Iteration:
    """The iteration over a loader that the update of this number had its last batch from."""
    return record.iterations[max([0, *(number for one in record.updates[at].passes for number in one.fetched)])]


def alike(one: Start | None, other: Start | None, names: Collection[str]) -> bool:
    """Whether both have the same tensors of these names; False where one was not seen."""
    return one is not None and other is not None and bool(names) and all(
        one.tensors.get(name) == other.tensors.get(name) for name in names)


def find_loaded(stopped: Sequence[Record], resumed: Sequence[Record]) -> list[tuple[FileUse, FileUse]]:
    """What a run loaded before its first update, and how the one before had last written it or its folder: what was
    saved by a function for checkpoints, else any file."""
    written = uses(stopped, SAVED, WRITTEN)
    found = [(one, max(by, key=lambda each: (each.act == SAVED, each.updates)))
             for one in uses(resumed, LOADED) + uses(resumed, READ) if not one.updates and (
                 by := [each for each in written if f"{one.path}/".startswith(f"{each.path}/")])]
    return [both for both in found if both[1].act == SAVED] or found


def leave_skipped(records: Sequence[Record], usual: Sequence[Record]) -> None:
    """Take the batches away that a loop leaves out as it resumes: what it has by its first update beyond what a run
    from the beginning has. A run that was ended may have read ahead."""
    for record, other in zip(records, [*usual] * len(records)):
        for iteration in trained(record)[-1:] if record.state != ENDED else ():
            iteration.ended = False
        (at, own), (_, begun) = (max([(-1, 0), *(one for update in each.updates[:1] for one in (
            update.passes[0].fetched.items() if update.passes else ()))]) for each in (record, other))
        if at >= 0 and own > begun > 0:
            del record.iterations[at].batches[:own - begun]
            for one in (one for update in record.updates for one in update.passes if at in one.fetched):
                one.fetched[at] -= own - begun


class Runner:
    """Starts the runs, each in a new folder below ``place``."""

    def __init__(self, asked: ResumeRequest, place: Path, say: Callable[[str], None]):
        self.asked, self.place, self.say, self.left = asked, place, say, list[str]()

    def _run(self, script: ScriptRequest, workers: int, what: str, name: str, workplace: Workplace, **task: int) -> Run:
        """A run, in whose records all ranks have one digest of each tensor that was divided among them."""
        self.say(f"running {script.script} {what}")
        run = run_ranks(script, workers, self.place / name, workplace, RANK, **TASK | task)
        for starts in zip(*(record.starts for record in run.records)):
            for place in starts[0].parts:
                of, _, name = place.partition(" ")
                whole = np.fmax.reduce([one.parts.get(place, np.nan) for one in starts])
                for held in (getattr(one, of) for one in starts):
                    kind = held[name].partition(" ")[0]
                    held[name] = f"{kind} {blake2b(whole, digest_size=8).hexdigest() if whole.any() else 0}"
        return run

    def fresh(self, name: str, what: str, **task: int) -> Run:
        """A run from the beginning; raises ScriptError where it fails, unless it was asked to stop."""
        workplace = make_workplace(Path.cwd(), self.place / name / "folder")
        if not workplace.copied and not self.asked.in_place:
            raise UsageError(KINDS.sentence("refused", "large"))
        for path in self.left if workplace.copied else ():
            (workplace.folder / path).unlink(missing_ok=True)
        run = self._run(self.asked.script, self.asked.workers, what, name, workplace, **task)
        return run if "stop" in task or "in_save" in task else checked(self.asked.script, run)

    def again(self, name: str, stopped: Run, most: int) -> tuple[list[Record], str]:
        """A run in the folder of another one, with the arguments of one that is started again; and its error."""
        script = self.asked.script
        script = replace(script, arguments=(*script.arguments, *shlex.split(self.asked.again)))
        run = self._run(script, self.asked.then, "again", name, stopped.workplace, most=most)
        try:
            if run.late or any(record.state == FAILED for record in run.records):
                checked(script, run)
        except ScriptError as error:
            return run.records, str(error)
        return run.records, ""


def run_all(asked: ResumeRequest, place: Path, say: Callable[[str], None]) -> Both:
    """Run the script four times; raises ScriptError where it fails before it is stopped, and UsageError for files that
    several runs would share. Without a checkpoint in the first run there is no other."""
    runs, task = Runner(asked, place, say), {"least": asked.stop, "after": asked.script.updates}
    first = runs.fresh("first", "uninterrupted", **task)
    absolute = {one.path for one in uses(first.records, SAVED) if os.path.isabs(one.path)}
    outside = sorted(absolute.union(*(record.written for record in first.records)))
    if outside and not asked.in_place:
        raise UsageError(KINDS.sentence("refused", "outside", paths=outside[:3]))
    if left := _loaded_of(first.records, first.workplace.before):
        runs.left = left
        first = runs.fresh("afresh", "uninterrupted, without its checkpoints", **task)
    both, made = Both(asked, first.records, first.written, runs.left), least(first.records)
    saves = sorted({(one.updates, one.passes) for one in uses(first.records, SAVED) if one.updates})
    if not saves:
        return both
    stop = next((at for at, passes in saves if passes), max(asked.stop, saves[0][0]))
    second = runs.fresh("second", "a second time", most=made).records
    stopped = runs.fresh("stopped", f"to update {stop}", stop=stop, signal=SIGNALS[asked.how],
                         most=stop + 2 * asked.script.updates)
    newest = max((one.updates for one in uses(stopped.records, SAVED)), default=0)
    resumed, error = runs.again("resumed", stopped, max(1, made - newest + (BEYOND if both.ends else 0)))
    for each in (second, stopped.records):
        if again := _loaded_of(each, {*first.workplace.before, *absolute}):
            raise UsageError(KINDS.sentence("refused", "left", paths=again[:3]))
    torn, at = {}, next((updates for updates, _ in saves[1:]), saves[0][0])
    for number, where in enumerate(("in the middle of a file", "between two files"), 1) if asked.in_save else ():
        killed = runs.fresh(f"torn{number}", f"and killing it {where}", in_save=number, save=at, most=made)
        torn[where] = killed.records, *runs.again(f"mended{number}", killed, 1)
    return replace(both, second=second, stopped=stopped.records, stop_at=stop, resumed=resumed, error=error, torn=torn)


def _loaded_of(records: list[Record], before: Collection[str]) -> list[str]:
    """Checkpoints that a run loaded before its first update: what it also writes, and was there before it."""
    used = uses(records, SAVED, WRITTEN)
    folders = {os.path.dirname(one.path) for one in used if one.act == SAVED} - {""}
    loaded = {one.path for one in uses(records, LOADED, READ) if not one.updates} & {*before}
    loaded -= {one.path for one in used if not one.updates}
    return sorted(path for path in loaded if os.path.dirname(path) in folders or any(path == one.path for one in used))
