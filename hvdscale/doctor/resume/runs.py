"""The runs of a script that is stopped and started again, and what may be compared between them."""
from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UsageError
from ...watch.runner import ENDED, FAILED, ScriptRequest
from ..finding import Finding
from ..lost import KINDS
from ..script.compare.pair import Pair, trained
from ..script.folder import make_workplace
from ..script.record import (LOADED, READ, SAVED, WRITTEN, FileUse, Record, least, uses, written_outside)
from ..script.runs import Run, checked, find_error, run_ranks

RANK = "hvdscale.doctor.resume.listen"
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
        # the updates whose result the loaded checkpoint holds: those after which the stopped run had the parameters
        # that the resumed run starts with; else those before the loaded file was written
        files = max((by.updates for _, by in self.loaded), default=0)
        begin = [one.digest for record in self.resumed[:1] for one in record.updates[:1]]
        updates = [update for record in self.stopped[:1] for update in record.updates]
        digests = [*(one.digest for one in updates[1:]), *(one.digest_after for one in updates[-1:])]
        same = [at for at, one in enumerate(digests, 1) if one in begin]
        self.held = min(same, key=lambda at: abs(at - files), default=files)
        self.left_over, self.redone = self.made - self.held, max(0, self.stop - self.held)
        self.after = max(0, min(least(self.resumed), self.left_over))       # updates that both have made
        self.ends = all(record.state == ENDED for record in self.first)
        self.epochs = sorted({one.updates for one in trained(self.first[0])})      # the updates before each of them
        saves = [*(by for _, by in self.loaded), *uses(self.stopped, SAVED)[::-1]]
        self.saved_by = next((one.line for one in saves if one.line), "")
        self.loaded_by = next((one.line for one, _ in self.loaded if one.line), "")

    def finding(self, check: str, kind: str, **given: Any) -> Finding:
        """See Kinds.finding; the words know what this has, such as the update that the checkpoint holds."""
        return KINDS.finding(check, kind, self, **{"where": self.loaded_by, **given})

    def keys(self, records: Sequence[Record]) -> list[list[list]] | None:
        """For each update of a run, what identifies the examples of each rank; of ranks together, if their number
        changes. Empty where they are unknown; None where some rank has no loader."""
        if not all(map(trained, records)):
            return None
        pair = Pair(records[0], [*records], None)
        found = [pair.keys(pair.many, at) for at in range(pair.updates)]
        if self.other_count:
            return [[sorted(sum(ranks, []), key=repr)] if ranks else [] for ranks in found]
        return found


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


def carry_out(asked: ResumeRequest, place: Path, say: Callable[[str], None], name: str, what: str,
              stopped: Run | None = None, left: Collection[str] = (), **task: int) -> tuple[Run, str]:
    """A run in a new folder below ``place``, without the files that are to be left out, or again in the folder of one
    that was stopped; and its error. All ranks' records have one digest of each tensor that was divided among them.
    Raises ScriptError where a run without a stop fails."""
    script, workers = asked.script, asked.workers
    if stopped:
        script = replace(script, arguments=(*script.arguments, *shlex.split(asked.again)))
        workers, workplace = asked.then, stopped.workplace
    else:
        workplace = make_workplace(Path.cwd(), place / name / "folder")
        if not workplace.copied and not asked.in_place:
            raise UsageError(KINDS.sentence("refused", "large"))
        for path in left if workplace.copied else ():
            (workplace.folder / path).unlink(missing_ok=True)
    say(f"running {script.script} {what}")
    run = run_ranks(script, workers, place / name, workplace, RANK, **TASK | task)
    for starts in zip(*(record.starts for record in run.records)):
        for part in starts[0].parts:
            whole = np.fmax.reduce([one.parts.get(part, np.nan) for one in starts])
            for one in starts:
                kind = one.values[part].partition(" ")[0]
                one.values[part] = f"{kind} {blake2b(whole, digest_size=8).hexdigest() if whole.any() else 0}"
    if not stopped and not task.keys() & {"stop", "in_save"}:
        checked(script, run)
    failed = stopped and (run.late or any(record.state == FAILED for record in run.records))
    return run, str(find_error(script, run) or "") if failed else ""


def run_all(asked: ResumeRequest, place: Path, say: Callable[[str], None]) -> Both:
    """Run the script four times; raises ScriptError where it fails before it is stopped, and UsageError for files that
    several runs would share. Without a checkpoint in the first run there is no other."""
    run, task = partial(carry_out, asked, place, say), {"least": asked.stop, "after": asked.script.updates}
    first, _ = run("first", "uninterrupted", **task)
    absolute = {one.path for one in uses(first.records, SAVED) if os.path.isabs(one.path)}
    outside = sorted(absolute | written_outside(first.records))
    if outside and not asked.in_place:
        raise UsageError(KINDS.sentence("refused", "outside", paths=outside[:3]))
    if left := _loaded_of(first.records, first.workplace.before):
        run = partial(run, left=left)
        first, _ = run("afresh", "uninterrupted, without its checkpoints", **task)
    both, made = Both(asked, first.records, first.written, left), least(first.records)
    saves = sorted({(one.updates, one.passes) for one in uses(first.records, SAVED) if one.updates})
    if not saves:
        return both
    stop = next((at for at, passes in saves if passes), max(asked.stop, saves[0][0]))
    second, _ = run("second", "a second time", most=made)
    stopped, _ = run("stopped", f"to update {stop}", stop=stop, signal=SIGNALS[asked.how],
                     most=stop + 2 * asked.script.updates)
    newest = max((one.updates for one in uses(stopped.records, SAVED)), default=0)
    resumed, error = run("resumed", "again", stopped, most=max(1, made - newest + (BEYOND if both.ends else 0)))
    for each in (second, stopped):
        if again := _loaded_of(each.records, {*first.workplace.before, *absolute}):
            raise UsageError(KINDS.sentence("refused", "left", paths=again[:3]))
    torn, at = {}, next((updates for updates, _ in saves[1:]), saves[0][0])
    for number, where in enumerate(("in the middle of a file", "between two files"), 1) if asked.in_save else ():
        killed, _ = run(f"torn{number}", f"and killing it {where}", in_save=number, save=at, most=made)
        mended, error_after = run(f"mended{number}", "again", killed, most=1)
        torn[where] = killed.records, mended.records, error_after
    return replace(both, second=second.records, stopped=stopped.records, stop_at=stop, resumed=resumed.records,
                   error=error, torn=torn)


def _loaded_of(records: list[Record], before: Collection[str]) -> list[str]:
    """Checkpoints that a run loaded before its first update: what it also writes, and was there before it."""
    used = uses(records, SAVED, WRITTEN)
    folders = {os.path.dirname(one.path) for one in used if one.act == SAVED} - {""}
    loaded = {one.path for one in uses(records, LOADED, READ) if not one.updates} & {*before}
    loaded -= {one.path for one in used if not one.updates}
    return sorted(path for path in loaded if os.path.dirname(path) in folders or any(path == one.path for one in used))
