"""Which draws of a sweep's studies are finished and which are running: small files in a folder that all jobs share.

    owner = Owner.take("runs/sweep")                    OUT/owners/NAME.lock, locked for as long as this process lives
    ledger = Ledger("runs/sweep")
    attempt = ledger.claim("sgd-b256", 7, owner)        OUT/trials/sgd-b256/7.claim-1; None: not ours to run
    ledger.record("sgd-b256", Result(7, ...))           OUT/trials/sgd-b256/7.json, whole or not there
    ledger.release("sgd-b256", 7, attempt)              instead, where the trial is left before its end: 7.released-1
    owner.release()

A file is written under a name of its own, then linked to the one it is for, which a file system grants to one process
only (local ones, NFS, Lustre); where links are refused the name is reserved by O_EXCL. Attempt n + 1 at a draw is
claimed only after the owner of attempt n let go of it or died, and an owner lives while its lock is held. So the
folder has to be where flock works between hosts. Where locks are refused, a lock file that is there counts as held:
remove OUT/owners/NAME.lock of an owner that was killed. Where they hold within one host only (Lustre's localflock,
NFS's local_lock=flock), let one host alone work in the folder.
"""
from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from ..errors import LogError
from ..log.files import first_line
from ..log.schema import Status
from ..system.files import new_file, sync_directory, temporary_name, write_whole, writing
from ..system.lock import SUFFIX, Lock, holder, this_process

KILLED = 3                              # attempts at one draw whose process alone was killed; then it is lost
ATTEMPTS = 10                           # that may die in any way, as when whole jobs are killed
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
READS, WAIT_SECONDS = 5, 0.02           # where a name is reserved first, its file is empty for an instant

_NAME = re.compile(r"(0|[1-9]\d*)\.(?:(json)|(claim|released|killed)-([1-9]\d*))")


@dataclass
class Owner:
    """A process that runs trials. Its lock is held while it, or a child that it forked, lives.

    name    of no other process, of this host or another, now or later
    job     of which launch, or else the batch system's number
    """

    name: str
    host: str
    pid: int
    job: str
    lock: Lock = field(repr=False, compare=False)

    @classmethod
    def take(cls, out: str, take_over: bool = False, job: str | None = None) -> Owner:
        """This process as an owner in the sweep's folder ``out``; LogError where it cannot be written or locked.

        take_over    go on where locks are refused (see the top of this file)
        """
        facts = this_process()
        name = f"{facts['host']}-{facts['pid']}-{uuid.uuid4().hex[:8]}"
        path = os.path.join(out, "owners", name)
        with writing(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            return cls(name, facts["host"], facts["pid"], facts["job"] if job is None else job,
                       Lock.take(path, take_over))

    def release(self):
        """Lets go of the lock; claims that were neither recorded nor released count as dead from here on."""
        self.lock.release()


class Kind(str, Enum):
    """How a draw ended."""

    MET = "met"                 # the strictest target
    BUDGET = "budget"           # spent
    DIVERGED = "diverged"
    FAILED = "failed"           # with an error
    LOST = "lost"               # with its process, KILLED or ATTEMPTS times
    PRUNED = "pruned"


@dataclass(frozen=True)
class Result:
    """The result of one draw of a study, or of a repeat of its winner.

    number     the draw; ``pruning.FIRST_REPEAT`` and above: a repeat
    last_step  steps done at the end; 0 where that is not known
    steps      steps to each target, by its text; inf: not met
    best       the objective's best value; NaN where there is none
    pieces     where its rows are: (name of the log file, trial id in it), oldest first
    owner      the Owner's name
    """

    number: int
    status: Status
    kind: Kind
    reason: str = ""
    last_step: int = 0
    steps: Mapping[str, float] = field(default_factory=dict)
    best: float = math.nan
    seconds: float = 0.0
    pieces: tuple[tuple[str, int], ...] = ()
    owner: str = ""

    def as_json(self) -> dict:
        """All of it in what JSON knows: inf and NaN as the texts "inf", "-inf" and "nan"."""
        return {"number": self.number, "status": self.status.name, "kind": self.kind, "reason": self.reason,
                "last_step": self.last_step, "steps": {target: _shown(steps) for target, steps in self.steps.items()},
                "best": _shown(self.best), "seconds": _shown(self.seconds),
                "pieces": [list(piece) for piece in self.pieces], "owner": self.owner}

    @classmethod
    def of_json(cls, record: dict) -> Result:
        """The result that ``as_json`` gave; ValueError that says what is wrong where it is none."""
        if not isinstance(record, dict):
            raise ValueError(f"it holds {type(record).__name__}, not an object")
        kinds = [kind.value for kind in Kind]
        if record.get("kind", Kind.MET) not in kinds:
            raise ValueError(f"its kind is {record['kind']!r}, not one of {', '.join(kinds)}")
        try:
            result = cls(int(record["number"]), Status[record["status"]], Kind(record["kind"]), str(record["reason"]),
                         int(record["last_step"]), {str(k): float(v) for k, v in record["steps"].items()},
                         float(record["best"]), float(record["seconds"]),
                         tuple((str(log), int(trial)) for log, trial in record["pieces"]), str(record["owner"]))
        except KeyError as error:
            raise ValueError(f"it lacks {error}, or has a value unknown here") from error
        except (AttributeError, TypeError) as error:
            raise ValueError(first_line(error)) from error
        for log, _ in result.pieces:
            if log in ("", ".", "..") or "/" in log or "\0" in log:
                raise ValueError(f"its log {log!r} is no name of a file in logs")
        return result


@dataclass
class Files:
    """What the folder holds of one draw: attempts claimed, released and killed, and whether its result is there."""

    claims: set[int] = field(default_factory=set)
    released: set[int] = field(default_factory=set)
    killed: set[int] = field(default_factory=set)
    finished: bool = False

    @property
    def held(self) -> int:
        """The newest attempt; 0 where it was released, or none was made."""
        newest = max(self.claims, default=0)
        return 0 if newest in self.released else newest


class Ledger:
    """The files of a sweep's draws in ``out``; every call looks at the folder as it is then.

    All methods raise LogError, naming the file, where one cannot be read or written or is not what its name says.
    """

    def __init__(self, out: str):
        self.out = out
        self._results: dict[str, dict[int, Result]] = {}
        self._claims: dict[str, dict] = {}          # claims never change: what was read, by path
        self._dead: set[str] = set()                # owners never come back

    def claim(self, study: str, number: int, owner: Owner) -> int | None:
        """The number, 1, 2, ..., of the attempt at a draw that is now this owner's, and of no other.

        None where the draw is finished, running under a living owner (be it this one), or has used up its attempts.
        The owner ends it by ``record`` or by ``release``.
        """
        files = self._files(study, number)
        if files.finished or self._lives(study, number, files) or self._is_used_up(study, number, files):
            return None
        attempt = max(files.claims | files.released, default=0) + 1
        document = {"owner": owner.name, "host": owner.host, "pid": owner.pid, "job": owner.job, "time": time.time()}
        if not _put_new(self._path(study, f"{number}.claim-{attempt}"), document):
            return None
        if os.path.exists(self._path(study, f"{number}.json")):        # recorded since the folder was listed
            self.release(study, number, attempt)
            return None
        return attempt

    def release(self, study: str, number: int, attempt: int):
        """Gives a draw back before its end, for anyone to claim again; the attempt does not count as a dead one."""
        self._touch(study, f"{number}.released-{attempt}")

    def record(self, study: str, result: Result) -> bool:
        """Writes a draw's result, for good; False where one is there already, which then stands."""
        return _put_new(self._path(study, f"{result.number}.json"), result.as_json())

    def results(self, study: str) -> dict[int, Result]:
        """All results of a study, repeats of the winner among them, in order; a file that stays is read once."""
        seen = self._results.get(study, {})
        self._results[study] = {number: seen.get(number) or self._read_result(study, number)
                                for number, files in sorted(self._listing(study).items()) if files.finished}
        return dict(self._results[study])

    def take_back(self, study: str, kinds: Iterable[str]) -> list[int]:
        """Let the draws whose results are of these kinds be run again, as if they had not been; their numbers."""
        numbers = [number for number, result in self.results(study).items() if result.kind in kinds]
        for number in numbers:
            files = self._files(study, number)
            kinds_of = {"claim": files.claims, "released": files.released, "killed": files.killed}
            names = [f"{number}.{kind}-{attempt}" for kind, attempts in kinds_of.items() for attempt in attempts]
            for name in (*names, f"{number}.json"):             # the result last: it alone says that there is one
                path = self._path(study, name)
                with writing(path):
                    os.unlink(path)
                self._claims.pop(path, None)
        return numbers

    def owners(self) -> list[dict]:
        """Host, pid and job of those that live."""
        folder = os.path.join(self.out, "owners")
        paths = [os.path.join(folder, name.removesuffix(SUFFIX)) for name in sorted(_names(folder))]
        return [owner for owner in map(holder, paths) if owner is not None]

    def running(self, study: str) -> dict[int, dict]:
        """Draws under a living owner: its name as ``owner``, host, pid, job, time of the claim, and ``attempt``."""
        return {number: {**self._claim(study, number, files.held), "attempt": files.held}
                for number, files in sorted(self._listing(study).items())
                if not files.finished and self._lives(study, number, files)}

    def dead(self, study: str) -> list[int]:
        """Draws whose newest attempt died with its owner: to be claimed again, or lost."""
        return [number for number, files in sorted(self._listing(study).items()) if self._died(study, number, files)]

    def at_work(self, studies: Iterable[str], job: str, but: str) -> bool:
        """Whether an owner of the job that has claimed a trial lives, ``but`` for one."""
        owners = {claim["owner"]: claim for study in studies for number, files in self._listing(study).items()
                  for claim in (self._claim(study, number, attempt) for attempt in files.claims)}
        return any(claim.get("job") == job and name != but and self._is_alive(claim)
                   for name, claim in owners.items())

    def attempts(self, study: str, number: int) -> int:
        """How many attempts at a draw died with their owner; of a finished one, those before it was finished."""
        return self._lost_attempts(study, number, self._files(study, number))

    def lost(self, study: str, number: int) -> bool:
        """Whether an unfinished draw has used up its attempts: someone has to record it as of kind "lost"."""
        files = self._files(study, number)
        return not files.finished and not self._lives(study, number, files) and self._is_used_up(study, number, files)

    def note_killed(self, studies: Iterable[str], host: str, pid: int) -> bool:
        """Note that a process ended over the draws that it has claimed and not ended; whether there are any."""
        found = False
        for study in studies:
            for number, files in self._listing(study).items():
                claim = self._claim(study, number, files.held) if files.held and not files.finished else {}
                if (claim.get("host"), claim.get("pid")) == (host, pid):
                    self._touch(study, f"{number}.killed-{files.held}")
                    found = True
        return found

    def _is_used_up(self, study: str, number: int, files: Files) -> bool:
        return len(files.killed) >= KILLED or self._lost_attempts(study, number, files) >= ATTEMPTS

    def _touch(self, study: str, name: str) -> None:
        path = self._path(study, name)
        with writing(path):
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o644))
        sync_directory(path)

    def _path(self, study: str, name: str) -> str:
        return os.path.join(self.out, "trials", study, name)

    def _listing(self, study: str) -> dict[int, Files]:
        """What is there of each draw; names of other kinds are let be."""
        draws: dict[int, Files] = {}
        for name in _names(self._path(study, "")):
            found = _NAME.fullmatch(name)
            if found:
                number, result, kind, attempt = found.groups()
                files = draws.setdefault(int(number), Files())
                if result:
                    files.finished = True
                else:
                    {"claim": files.claims, "released": files.released, "killed": files.killed}[kind].add(int(attempt))
        return draws

    def _files(self, study: str, number: int) -> Files:
        return self._listing(study).get(number, Files())

    def _lives(self, study: str, number: int, files: Files) -> bool:
        """Whether the attempt that is held has a living owner."""
        return files.held > 0 and self._is_alive(self._claim(study, number, files.held))

    def _died(self, study: str, number: int, files: Files) -> bool:
        """Whether the attempt that is held died with its owner. It may have released the draw or recorded it after the
        folder was listed, and then ended, so the folder is looked at again."""
        if files.finished or not files.held or self._lives(study, number, files):
            return False
        after = self._files(study, number)
        return not after.finished and files.held not in after.released

    def _lost_attempts(self, study: str, number: int, files: Files) -> int:
        """Attempts that died: all that were not released, less the one that lives or finished the draw."""
        kept = len(files.claims - files.released)
        spared = files.finished or (files.held > 0 and not self._died(study, number, files))
        return max(kept - spared, 0)

    def _is_alive(self, claim: dict) -> bool:
        name = claim["owner"]
        if name not in self._dead and holder(os.path.join(self.out, "owners", name)) is None:
            self._dead.add(name)
        return name not in self._dead

    def _claim(self, study: str, number: int, attempt: int) -> dict:
        """A claim as its owner wrote it. One that was cut off by a kill, without links, has an owner that is dead."""
        path = self._path(study, f"{number}.claim-{attempt}")
        if path not in self._claims:
            claim = _read(path)
            named = isinstance(claim, dict) and re.fullmatch(r"[^/\0]+", str(claim.get("owner", "")))
            self._claims[path] = {**claim, "owner": named[0]} if named else {"owner": "?"}
        return self._claims[path]

    def _read_result(self, study: str, number: int) -> Result:
        path = self._path(study, f"{number}.json")
        try:
            record = _read(path)
            if record is None:
                raise ValueError("it is empty, cut off or no JSON")
            result = Result.of_json(record)
            if result.number != number:
                raise ValueError(f"it is the result of draw {result.number}")
        except ValueError as error:
            raise LogError(f"{path}: is not the result of draw {number}: {error}; "
                           f"remove it, and {number}.claim-* beside it, to have the draw run again") from error
        return result


def _put_new(path: str, document: dict) -> bool:
    """Makes a file that was not there, whole from the first moment; False where it is there, or comes first."""
    temporary = temporary_name(path)
    with writing(path):
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with new_file(temporary) as file:
                file.write(json.dumps(document, allow_nan=False).encode() + b"\n")
            made = _name_it(temporary, path)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
    if made:
        sync_directory(path)
    return made


def _name_it(temporary: str, path: str) -> bool:
    try:
        os.link(temporary, path)
    except FileExistsError:
        return os.stat(temporary).st_nlink == 2        # it is ours: an NFS server's first reply was lost on its way
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except FileExistsError:
            return False
        os.replace(temporary, path)
    return True


def _read(path: str):
    """What a JSON file holds; None where it is gone or is not one, nor becomes one within a moment."""
    for wait in (WAIT_SECONDS,) * (READS - 1) + (0,):
        try:
            with open(path, encoding="utf-8") as file:
                return json.load(file)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LogError(f"{path}: cannot be read: {error.strerror or error}") from error
        except (ValueError, RecursionError):
            time.sleep(wait)
    return None


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise LogError(f"{folder}: cannot be read: {error.strerror or error}") from error


def _shown(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def put(path: str, text: str) -> None:
    """Writes a file in the place of what is there, whole or not at all; LogError where it cannot be written."""
    with writing(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_whole(path, text)


def kept(path: str) -> dict:
    """What a file that ``put`` wrote as JSON holds, {} where there is none; LogError where it cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            return dict(json.load(file))
    except FileNotFoundError:
        return {}
    except (OSError, RecursionError, TypeError, ValueError) as error:
        raise LogError(f"{path}: cannot be read: {error}") from None
