"""The runs of a script that is stopped and started again, each in a copy of the working folder."""
from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from ...errors import UsageError
from ...formatting.numbers import listed
from ...watch import runner
from ...watch.runner import ScriptRequest
from ..script.folder import Workplace, make_workplace
from ..script.record import FAILED
from ..script.runs import ScriptError, collect, load_all
from .record import LOADED, READ, SAVED, WRITTEN, ResumeRecord

RANK = "hvdscale.doctor.resume.rank"
SIGNALS = {"kill": 9, "term": 15, "int": 2, "usr1": 10}
BEYOND = 2                  # updates that the resumed run may make beyond the end of the uninterrupted one
LEFT = ("a run that should begin afresh loaded {}, which an earlier one had left; have the script write below its "
        "working folder, by a relative path, so that each run has a copy")
OUTSIDE = ("{} would be the same for all runs: it is outside of the copy of the working folder. Have the script write "
           "below that, by a relative path; --in-place runs it as it is")
LARGE = "the working folder is too large to copy: run the script in a folder of its own; --in-place runs it in this one"


@dataclass(frozen=True)
class ResumeRequest:
    """What is to be run, and how it is stopped.

    again    arguments that the script gets as well when it is started again
    stop     the update after which it is stopped;  how: a key of SIGNALS;  updates: to compare after it
    workers  of all runs but the last;  then  of that
    """

    script: ScriptRequest
    again: str
    stop: int
    how: str
    updates: int
    workers: int
    then: int
    in_save: bool = False
    in_place: bool = False


@dataclass(frozen=True)
class Resumed:
    """A run that was started again: the records of all ranks, and the error that one ended with."""

    records: list[ResumeRecord]
    error: str
    traceback: str = ""


@dataclass(frozen=True)
class FourRuns:
    """The records of all ranks of each run.

    stop   the update after which the third was stopped;  updates: those of the first
    torn   where a run was killed while it saved, and how it was started again
    left   checkpoints that were there before, and are left out of the copies
    """

    asked: ResumeRequest
    first: list[ResumeRecord]
    second: list[ResumeRecord]
    stopped: list[ResumeRecord]
    resumed: Resumed
    stop: int
    written: list[str]
    torn: dict[str, tuple[list[ResumeRecord], Resumed]]
    left: list[str]


class Runner:
    """Starts the runs, each in a new folder below ``place``."""

    def __init__(self, asked: ResumeRequest, place: Path, say: Callable[[str], None]):
        self.asked, self.place, self.say, self.left = asked, place, say, list[str]()

    def fresh(self, name: str, what: str, **task: int) -> tuple[Workplace, list[ResumeRecord]]:
        """A run from the beginning; raises ScriptError where it fails, unless it was asked to stop."""
        (self.place / name).mkdir()
        workplace = make_workplace(Path.cwd(), self.place / name / "folder")
        if not workplace.copied and not self.asked.in_place:
            raise UsageError(LARGE)
        for path in self.left if workplace.copied else ():
            one = workplace.folder / path
            shutil.rmtree(one) if one.is_dir() else one.unlink(missing_ok=True)
        late, records = self._run(name, what, workplace, self.asked.script, self.asked.workers, **task)
        if not task.get("stop") and not task.get("in_save"):
            collect(self.asked.script, self.asked.workers, workplace, self.place / name, late, ResumeRecord)
        return workplace, records

    def again(self, name: str, what: str, workplace: Workplace, **task: int) -> Resumed:
        """A run in the folder of another one, with the arguments of one that is started again."""
        asked, workers = self.asked.script, self.asked.then
        asked = replace(asked, arguments=(*asked.arguments, *shlex.split(self.asked.again)))
        (self.place / name).mkdir()
        late, records = self._run(name, what, workplace, asked, workers, **task)
        if any(record.state == FAILED or not record.updates for record in records):
            try:
                collect(asked, workers, workplace, self.place / name, late, ResumeRecord)
            except ScriptError as error:
                ended = not any(record.state == FAILED for record in records) and not late
                return Resumed(records, "" if ended else str(error), error.traceback)
        return Resumed(records, "")

    def _run(self, name: str, what: str, workplace: Workplace, asked: ScriptRequest, workers: int, **task: int
             ) -> tuple[bool, list[ResumeRecord]]:
        self.say(f"running {asked.script} {what}")
        task = dict.fromkeys(("stop", "signal", "most", "least", "after", "in_save", "save"), 0) | task
        end = runner.run_here(asked, workers, RANK, self.place / name, workplace.folder, **task)
        return end.late, load_all(self.place / name, workers, ResumeRecord)


def run_all(asked: ResumeRequest, place: Path, say: Callable[[str], None]) -> FourRuns:
    """Run the script four times; raises ScriptError where it fails before it is stopped, and UsageError for files that
    several runs would share. Without a checkpoint in the first run there is no other."""
    runs = Runner(asked, place, say)
    workplace, first = runs.fresh("first", "uninterrupted", least=asked.stop, after=asked.updates)
    outside = sorted({path for record in first for path in (*record.written, *_saved_outside(record))})
    if outside and not asked.in_place:
        raise UsageError(OUTSIDE.format(listed(outside[:3])))
    if left := _loaded_there(first, workplace):
        runs.left = left
        _, first = runs.fresh("afresh", "uninterrupted, without its checkpoints", least=asked.stop,
                              after=asked.updates)
    saves = sorted({(one.updates, one.passes) for record in first for one in record.uses(SAVED) if one.updates})
    made, written = min(record.made for record in first), workplace.written()
    if not saves:
        return FourRuns(asked, first, [], [], Resumed([], ""), 0, written, {}, runs.left)
    stop = next((updates for updates, passes in saves if passes), max(asked.stop, saves[0][0]))
    _, second = runs.fresh("second", "a second time", most=made)
    folder, stopped = runs.fresh("stopped", f"to update {stop}", stop=stop, signal=SIGNALS[asked.how],
                                 most=stop + 2 * asked.updates)
    newest = max((one.updates for record in stopped for one in record.uses(SAVED)), default=0)
    ended = BEYOND if all(record.state == "ended" for record in first) else 0
    resumed = runs.again("resumed", "again", folder, most=max(1, made - newest + ended))
    for each in (second, stopped):
        if again := _loaded_there(each, workplace, {path for record in first for path in _saved_outside(record)}):
            raise UsageError(LEFT.format(listed(again[:3])))
    torn = {}
    for number, where in enumerate(("in the middle of a file", "between two files"), 1) if asked.in_save else ():
        at = next((updates for updates, _ in saves[1:]), saves[0][0])
        folder, records = runs.fresh(f"torn{number}", f"and killing it {where}", in_save=number, save=at, most=made)
        torn[where] = records, runs.again(f"mended{number}", "again", folder, most=1)
    return FourRuns(asked, first, second, stopped, resumed, stop, written, torn, runs.left)


def _saved_outside(record: ResumeRecord) -> list[str]:
    """The checkpoints that are not in the script's folder."""
    return [one.path for one in record.uses(SAVED) if os.path.isabs(one.path)]


def _loaded_there(records: list[ResumeRecord], workplace: Workplace, known: Collection[str] = ()) -> list[str]:
    """Checkpoints that a run loaded before its first update: what it also writes, and was there before it."""
    written = {one.path for record in records for one in record.uses(SAVED, WRITTEN)}
    folders = {os.path.dirname(one.path) for record in records for one in record.uses(SAVED)} - {""}
    begun = {one.path for record in records for one in record.uses(SAVED, WRITTEN) if not one.updates}
    loaded = {one.path for record in records for one in record.uses(LOADED, READ) if not one.updates} - begun
    there = {*workplace.before, *known}
    return sorted(one for one in loaded if one in there and (one in written or os.path.dirname(one) in folders))
