"""The runs of a script that is stopped and started again, and what may be compared between them."""
from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UsageError
from ...watch.runner import ENDED, FAILED, ScriptRequest
from ..finding import Finding, Kinds
from ..script.compare.pair import Pair, trained
from ..script.folder import make_workplace
from ..script.record import LOADED, READ, SAVED, WRITTEN, FileUse, GeneratorUse, Iteration, Record, Start
from ..script.runs import Run, ScriptError, checked, run_ranks

KINDS = Kinds(Path(__file__).with_name("findings.toml"))
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


class Both:
    """The runs, a record a rank; what is compared begins with the update on whose state the loaded checkpoint holds."""

    def __init__(self, asked: ResumeRequest, first: Run, second: Sequence[Record] = (),
                 stopped: Sequence[Record] = (), stop_at: int = 0, resumed: Sequence[Record] = (), error: str = "",
                 left: Collection[str] = (), torn: Mapping[str, tuple[list[Record], list[Record], str]] | None = None):
        """first, second    without a stop; second and all that follow are missing where nothing was saved
        stop_at          the update after which a run was stopped; error: what the one after it ended with
        left             checkpoints that were there before, and are left out of the copies
        torn             by where a run was killed while it saved: its records, those of the run after it, its error
        """
        self.asked, self.first, self.second, self.stopped, self.resumed = asked, first.records, second, stopped, resumed
        self.written, self.stop_at, self.error, self.left, self.torn = first.written, stop_at, error, left, torn or {}
        self.other_count = asked.then != asked.workers
        self.loaded = find_loaded(stopped, resumed)
        self.passes = max((by.passes for _, by in self.loaded), default=0)      # before the save, of the next update
        self.made, self.stop = least(self.first), max(stop_at, least(stopped))
        self.held = self._held()
        self.left_over, self.redone = self.made - self.held, max(0, self.stop - self.held)
        self.after = max(0, min(least(resumed), self.left_over))        # updates that both have made
        self.ends = all(record.state == ENDED for record in self.first)
        self.epochs = sorted({one.updates for one in trained(self.first[0])})      # the updates before each of them
        saves = [by for _, by in self.loaded] + [one for record in stopped for one in record.uses(SAVED)[::-1]]
        loads = [one for act in (LOADED, READ) for one, _ in self.loaded if one.act == act]
        self.saved_by, self.loaded_by = (next((one.line for one in of if one.line), "") for of in (saves, loads))
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
        seen = [(was, now) for was, now in found if was and now]
        return seen if len(seen) == len(found) and not (self.other_count and divided) else []

    def exact_at(self, at: int) -> bool:
        """Whether so many updates gave the parameters of the uninterrupted run, bit for bit."""
        usual, now = self.first[0].updates[at - 1:at], self.resumed[0].updates[at - self.held - 1:at - self.held]
        return not self.other_count and [one.digest_after for one in usual] == [one.digest_after for one in now]

    @cached_property
    def pairs(self) -> dict[str, Pair]:
        """By run what knows the batches of each update, where all ranks took some."""
        runs = {name: getattr(self, name) for name in RUNS}
        return {name: Pair(records[0], leave_skipped(records, self.first), None) for name, records in runs.items()
                if all(map(trained, records))}

    @cached_property
    def keys(self) -> dict[str, list[list[list]]]:
        """By run, for each update, what identifies the examples of each rank; of ranks together, if their number
        changes. An empty list where they are unknown."""
        found = {name: [pair.keys(pair.many, at) for at in range(pair.updates)] for name, pair in self.pairs.items()}
        if self.other_count:
            return {name: [[sorted(sum(ranks, []), key=repr) for _ in ranks[:1]] for ranks in updates]
                    for name, updates in found.items()}
        return found

    def draws(self, run: str, rank: int, begin: int = 0, end: int | None = None) -> list[GeneratorUse]:
        """What a rank drew from generators in these updates, the next few without an end: in reading, where the seeds
        of loader workers are as one more generator, and in passes."""
        pair, record, found = self.pairs.get(run), getattr(self, run)[rank], []
        if end is None:
            end = begin + (1 if self.other_count else ENOUGH)
        for at, update in enumerate(record.updates[begin:end], begin):
            found += [one.draws for one in pair.batches(record, at) if one.draws] if pair else []
            found += [one for each in update.passes for one in (each.prepared, each.draws)]
            if record.drew_in_workers:
                found.append(GeneratorUse({SEEDS: str(loop_of(record, at).seed)}, frozenset({SEEDS})))
        return found


def least(records: Sequence[Record]) -> int:
    """The updates that all ranks made."""
    return min((record.made for record in records), default=0)


def loop_of(record: Record, at: int) -> Iteration:
    """The iteration over a loader that the update of this number had its last batch from."""
    return record.iterations[max([0, *(number for one in record.updates[at].passes for number in one.fetched)])]


def unlike(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple]:
    """The values that are not what they were: name, then and now; empty where one is missing."""
    return [(name, value, now.get(name, "")) for name, value in was.items() if now.get(name, "") != value]


def alike(one: Start | None, other: Start | None, names: Collection[str]) -> bool:
    """Whether both have the same tensors of these names; False where one was not seen."""
    return one is not None and other is not None and bool(names) and all(
        one.tensors.get(name) == other.tensors.get(name) for name in names)


def join_parts(run: Run) -> Run:
    """The run, in whose records all ranks have one digest of each tensor that was divided among them."""
    for starts in zip(*(record.starts for record in run.records)):
        for place in starts[0].parts:
            of, _, name = place.partition(" ")
            whole = np.fmax.reduce([one.parts.get(place, np.nan) for one in starts])
            for one in starts:
                kind = getattr(one, of)[name].rpartition(" ")[0]
                getattr(one, of)[name] = f"{kind} {blake2b(whole, digest_size=8).hexdigest() if whole.any() else 0}"
    return run


def find_loaded(stopped: Sequence[Record], resumed: Sequence[Record]) -> list[tuple[FileUse, FileUse]]:
    """What a run loaded before its first update, and how the one before had last written it or its folder: what was
    saved by a function for checkpoints, else any file."""
    written = [one for record in stopped for one in record.uses(SAVED, WRITTEN)]
    found = []
    for one in (one for record in resumed for one in record.uses(LOADED, READ) if not one.updates):
        by = [each for each in written if f"{one.path}/".startswith(f"{each.path}/")]
        found += [(one, max(by, key=lambda each: (each.act == SAVED, each.updates)))] if by else []
    return [both for both in found if both[1].act == SAVED] or found


def leave_skipped(records: Sequence[Record], usual: Sequence[Record]) -> list[Record]:
    """The records without the batches that a loop leaves out as it resumes: what it has by its first update beyond what
    a run from the beginning has. A run that was ended may have read ahead."""
    for record, other in zip(records, [*usual] * len(records)):
        for iteration in trained(record)[-1:] if record.state != ENDED else ():
            iteration.ended = False
        (at, own), (_, begun) = (max([(-1, 0), *(one for update in each.updates[:1] for one in (
            update.passes[0].fetched.items() if update.passes else ()))]) for each in (record, other))
        if at >= 0 and own > begun > 0:
            del record.iterations[at].batches[:own - begun]
            for one in (one for update in record.updates for one in update.passes if at in one.fetched):
                one.fetched[at] -= own - begun
    return [*records]


class Runner:
    """Starts the runs, each in a new folder below ``place``."""

    def __init__(self, asked: ResumeRequest, place: Path, say: Callable[[str], None]):
        self.asked, self.place, self.say, self.left = asked, place, say, list[str]()

    def fresh(self, name: str, what: str, **task: int) -> Run:
        """A run from the beginning; raises ScriptError where it fails, unless it was asked to stop."""
        asked, place = self.asked, self.place / name
        self.say(f"running {asked.script.script} {what}")
        workplace = make_workplace(Path.cwd(), place / "folder")
        if not workplace.copied and not asked.in_place:
            raise UsageError(KINDS.sentence("refused", "large"))
        for path in self.left if workplace.copied else ():
            one = workplace.folder / path
            shutil.rmtree(one) if one.is_dir() else one.unlink(missing_ok=True)
        run = join_parts(run_ranks(asked.script, asked.workers, place, workplace, RANK, **TASK | task))
        return run if task.get("stop") or task.get("in_save") else checked(asked.script, run)

    def again(self, name: str, stopped: Run, most: int) -> tuple[list[Record], str]:
        """A run in the folder of another one, with the arguments of one that is started again; and its error."""
        asked = replace(self.asked.script, arguments=(*self.asked.script.arguments, *shlex.split(self.asked.again)))
        self.say(f"running {asked.script} again")
        task = TASK | {"most": most}
        run = join_parts(run_ranks(asked, self.asked.then, self.place / name, stopped.workplace, RANK, **task))
        try:
            if run.late or any(record.state == FAILED for record in run.records):
                checked(asked, run)
        except ScriptError as error:
            return run.records, str(error)
        return run.records, ""


def run_all(asked: ResumeRequest, place: Path, say: Callable[[str], None]) -> Both:
    """Run the script four times; raises ScriptError where it fails before it is stopped, and UsageError for files that
    several runs would share. Without a checkpoint in the first run there is no other."""
    runs, task = Runner(asked, place, say), {"least": asked.stop, "after": asked.script.updates}
    first = runs.fresh("first", "uninterrupted", **task)
    absolute = {one.path for record in first.records for one in record.uses(SAVED) if os.path.isabs(one.path)}
    outside = sorted(absolute.union(*(record.written for record in first.records)))
    if outside and not asked.in_place:
        raise UsageError(KINDS.sentence("refused", "outside", paths=outside[:3]))
    if left := _loaded_of(first.records, first.workplace.before):
        runs.left = left
        first = runs.fresh("afresh", "uninterrupted, without its checkpoints", **task)
    saves = sorted({(one.updates, one.passes) for record in first.records for one in record.uses(SAVED) if one.updates})
    if not saves:
        return Both(asked, first, left=runs.left)
    made, stop = least(first.records), next((at for at, passes in saves if passes), max(asked.stop, saves[0][0]))
    second = runs.fresh("second", "a second time", most=made).records
    stopped = runs.fresh("stopped", f"to update {stop}", stop=stop, signal=SIGNALS[asked.how],
                         most=stop + 2 * asked.script.updates)
    newest = max((one.updates for record in stopped.records for one in record.uses(SAVED)), default=0)
    ended = BEYOND if all(record.state == ENDED for record in first.records) else 0
    resumed, error = runs.again("resumed", stopped, max(1, made - newest + ended))
    for each in (second, stopped.records):
        if again := _loaded_of(each, {*first.workplace.before, *absolute}):
            raise UsageError(KINDS.sentence("refused", "left", paths=again[:3]))
    torn, at = {}, next((updates for updates, _ in saves[1:]), saves[0][0])
    for number, where in enumerate(("in the middle of a file", "between two files"), 1) if asked.in_save else ():
        killed = runs.fresh(f"torn{number}", f"and killing it {where}", in_save=number, save=at, most=made)
        torn[where] = killed.records, *runs.again(f"mended{number}", killed, 1)
    return Both(asked, first, second, stopped.records, stop, resumed, error, runs.left, torn)


def _loaded_of(records: list[Record], before: Collection[str]) -> list[str]:
    """Checkpoints that a run loaded before its first update: what it also writes, and was there before it."""
    used = [one for record in records for one in record.uses(SAVED, WRITTEN)]
    folders = {os.path.dirname(one.path) for one in used if one.act == SAVED} - {""}
    loaded = {one.path for record in records for one in record.uses(LOADED, READ) if not one.updates}
    loaded = loaded & {*before} - {one.path for one in used if not one.updates}
    return sorted(path for path in loaded if os.path.dirname(path) in folders or any(path == one.path for one in used))
