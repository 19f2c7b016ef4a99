"""Locks of files, and that of a log: one writer at a time. HDF5's own is dropped when readers are let in (SWMR).

    with Lock.take("runs/w8.h5"): ...     flock on runs/w8.h5.lock, which names host, process and job
    holder("runs/w8.h5")                  who writes it now, or None
"""
from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import stat
import time
from dataclasses import dataclass

from ..errors import LogError
from .inputs import input_text

SUFFIX = ".lock"
CONSENT = "HVDSCALE_TAKE_OVER"      # 1: as ``take_over``, in this process and all that it starts
BEGIN = b'{"host": '
JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")
BUSY = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
ATTEMPTS, WAIT_SECONDS = 5, 0.02        # a reader that looks whether a log is live holds its lock for an instant


_taken: list[tuple[int, Lock]] = []             # those held, with the processes that took them


@dataclass
class Lock(contextlib.AbstractContextManager):
    """A lock that is held; ``release`` gives it back. A process that dies gives it back too."""

    path: str
    descriptor: int

    @classmethod
    def take(cls, log: str, take_over: bool = False, attempts: int = ATTEMPTS) -> Lock:
        """The lock of ``log``; LogError where a living process holds it, or where the file system refuses locks.

        take_over    continue where locks are refused: the user vouches that no other process writes this log
        attempts     how often to try while it is held, WAIT_SECONDS apart
        """
        path = log + SUFFIX
        take_over, fresh = take_over or os.environ.get(CONSENT) == "1", not os.path.lexists(path)
        for attempt in range(attempts):
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)   # it will be emptied
            except OSError as error:
                raise LogError(f"{log}: cannot be written here: {path}: {error.strerror}") from error
            refusal = flock(descriptor)
            if (refusal is None or take_over and refusal not in BUSY) and is_file(descriptor, path):
                lock = cls(path, descriptor)
                _taken[:] = [*(one for one in _taken if one[1].descriptor >= 0), (os.getpid(), lock)]
                lock._sign(log)
                return lock
            os.close(descriptor)
            if refusal in BUSY:
                time.sleep(WAIT_SECONDS)
            elif refusal is not None:
                with contextlib.suppress(OSError):
                    if fresh:
                        os.unlink(path)
                owner = _read(path)
                last = f" {path} was last signed by {describe(owner)}." if owner else ""
                raise LogError(f"{log}: this file system refuses locks ({errno.errorcode.get(refusal, refusal)}), so "
                               f"another process that writes the same log would go unseen.{last} If none does, add "
                               f"--take-over (hvdscale-train: --set take_over=true), or set {CONSENT}=1")
        owner = _read(path)
        ours = "which is this one: close that run first" if {**owner, **this_process()} == owner else ""
        raise LogError(f"{log}: is being written by {describe(owner)}{ours and ', '}"
                       f"{ours or '; wait for it to end'}, or choose another log")

    def _sign(self, log: str):
        regular = stat.S_ISREG(os.fstat(self.descriptor).st_mode)
        if not regular or os.pread(self.descriptor, len(BEGIN), 0) not in (b"", BEGIN):
            os.close(self.descriptor)           # such as uv.lock, of which the log would be uv
            self.descriptor = -1
            raise LogError(f"{log}: {self.path} is the file of another program, and not replaced; give the log "
                           "another name")
        try:
            os.ftruncate(self.descriptor, 0)
            os.pwrite(self.descriptor, json.dumps({**this_process(), "time": time.time()}).encode() + b"\n", 0)
        except OSError as error:                # a full disk
            self.release()
            raise LogError(f"{log}: cannot be written: {error.strerror}; nothing of it was left") from error

    def moved_to(self) -> str | None:
        """None while the lock file is where it was made; else where it is now, "" where nothing says."""
        if self.descriptor < 0 or is_file(self.descriptor, self.path):
            return None
        with contextlib.suppress(OSError):          # Linux
            now = os.readlink(f"/proc/self/fd/{self.descriptor}")
            return now if is_file(self.descriptor, now) else ""
        return ""

    def release(self):
        """Removes the lock file and lets go; safe to call twice."""
        if self.descriptor < 0:
            return
        if is_file(self.descriptor, self.path):
            with contextlib.suppress(OSError):      # in a folder that is read-only by now: nobody holds it
                os.unlink(self.path)
        os.close(self.descriptor)
        self.descriptor = -1

    def __exit__(self, *_):
        self.release()


def unlink_own() -> None:
    """Remove the files of what this process holds, at its end by a signal, which may fall between any two statements.
    A descriptor may be closed and not yet noted to be, so that its number is another file's: none is closed here."""
    for process, lock in _taken:
        with contextlib.suppress(OSError):
            if process == os.getpid() and lock.descriptor >= 0 and is_file(lock.descriptor, lock.path):
                os.unlink(lock.path)


def holder(log: str) -> dict | None:
    """Who holds the log's lock: host, pid, job, time; None if no living process does. Where the file system refuses
    locks, a lock file that is there counts as held."""
    path = log + SUFFIX
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)     # a pipe keeps nobody waiting
    except OSError:
        return None
    try:
        return _read(path) if flock(descriptor, shared=True) is not None else None
    finally:
        os.close(descriptor)


def this_process() -> dict:
    """Host, process id and the batch system's job, "" without one, of this process."""
    job = next((os.environ[name] for name in JOB_VARIABLES if os.environ.get(name)), "")
    return {"host": platform.node(), "pid": os.getpid(), "job": job}


def describe(owner: dict) -> str:
    """``process 4711 on node7 (job 99)``"""
    job = f" (job {owner['job']})" if owner.get("job") else ""
    return f"process {owner.get('pid', 'unknown')} on {owner.get('host', 'an unknown host')}{job}"


def flock(descriptor: int, shared: bool = False, wait: bool = False) -> int | None:
    """None once the kernel's lock on a file is held, else the error number, one of BUSY where another has it. The
    kernel gives the lock back when the file is closed, or its last process dies."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        return error.errno
    return None


def is_file(descriptor: int, path: str | os.PathLike) -> bool:
    """Whether ``path`` still is the file that was opened: its last holder may have removed it in between."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def _read(path: str) -> dict:
    try:
        owner = json.loads(input_text(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return owner if isinstance(owner, dict) else {}
