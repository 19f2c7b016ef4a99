"""The uninterrupted runs and the one that was stopped and started again, and what may be compared between them."""
from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from ...watch.runner import LOCAL
from ..finding import Finding
from ..kinds import Kinds
from ..script.compare.pair import Pair, trained
from ..script.record import ENDED, GeneratorUse
from .record import LOADED, READ, SAVED, WRITTEN, FileUse, ResumeRecord, Start
from .runs import FourRuns

KINDS = Kinds(Path(__file__).with_name("findings.toml"))
ENOUGH = 3                  # updates by which a place in a course is recognized, and a stream of random numbers
T = TypeVar("T")


@dataclass(frozen=True)
class Both:
    """The runs, from the update on whose state the loaded checkpoint holds."""

    runs: FourRuns

    def finding(self, check: str, kind: str, **given: Any) -> Finding:
        """See Kinds.finding; the words know what this has, such as the update that the checkpoint holds."""
        return KINDS.finding(check, kind, self, **{"lines": self.lines, **given})

    @property
    def script(self) -> str:
        return self.runs.asked.script.script

    @property
    def first(self) -> list[ResumeRecord]:
        return self.runs.first

    @property
    def resumed(self) -> list[ResumeRecord]:
        return self.runs.resumed.records

    @property
    def other_count(self) -> bool:
        return self.runs.asked.then != self.runs.asked.workers

    @property
    def same_batch(self) -> bool:
        """Whether both have one global batch, as far as the command says."""
        return not self.other_count or any(LOCAL in one for one in self.runs.asked.script.arguments)

    @property
    def workers(self) -> str:
        """``2 workers``, or ``2 workers, then 1``."""
        asked = self.runs.asked
        many = f"{asked.workers} worker{'s' if asked.workers > 1 else ''}"
        return f"{many}, then {asked.then}" if self.other_count else many

    @property
    def made(self) -> int:
        """Updates of the uninterrupted run."""
        return min(record.made for record in self.first)

    @property
    def stop(self) -> int:
        """Updates that the stopped run made."""
        return max(self.runs.stop, min(record.made for record in self.runs.stopped))

    @property
    def after_held(self) -> int:
        """The number of the first update to compare."""
        return self.held + 1

    @property
    def again(self) -> str:
        return self.runs.asked.again

    @property
    def redone(self) -> int:
        """Updates between the checkpoint and the stop."""
        return max(0, self.stop - self.held)

    @property
    def after(self) -> int:
        """Updates that were made by the resumed run, and also by the uninterrupted one."""
        return max(0, min(min(record.made for record in self.resumed), self.made - self.held))

    @cached_property
    def loaded(self) -> list[tuple[FileUse, FileUse]]:
        """What the resumed run loaded before its first update, and how the stopped one had last written it: what was
        saved by a function for checkpoints, else any file."""
        return find_loaded(self.runs.stopped, self.resumed)

    @cached_property
    def held(self) -> int:
        """The updates whose result the loaded checkpoint holds: those before whose next one the stopped run had the
        parameters that the resumed run starts with; else those before the loaded file was written."""
        files = max((by.updates for _, by in self.loaded), default=0)
        same = [at for at in range(1, self.stop + 2) if self._starts_as(at)]
        return min(same, key=lambda at: abs(at - files)) if same else files

    @property
    def passes(self) -> int:
        """The passes of the next update that came before the save of the loaded checkpoint."""
        return max((by.passes for _, by in self.loaded), default=0)

    def _starts_as(self, updates: int) -> bool:
        pairs = [(self.expected(rank, updates), record.start(0)) for rank, record in enumerate(self.resumed)]
        return all(old is not None and new is not None and record.trained and all(
            old.tensors.get(name) == new.tensors.get(name) for name in record.trained)
                   for (old, new), record in zip(pairs, self.resumed))

    def expected(self, rank: int, updates: int | None = None) -> Start | None:
        """What the rank should start from, which the stopped run had; else the uninterrupted one."""
        at = self.held if updates is None else updates
        rank = 0 if self.other_count else rank
        found = self.runs.stopped[rank].start(at)
        return found if found is not None or not self.exact(at) else self.first[rank].start(at)

    def exact(self, updates: int) -> bool:
        """Whether both uninterrupted runs had the same parameters after so many updates, bit for bit."""
        one, other = (run[0].start(updates) for run in (self.first, self.runs.second))
        return one is not None and other is not None and all(
            one.tensors.get(name) == other.tensors.get(name) for name in self.first[0].trained)

    @property
    def saved_by(self) -> str:
        return next((by.line for _, by in self.loaded if by.line), "")

    @property
    def loaded_by(self) -> str:
        """The line of the load, preferably one for checkpoints."""
        return next((one.line for act in (LOADED, READ) for one, _ in self.loaded if one.act == act and one.line), "")

    @property
    def lines(self) -> str:
        """``saved by train.py:60, loaded by train.py:31``."""
        return ", ".join(f"{how} by {line}" for how, line in (("saved", self.saved_by), ("loaded", self.loaded_by))
                         if line)

    @cached_property
    def pairs(self) -> dict[str, Pair]:
        """By run what knows the batches of each update, where all ranks took some."""
        runs = {"first": self.first, "second": self.runs.second, "stopped": self.runs.stopped, "resumed": self.resumed}
        return {name: Pair(records[0], _as_used(records, self.first), None)
                for name, records in runs.items() if records and all(map(trained, records))}

    @cached_property
    def keys(self) -> dict[str, list[list[list]]]:
        """By run, for each update, what identifies the examples of each rank; of ranks together, if their number
        changes. An empty list where they are unknown."""
        return {name: [self._together(pair.keys(pair.many, at)) for at in range(pair.updates)]
                for name, pair in self.pairs.items()}

    def draws(self, run: str, rank: int, begin: int = 0) -> list[GeneratorUse]:
        """What a rank drew from generators in the next updates: in reading, and in its passes."""
        records = {"first": self.first, "second": self.runs.second, "resumed": self.resumed}[run]
        pair, record = self.pairs.get(run), records[rank]
        found = []
        for at, update in enumerate(
                record.updates[begin:begin + (1 if self.other_count else ENOUGH)], begin):
            found += [one.draws for one in pair.batches(record, at) if one.draws] if pair else []
            found += [one for each in update.passes for one in (each.prepared, each.draws)]
        return found

    def _together(self, ranks: list[list]) -> list[list]:
        return [sorted((key for rank in ranks for key in rank), key=repr)] if self.other_count and ranks else ranks

    def epochs(self) -> list[int]:
        """The updates before each epoch of the uninterrupted run."""
        return sorted({one.updates for one in trained(self.first[0])})


def place_in(course: list[T], part: list[T]) -> list[int]:
    """The places of a course at which its next elements are the first of the part."""
    some = part[:ENOUGH]
    return [at for at in range(len(course) - len(some) + 1) if some and course[at:at + len(some)] == some]


def find_loaded(stopped: list[ResumeRecord], resumed: list[ResumeRecord]) -> list[tuple[FileUse, FileUse]]:
    """What a run loaded before its first update, and how the one before had last written it or its folder."""
    written = [one for record in stopped for one in record.uses(SAVED, WRITTEN)]
    found = []
    for one in (one for record in resumed for one in record.uses(LOADED, READ) if not one.updates):
        by = [each for each in written if f"{one.path}/".startswith(f"{each.path}/")]
        found += [(one, max(by, key=lambda each: (each.act == SAVED, each.updates)))] if by else []
    return [both for both in found if both[1].act == SAVED] or found


def times(*updates: list[list[list]]) -> Counter:
    """How often each example was taken in these courses."""
    return Counter(key for course in updates for ranks in course for rank in ranks for key in rank)


def _as_used(records: list[ResumeRecord], usual: list[ResumeRecord]) -> list[ResumeRecord]:
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


def _first_fetched(record: ResumeRecord) -> tuple[int, int] | None:
    """The iteration that the first pass took its batch from, and how many that had returned by then."""
    passes = [one for update in record.updates[:1] for one in update.passes[:1]]
    found = [(at, count) for one in passes for at, count in one.fetched.items()]
    return max(found) if found else None
