"""The runs of a script that is stopped and started again, and what may be compared between them."""
from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UsageError
from ...formatting.numbers import listed
from ...watch.runner import ScriptRequest
from ..finding import Finding, Kinds
from ..script.compare.pair import Pair, trained
from ..script.folder import Workplace, make_workplace
from ..script.record import ENDED, FAILED, LOADED, READ, SAVED, WRITTEN, FileUse, GeneratorUse, Record, Start
from ..script.runs import Run, ScriptError, checked, run_ranks

KINDS = Kinds(Path(__file__).with_name("findings.toml"))
RUNS = ("first", "second", "stopped", "resumed")
ENOUGH = 3                  # updates by which a place in a course is recognized, and a stream of random numbers
RANK = "hvdscale.doctor.resume.listen"
SIGNALS = {"kill": 9, "term": 15, "int": 2, "usr1": 10}
BEYOND = 2                  # updates that the resumed run may make beyond the end of the uninterrupted one
# of each rank; no epoch is cut short. stop: after so many updates, by the signal. most: updates at most; 0: so many
# ``after`` the first checkpoint, or the update ``least``. in_save: where it is killed in the first save after ``save``
TASK = {"updates": 1 << 60, "stop": 0, "signal": 0, "most": 0, "least": 0, "after": 0, "in_save": 0, "save": 0}
LEFT = ("a run that should begin afresh loaded {}, which an earlier one had left; have the script write below its "
        "working folder, by a relative path, so that each run has a copy")
OUTSIDE = ("{} would be the same for all runs: it is outside of the copy of the working folder. Have the script write "
           "below that, by a relative path; --in-place runs it as it is")
LARGE = "the working folder is too large to copy: run the script in a folder of its own; --in-place runs it in this one"


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


@dataclass(frozen=True)
class Both:
    """The runs, a record a rank; what is compared begins with the update on whose state the loaded checkpoint holds."""

    asked: ResumeRequest
    first: list[Record]                 # without a stop
    written: list[str]                  # by it
    left: list[str]                     # checkpoints that were there before, and are left out of the copies
    second: list[Record] = field(default_factory=list)      # without a stop, once more
    stopped: list[Record] = field(default_factory=list)     # empty, as all that follow, where nothing was saved
    stop_at: int = 0                    # the update after which it was stopped
    resumed: list[Record] = field(default_factory=list)
    error: str = ""                     # that the resumed run ended with
    # by where a run was killed while it saved: its records, those of the run after it, and the error of that
    torn: dict[str, tuple[list[Record], list[Record], str]] = field(default_factory=dict)

    def finding(self, check: str, kind: str, **given: Any) -> Finding:
        """See Kinds.finding; the words know what this has, such as the update that the checkpoint holds."""
        lines = [f"{how} by {line}" for how, line in (("saved", self.saved_by), ("loaded", self.loaded_by)) if line]
        return KINDS.finding(check, kind, self, lines=", ".join(lines), **given)

    @property
    def other_count(self) -> bool:
        return self.asked.then != self.asked.workers

    @property
    def made(self) -> int:
        """Updates of the uninterrupted run."""
        return min(record.made for record in self.first)

    @property
    def stop(self) -> int:
        """Updates that the stopped run made."""
        return max(self.stop_at, min(record.made for record in self.stopped))

    @property
    def after(self) -> int:
        """Updates that were made by the resumed run, and also by the uninterrupted one."""
        return max(0, min(min(record.made for record in self.resumed), self.made - self.held))

    @cached_property
    def loaded(self) -> list[tuple[FileUse, FileUse]]:
        return find_loaded(self.stopped, self.resumed)

    @cached_property
    def held(self) -> int:
        """The updates whose result the loaded checkpoint holds: those before whose next one the stopped run had the
        parameters that the resumed run starts with; else those before the loaded file was written."""
        files = max((by.updates for _, by in self.loaded), default=0)
        same = [at for at in range(1, self.stop + 2) if all(
            record.optimized and alike(self.expected(rank, at), record.start(0), record.optimized)
            for rank, record in enumerate(self.resumed))]
        return min(same, key=lambda at: abs(at - files)) if same else files

    @property
    def passes(self) -> int:
        """The passes of the next update that came before the save of the loaded checkpoint."""
        return max((by.passes for _, by in self.loaded), default=0)

    def expected(self, rank: int, updates: int | None = None) -> Start | None:
        """What the rank should start from, which the stopped run had; else the uninterrupted one, where its parameters
        are those of the second one, bit for bit."""
        at = self.held if updates is None else updates
        rank = 0 if self.other_count else rank
        exact = alike(self.first[0].start(at), self.second[0].start(at), self.first[0].optimized)
        found = self.stopped[rank].start(at)
        return self.first[rank].start(at) if found is None and exact else found

    def unlike(self, of: str) -> list[tuple[int, str, str, str]] | None:
        """What the ranks do not start from as it was, of their tensors or states: rank, name, then and now; None where
        that was not seen, or belongs to the parts that a number of ranks had."""
        starts = [(self.expected(rank), record.start(0)) for rank, record in enumerate(self.resumed)]
        divided = any(record.sharded and not any(one.parts for one in record.starts) for record in self.first)
        if self.other_count and divided or any(None in each for each in starts):
            return None
        return [(rank, *each) for rank, (was, now) in enumerate(starts) if was and now
                for each in unlike(getattr(was, of), getattr(now, of))]

    def exact_at(self, updates: int) -> bool:
        """Whether so many updates gave the parameters of the uninterrupted run, bit for bit."""
        digests = [[one.digest_after for one in run[0].updates[at - 1:at]] for run, at in (
            (self.first, updates), (self.resumed, updates - self.held))]
        return not self.other_count and digests[0] == digests[1]

    @property
    def saved_by(self) -> str:
        """The line of the save, of that which was loaded if any was."""
        saved = [by for _, by in self.loaded] + [one for record in self.stopped for one in record.uses(SAVED)[::-1]]
        return next((one.line for one in saved if one.line), "")

    @property
    def loaded_by(self) -> str:
        """The line of the load, preferably one for checkpoints."""
        return next((one.line for act in (LOADED, READ) for one, _ in self.loaded if one.act == act and one.line), "")

    @cached_property
    def pairs(self) -> dict[str, Pair]:
        """By run what knows the batches of each update, where all ranks took some."""
        runs = {name: getattr(self, name) for name in RUNS}
        return {name: Pair(records[0], _as_used(records, self.first), None) for name, records in runs.items()
                if all(map(trained, records))}

    @cached_property
    def keys(self) -> dict[str, list[list[list]]]:
        """By run, for each update, what identifies the examples of each rank; of ranks together, if their number
        changes. An empty list where they are unknown."""
        found = {name: [pair.keys(pair.many, at) for at in range(pair.updates)] for name, pair in self.pairs.items()}
        if self.other_count:
            found = {name: [[sorted(sum(ranks, []), key=repr)] if ranks else [] for ranks in updates]
                     for name, updates in found.items()}
        return found

    def draws(self, run: str, rank: int, begin: int, end: int | None = None) -> list[GeneratorUse]:
        """What a rank drew from generators in these updates, the next few without an end: in reading, and in passes."""
        pair, record = self.pairs.get(run), getattr(self, run)[rank]
        if end is None:
            end = begin + (1 if self.other_count else ENOUGH)
        found = []
        for at, update in enumerate(record.updates[begin:end], begin):
            found += [one.draws for one in pair.batches(record, at) if one.draws] if pair else []
            found += [one for each in update.passes for one in (each.prepared, each.draws)]
        return found

    @cached_property
    def epochs(self) -> list[int]:
        """The updates before each epoch of the uninterrupted run."""
        return sorted({one.updates for one in trained(self.first[0])})


def unlike(was: Mapping[str, str], now: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """The values that are not what they were: name, then and now; empty where one is missing."""
    return [(name, value, now.get(name, "")) for name, value in was.items() if now.get(name, "") != value]


def alike(one: Start | None, other: Start | None, names: Iterable[str]) -> bool:
    """Whether both have the same tensors of these names; False where one was not seen."""
    return one is not None and other is not None and all(
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


def find_loaded(stopped: list[Record], resumed: list[Record]) -> list[tuple[FileUse, FileUse]]:
    """What a run loaded before its first update, and how the one before had last written it or its folder: what was
    saved by a function for checkpoints, else any file."""
    written = [one for record in stopped for one in record.uses(SAVED, WRITTEN)]
    found = []
    for one in (one for record in resumed for one in record.uses(LOADED, READ) if not one.updates):
        by = [each for each in written if f"{one.path}/".startswith(f"{each.path}/")]
        found += [(one, max(by, key=lambda each: (each.act == SAVED, each.updates)))] if by else []
    return [both for both in found if both[1].act == SAVED] or found


def _as_used(records: list[Record], usual: list[Record]) -> list[Record]:
    """The records with the batches that updates used. A loop that resumes may leave some out: what it has by its first
    update beyond what a run from the beginning has. A run that was ended may have read ahead."""
    for record, other in zip(records, usual * len(records)):
        passes = [one for update in record.updates for one in update.passes]
        for one, before in zip(passes[1:], passes):         # an iteration that ended before another one began
            one.fetched = {at: count for at, count in one.fetched.items() if at == max(one.fetched) or not (
                record.iterations[at].ended and before.fetched.get(at, count) == count)}
        for iteration in trained(record)[-1:] if record.state != ENDED else ():
            iteration.ended = False
        own, begun = (_first_fetched(one) for one in (record, other))
        if own and begun and own[1] > begun[1]:
            skipped = own[1] - begun[1]
            del record.iterations[own[0]].batches[:skipped]
            for one in passes:
                if own[0] in one.fetched:
                    one.fetched[own[0]] -= skipped
    return records


def _first_fetched(record: Record) -> tuple[int, int] | None:
    """The iteration that the first pass took its batch from, and how many that had returned by then."""
    return max((each for update in record.updates[:1] for one in update.passes[:1] for each in one.fetched.items()),
               default=None)


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
            raise UsageError(LARGE)
        for path in self.left if workplace.copied else ():
            one = workplace.folder / path
            shutil.rmtree(one) if one.is_dir() else one.unlink(missing_ok=True)
        run = join_parts(run_ranks(asked.script, asked.workers, place, workplace, RANK, **TASK | task))
        return run if task.get("stop") or task.get("in_save") else checked(asked.script, run)

    def again(self, name: str, stopped: Run, **task: int) -> tuple[list[Record], str]:
        """A run in the folder of another one, with the arguments of one that is started again; and its error."""
        asked = replace(self.asked.script, arguments=(*self.asked.script.arguments, *shlex.split(self.asked.again)))
        self.say(f"running {asked.script} again")
        run = join_parts(run_ranks(asked, self.asked.then, self.place / name, stopped.workplace, RANK, **TASK | task))
        if run.late or any(record.state == FAILED for record in run.records):
            try:
                checked(asked, run)
            except ScriptError as error:
                return run.records, str(error)
        return run.records, ""


def run_all(asked: ResumeRequest, place: Path, say: Callable[[str], None]) -> Both:
    """Run the script four times; raises ScriptError where it fails before it is stopped, and UsageError for files that
    several runs would share. Without a checkpoint in the first run there is no other."""
    runs = Runner(asked, place, say)
    begun = runs.fresh("first", "uninterrupted", least=asked.stop, after=asked.script.updates)
    first, workplace = begun.records, begun.workplace
    outside = sorted({path for record in first for path in (*record.written, *_saved_outside(record))})
    if outside and not asked.in_place:
        raise UsageError(OUTSIDE.format(listed(outside[:3])))
    if left := _loaded_there(first, workplace):
        runs.left = left
        first = runs.fresh("afresh", "uninterrupted, without its checkpoints", least=asked.stop,
                           after=asked.script.updates).records
    saves = sorted({(one.updates, one.passes) for record in first for one in record.uses(SAVED) if one.updates})
    both = Both(asked, first, begun.written, runs.left)
    if not saves:
        return both
    stop = next((updates for updates, passes in saves if passes), max(asked.stop, saves[0][0]))
    second = runs.fresh("second", "a second time", most=both.made).records
    stopped = runs.fresh("stopped", f"to update {stop}", stop=stop, signal=SIGNALS[asked.how],
                         most=stop + 2 * asked.script.updates)
    newest = max((one.updates for record in stopped.records for one in record.uses(SAVED)), default=0)
    ended = BEYOND if all(record.state == ENDED for record in first) else 0
    resumed, error = runs.again("resumed", stopped, most=max(1, both.made - newest + ended))
    for each in (second, stopped.records):
        if again := _loaded_there(each, workplace, {path for record in first for path in _saved_outside(record)}):
            raise UsageError(LEFT.format(listed(again[:3])))
    torn = {}
    for number, where in enumerate(("in the middle of a file", "between two files"), 1) if asked.in_save else ():
        at = next((updates for updates, _ in saves[1:]), saves[0][0])
        killed = runs.fresh(f"torn{number}", f"and killing it {where}", in_save=number, save=at, most=both.made)
        torn[where] = killed.records, *runs.again(f"mended{number}", killed, most=1)
    return replace(both, second=second, stopped=stopped.records, stop_at=stop, resumed=resumed, error=error, torn=torn)


def _saved_outside(record: Record) -> list[str]:
    """The checkpoints that are not in the script's folder."""
    return [one.path for one in record.uses(SAVED) if os.path.isabs(one.path)]


def _loaded_there(records: list[Record], workplace: Workplace, known: Collection[str] = ()) -> list[str]:
    """Checkpoints that a run loaded before its first update: what it also writes, and was there before it."""
    written = {one.path for record in records for one in record.uses(SAVED, WRITTEN)}
    folders = {os.path.dirname(one.path) for record in records for one in record.uses(SAVED)} - {""}
    begun = {one.path for record in records for one in record.uses(SAVED, WRITTEN) if not one.updates}
    loaded = {one.path for record in records for one in record.uses(LOADED, READ) if not one.updates} - begun
    return sorted(one for one in loaded & {*workplace.before, *known}
                  if one in written or os.path.dirname(one) in folders)
