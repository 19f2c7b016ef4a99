"""Signals that ask a run to stop, and the end of whoever reads its output: a closed terminal is both."""

import contextlib
import errno
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import OutputError, SignalEnd, StoppedError

STOPPING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
STOPPED = "stopped by a signal before the first step or after the last one; the same command resumes"
_stopped: list[bool] = []           # one entry where all ranks have agreed to
_postponed: list[bool] = []         # one entry a signal that waits
_raises = [True]                    # the innermost: whether a signal raises at once


def heed(handler: Callable | int, but_for: tuple[int, ...] = ()) -> dict[int, Any]:
    """Have these signals handled; returns the handlers before. SIGHUP stays ignored where it is, as under nohup."""
    return {number: signal.signal(number, handler) for number in STOPPING
            if number not in but_for and not (number == signal.SIGHUP and _ignores_hangups())}


def _ignores_hangups() -> bool:
    return signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def note_stop() -> None:
    """From now on this process ends, as a signal to one of the ranks asked for."""
    _stopped.append(True)


def stop_before_the_steps(*_: object) -> None:
    """The handler of signals to a training command; during the steps they are votes."""
    if _stopped:
        return
    if _raises[-1]:
        raise StoppedError(STOPPED)
    _postponed.append(True)


def postpone_stops() -> None:
    """From now on a signal waits for the next ``heeding_stops``: elsewhere other ranks wait for this one."""
    _raises[:] = [False]


@contextlib.contextmanager
def heeding_stops() -> Iterator[None]:
    """A section whose errors all ranks share: a signal raises StoppedError, at once if one was postponed."""
    _raises.append(True)
    try:
        if take_postponed():
            raise StoppedError(STOPPED)
        yield
    finally:
        _raises.pop()


def take_postponed() -> bool:
    """Whether a signal was postponed; it is then no more."""
    there = bool(_postponed)
    _postponed.clear()
    return there


def guard_streams(lasting: bool = False) -> None:
    """Let what cannot be printed be one error: OutputError, BrokenPipeError where the reader has left; on stderr none.
    Characters that the locale's encoding lacks are printed as escapes. ``lasting``: no error; what nobody reads, or no
    disk takes, is lost from then on."""
    for number in range(3):                     # else the next file to be opened becomes stdout
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
            if number == 1 and not lasting:
                os.set_inheritable(os.dup2(os.open(os.devnull, os.O_RDONLY), 1), True)       # no write succeeds
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name) or open(number, "w", closefd=False)
        raw = getattr(getattr(stream, "buffer", None), "raw", getattr(stream, "buffer", None))
        if not isinstance(raw, _Guarded):
            try:
                raw = _Guarded(stream.fileno(), "w", closefd=False)
            except (AttributeError, io.UnsupportedOperation):       # a test's
                continue
            stream.flush()
            stream = io.TextIOWrapper(raw if stream.write_through else io.BufferedWriter(raw), stream.encoding,
                                      "backslashreplace", line_buffering=stream.line_buffering,
                                      write_through=stream.write_through)
        raw.lasting = lasting or number == 2
        setattr(sys, name, stream)


def end_at_signals() -> None:
    """Have TERM and HUP raise SignalEnd, so that temporary files are removed."""
    def end(number: int, _: object) -> None:
        raise SignalEnd(number)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, end)


def has_readers() -> bool:
    """Whether all output has been taken so far; always under nohup."""
    return not _Guarded.lost or _ignores_hangups()


class _Guarded(io.FileIO):
    """A file that becomes /dev/null once it cannot be written, its pipe or terminal has no other end."""

    lasting = lost = False

    def write(self, data):
        try:
            return super().write(data) if len(data) else 0          # click tries that
        except OSError as error:
            failure = error
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self.fileno())
        os.close(null)
        _Guarded.lost = _Guarded.lost or failure.errno in (errno.EPIPE, errno.EIO)
        if self.lasting:
            if self.fileno() == 1 and not _Guarded.lost:
                os.write(2, f"Note: standard output cannot be written: {failure.strerror}; the run continues without "
                            "it\n".encode())
            return super().write(data)
        if failure.errno == errno.EPIPE:
            raise failure
        raise OutputError(f"standard output cannot be written: {failure.strerror}")
