"""Which draws of a sweep's studies are finished or running: small files in a folder shared by all jobs.

    owner = Owner.take("runs/sweep")                    OUT/owners/NAME.lock, locked while this process lives
    ledger = Ledger("runs/sweep")
    attempt = ledger.claim("sgd-b256", 7, owner)        OUT/trials/sgd-b256/7.claim-1; None: not ours to run
    ledger.record("sgd-b256", DrawResult(7, ...))           OUT/trials/sgd-b256/7.json, written atomically
    ledger.release("sgd-b256", 7, attempt)              instead, if the trial is abandoned: 7.released-1
    owner.release()

The files of the first hundred draws and of the repeats lie in the study's folder itself, those of each further hundred
in a folder of their own, as in ``1200/1234.json``: so a listing does not grow with the number of draws.

A file is written under a unique name, then linked to its own name, which a file system grants to only one process
(local ones, NFS, Lustre); without links, the name is reserved by O_EXCL. Attempt n + 1 is claimed only after the owner
of attempt n has released it or died, and an owner is alive while its lock is held. So flock must work between hosts.
Without locks, an existing lock file counts as held: remove OUT/owners/NAME.lock of a killed owner. If locks work only
within a host (Lustre's localflock, NFS's local_lock=flock), use the folder from one host only.
"""
from __future__ import annotations

import contextlib
import json
import math
import os
import re
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ..errors import LogError
from ..log.files import first_line
from ..log.schema import Status
from ..plan.search_space import DrawEnd
from ..system.files import new_file, remove, rename_new, sync_directory, temporary_name, writing
from ..system.inputs import input_text
from ..system.lock import SUFFIX, Lock, holder, this_process

FIRST_REPEAT = 100_000                  # numbers from here on are repeats of the winner
FOLDER_DRAWS = 100                      # draws whose files share a folder
KILLED = 3                              # attempts at a draw whose process alone was killed, before it is lost
ATTEMPTS = 10                           # attempts that died in any way, as when whole jobs are killed
RETRIED = (DrawEnd.FAILED, DrawEnd.LOST)      # by --retry
REPLACED = (DrawEnd.DIVERGED, *RETRIED)         # by the next draw
KINDS = ("claim", "released", "killed", "json")     # of files, the last that of a draw's result
READS, WAIT_SECONDS = 5, 0.02           # without links, a reserved file is empty for an instant

_NAME = re.compile(r"(0|[1-9]\d*)\.(?:(json)|(claim|released|killed)-([1-9]\d*))")
_FOLDER = re.compile(rf"[1-9]\d*0{{{len(str(FOLDER_DRAWS)) - 1}}}")


@dataclass
class Owner:
    """A process that runs trials. Its lock is held while it, or a forked child, lives."""

    name: str           # unique across hosts and time
    host: str
    pid: int
    job: str            # the launch, or the batch system's job number
    lock: Lock = field(repr=False, compare=False)

    @classmethod
    def take(cls, out: str, take_over: bool = False, job: str | None = None) -> Owner:
        """This process as an owner in the sweep's folder; ``take_over``: without file locks, see above. Raises
        LogError."""
        facts = this_process()
        name = f"{facts['host']}-{facts['pid']}-{uuid.uuid4().hex[:8]}"
        path = os.path.join(out, "owners", name)
        with writing(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            return cls(name, facts["host"], facts["pid"], facts["job"] if job is None else job,
                       Lock.take(path, take_over))

    def release(self):
        """Release the lock; claims neither recorded nor released count as dead from now on."""
        self.lock.release()


@dataclass
class DrawResult:
    """The result of one draw of a study, or of a repeat of its winner, from its first step on."""

    number: int                                 # the draw; from FIRST_REPEAT on, a repeat
    kind: DrawEnd = DrawEnd.FAILED
    reason: str = ""
    last_step: int = 0                          # steps done at the end; 0: unknown. A study's log has no later rows
    steps: dict[str, float] = field(default_factory=dict)       # to each target, by its text; inf: not met
    best: float = math.nan                      # the objective's best value; NaN: none
    seconds: float = 0.0
    pieces: tuple[tuple[str, int], ...] = ()    # log file and trial id, oldest first; each resumes the one before
    owner: str = ""                             # the Owner's name

    @property
    def status(self) -> Status:
        if self.kind == DrawEnd.DIVERGED:
            return Status.INFEASIBLE
        return Status.COMPLETE if self.kind in (DrawEnd.MET, DrawEnd.BUDGET) else Status.INCOMPLETE

    @property
    def feasible(self) -> bool:
        """Whether it counts as one of a study's ``trials``: finite up to its stop."""
        return self.kind not in REPLACED

    def steps_to(self, target: str | None) -> float:
        """Steps to the target; inf if it was not met, or there is none."""
        return math.inf if target is None else self.steps.get(target, math.inf)

    def as_json(self) -> dict:
        """A dict for JSON, with inf and NaN as "inf", "-inf" and "nan"."""
        return {"number": self.number, "status": self.status.name, **vars(self),
                "steps": {target: _encode_float(steps) for target, steps in self.steps.items()},
                "best": _encode_float(self.best), "seconds": _encode_float(self.seconds)}

    @classmethod
    def of_json(cls, record: dict) -> DrawResult:
        """The result from ``as_json``; raises ValueError for an invalid record."""
        if not isinstance(record, dict):
            raise ValueError(f"it holds {type(record).__name__}, not an object")
        kinds = [kind.value for kind in DrawEnd]
        if record.get("kind", DrawEnd.MET) not in kinds:
            raise ValueError(f"its kind is {record['kind']!r}, not one of {', '.join(kinds)}")
        try:
            result = cls(int(record["number"]), DrawEnd(record["kind"]), str(record["reason"]),
                         int(record["last_step"]), {str(k): float(v) for k, v in record["steps"].items()},
                         float(record["best"]), float(record["seconds"]),
                         tuple((str(log), int(trial)) for log, trial in record["pieces"]), str(record["owner"]))
            if record["status"] != result.status.name:
                raise ValueError(f"its status is {record['status']!r}, and its kind {result.kind}")
        except KeyError as error:
            raise ValueError(f"it lacks {error}") from error
        except (AttributeError, TypeError) as error:
            raise ValueError(first_line(error)) from error
        for log, _ in result.pieces:
            if log in ("", ".", "..") or "/" in log or "\0" in log:
                raise ValueError(f"its log {log!r} is not the name of a file in logs")
        return result


class Listing:
    """The files of a study's draws as last listed, while other processes add to them."""

    def __init__(self, folder: str):
        self.folder = folder
        # of each draw: those with a file of each kind; its result counts as attempt 0
        self.attempts: dict[int, dict[str, set[int]]] = defaultdict(lambda: {kind: set() for kind in KINDS})
        self.finished: dict[int, bool] = {}     # the draws with a result, in the order in which they were found
        self.begun: dict[int, bool] = {}        # those with other files alone
        self._names: dict[str, set[str]] = {"": set()}          # by folder
        self._whole: set[str] = set()           # folders whose draws all have results

    def refresh(self, number: int | None = None) -> bool:
        """List all draws, or only the folder of one; False if files are gone that were there: list with a new one.
        Raises LogError if a folder cannot be read."""
        if number is not None:
            return self._list(folder_of(number))
        return self._list("") and all(map(self._list, filter(_FOLDER.fullmatch, self._names[""] - self._whole)))

    def _list(self, folder: str) -> bool:
        known, names = self._names.get(folder, set()), set(_names_in(os.path.join(self.folder, folder)))
        if any(map(_NAME.fullmatch, known - names)):
            return False
        self._names[folder] = names
        for found in filter(None, map(_NAME.fullmatch, names - known)):
            number, result, kind, attempt = found.groups()
            self.attempts[int(number)][result or kind].add(int(attempt or 0))
            (self.finished if result else self.begun)[int(number)] = True
        self.begun = {number: True for number in self.begun if number not in self.finished}
        if folder and all(number in self.finished for number in range(int(folder), int(folder) + FOLDER_DRAWS)):
            self._whole.add(folder)
        return True


def folder_of(number: int) -> str:
    first = number // FOLDER_DRAWS * FOLDER_DRAWS
    return str(first) if 0 < first < FIRST_REPEAT else ""


class Ledger:
    """The files of a sweep's draws in ``out``; every call lists the folder again, except in ``one_look``. With an owner
    no other folder is read or written, should that be moved. All methods raise LogError naming a file that cannot be
    read or written or is invalid."""

    def __init__(self, out: str, owner: Owner | None = None):
        self.out, self._owner = out, owner
        self._results: dict[str, dict[int, DrawResult]] = {}
        self._listings: dict[str, Listing] = {}     # by study
        self._looked: set[str] | None = None        # studies listed in one_look; None: not in it
        self._claims: dict[str, dict] = {}          # by path; claims never change
        self._dead: set[str] = set()                # owners never come back to life

    @contextlib.contextmanager
    def one_look(self) -> Iterator[None]:
        """A context in which ``results`` and ``running`` list each study's folder only once."""
        self._looked = set()
        try:
            yield
        finally:
            self._looked = None

    def claim(self, study: str, number: int, owner: Owner) -> int | None:
        """Claim a draw; returns the number of the attempt, 1, 2, ... None if the draw is finished, running under a
        living owner (even this one), or out of attempts. The owner ends the attempt by ``record`` or ``release``."""
        files = self._files(study, number)
        if self._standing(study, number, files) != "free":
            return None
        attempt = max(files["claim"] | files["released"], default=0) + 1
        document = {"owner": owner.name, "host": owner.host, "pid": owner.pid, "job": owner.job, "time": time.time()}
        if not _put_new(self._path(study, f"{number}.claim-{attempt}"), document, sync=False):      # it dies with us
            return None
        if os.path.exists(self._path(study, f"{number}.json")):        # recorded since the folder was listed
            self.release(study, number, attempt)
            return None
        return attempt

    def release(self, study: str, number: int, attempt: int):
        """Give a draw back for anyone to claim; the attempt does not count as dead."""
        self._touch(study, f"{number}.released-{attempt}")

    def record(self, study: str, result: DrawResult) -> bool:
        """Write a draw's final result; False if there is one already, which is kept."""
        return _put_new(self._path(study, f"{result.number}.json"), result.as_json())

    def results(self, study: str) -> dict[int, DrawResult]:
        """All results of a study by number, repeats included; a file is read only once. Returns the same dict with each
        call, with further results at its end; another one only if some were taken back."""
        finished = self._listing(study).finished
        seen = self._results.setdefault(study, {})
        if len(seen) < len(finished):
            seen |= {number: self._read_result(study, number) for number in sorted([*finished][len(seen):])}
        return seen

    def take_back(self, study: str, kinds: Iterable[str]) -> list[int]:
        """Delete results of these kinds and their attempts, so that the draws can run again; returns their numbers."""
        numbers = sorted(number for number, result in self.results(study).items() if result.kind in kinds)
        listing = self._listings.pop(study)
        for number in numbers:
            names = [f"{number}.{kind}-{attempt}" for kind, attempts in listing.attempts[number].items()
                     for attempt in attempts if attempt]
            for name in (*names, f"{number}.json"):             # last the result, by which a draw counts as finished
                path = self._path(study, name)
                with writing(path):
                    os.unlink(path)
                self._claims.pop(path, None)
        self._results.pop(study)
        return numbers

    def owners(self) -> list[dict]:
        folder = os.path.join(self.out, "owners")
        paths = [os.path.join(folder, name.removesuffix(SUFFIX)) for name in sorted(_names_in(folder))]
        return [owner for owner in map(holder, paths) if owner is not None]

    def running(self, study: str) -> dict[int, dict]:
        """Draws with a living owner: its name as ``owner``, host, pid, job, time of the claim, and ``attempt``."""
        return {number: claim for number, claim in self._held(study).items() if self._is_alive(claim)}

    def at_work(self, studies: Iterable[str], job: str, but: str) -> bool:
        """Whether another owner of the job, which has claimed a trial, is alive."""
        owners = {claim["owner"]: claim for study in studies for number, files in self._listing(study).attempts.items()
                  for claim in (self._claim(study, number, attempt) for attempt in files["claim"])}
        return any(claim.get("job") == job and name != but and self._is_alive(claim) for name, claim in owners.items())

    def lost(self, study: str, number: int) -> bool:
        """Whether an unfinished draw is out of attempts, so that it must be recorded as LOST."""
        return self._standing(study, number, self._files(study, number)) == "lost"

    def note_killed(self, studies: Iterable[str], host: str, pid: int) -> bool:
        """Record that this process died during draws that it had claimed; returns whether there were any."""
        names = [(study, f"{number}.killed-{claim['attempt']}") for study in studies
                 for number, claim in self._held(study).items() if (claim.get("host"), claim.get("pid")) == (host, pid)]
        for study, name in names:
            self._touch(study, name)
        return bool(names)

    def _standing(self, study: str, number: int, files: dict[str, set[int]]) -> str:
        """``finished``, ``running`` under a living owner, ``lost`` as its owners have died too often, or ``free``.
        Before it counts as lost the folder is listed again, as the last owner may have released or recorded the draw
        since, and then ended."""
        if files["json"]:
            return "finished"
        claim = self._newest_claim(study, number, files)
        if claim and self._is_alive(claim):
            return "running"
        if len(files["killed"]) >= KILLED:
            return "lost"
        if len(files["claim"] - files["released"]) < ATTEMPTS:
            return "free"
        after = self._files(study, number)
        return "lost" if not after["json"] and len(files["claim"] - after["released"]) >= ATTEMPTS else "free"

    def _touch(self, study: str, name: str) -> None:
        path = self._path(study, name)
        with writing(path):
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o644))
        sync_directory(path)

    def _path(self, study: str, name: str) -> str:
        return os.path.join(self._folder(study), folder_of(int(name.partition(".")[0])), name)

    def _folder(self, study: str) -> str:
        """The study's folder; LogError where ``out`` is not the folder any more in which the owner began to work."""
        now = self._owner and self._owner.lock.moved_to()
        if now is not None:
            where = f" It is now {os.path.dirname(os.path.dirname(now))}." if now else ""
            raise LogError(f"{self.out}: was moved or replaced while the sweep ran: {self._owner.lock.path} is not "
                           f"there any more.{where} Move the folder back, or name its new place; the same command then "
                           "resumes, and nothing in it has to be removed")
        return os.path.join(self.out, "trials", study)

    def _listing(self, study: str, number: int | None = None) -> Listing:
        """The study's draws, or one of them as listed now; in ``one_look`` all as they were then."""
        folder = self._folder(study)
        if number is None and self._looked is not None:
            if study in self._looked:
                return self._listings[study]
            self._looked.add(study)
        listing = self._listings.setdefault(study, Listing(folder))
        if not listing.refresh(number):                     # taken back
            listing = self._listings[study] = Listing(folder)
            self._results.pop(study, None)
            listing.refresh()
        return listing

    def _held(self, study: str) -> dict[int, dict]:
        """The newest claim of each draw without a result, unless it was released."""
        listing = self._listing(study)
        claims = ((number, self._newest_claim(study, number, listing.attempts[number])) for number in listing.begun)
        return {number: claim for number, claim in sorted(claims) if claim}

    def _files(self, study: str, number: int) -> dict[str, set[int]]:
        return {kind: set(attempts) for kind, attempts in self._listing(study, number).attempts[number].items()}

    def _newest_claim(self, study: str, number: int, files: dict[str, set[int]]) -> dict:
        """The newest claim of a draw, and the number of its ``attempt``; {} if it was released or there is none."""
        newest = max(files["claim"], default=0)
        if not newest or newest in files["released"]:
            return {}
        return {**self._claim(study, number, newest), "attempt": newest}

    def _is_alive(self, claim: dict) -> bool:
        name = claim["owner"]
        if name not in self._dead and holder(os.path.join(self.out, "owners", name)) is None:
            self._dead.add(name)
        return name not in self._dead

    def _claim(self, study: str, number: int, attempt: int) -> dict:
        """A claim as written by its owner; one truncated by a kill (without links) counts as one of a dead owner."""
        path = self._path(study, f"{number}.claim-{attempt}")
        if path not in self._claims:
            claim = _read(path)
            owner = isinstance(claim, dict) and re.fullmatch(r"[^/\0]+", str(claim.get("owner", "")))
            self._claims[path] = {**claim, "owner": owner[0]} if owner else {"owner": "?"}
        return self._claims[path]

    def _read_result(self, study: str, number: int) -> DrawResult:
        path = self._path(study, f"{number}.json")
        try:
            if (record := _read(path)) is None:
                raise ValueError("it is empty, cut off or not JSON")
            result = DrawResult.of_json(record)
            if result.number != number:
                raise ValueError(f"it is the result of draw {result.number}")
        except ValueError as error:
            raise LogError(f"{path}: is not the result of draw {number}: {error}; "
                           f"remove it, and {number}.claim-* beside it, to have the draw run again") from error
        return result


def _names_in(folder: str) -> list[str]:
    """The names in a folder, none if it does not exist; raises LogError if it cannot be read."""
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise LogError(f"{folder}: cannot be read: {error.strerror or error}") from error


def _put_new(path: str, document: dict, sync: bool = True) -> bool:
    """Create a file atomically; False if it exists or another process creates it first. ``sync``: see new_file."""
    temporary = temporary_name(path)
    with writing(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            with new_file(temporary, sync) as file:
                file.write(json.dumps(document, allow_nan=False).encode() + b"\n")
            rename_new(temporary, path)
        except FileExistsError:
            return False
        finally:
            remove(temporary)
    if sync:
        sync_directory(path)
    return True


def _read(path: str):
    """A JSON file's content; None if it is gone, or still not valid after some attempts."""
    for wait in (WAIT_SECONDS,) * (READS - 1) + (0,):
        try:
            return json.loads(input_text(path))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LogError(f"{path}: cannot be read: {error.strerror or error}") from error
        except (ValueError, RecursionError):
            time.sleep(wait)
    return None


def _encode_float(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
