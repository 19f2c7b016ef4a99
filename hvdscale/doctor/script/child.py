"""One rank's process of the examined script: it is forked from the doctor's, runs the script and ends with a record."""
from __future__ import annotations

import faulthandler
import gc
import os
import random
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
import torch._dynamo  # as the first optimizer of each child would, for a second

from ...system.cores import usable_cores
from ...system.parent import ending_with_this_process
from ...watch.script import failure_of, run_script
from ...watch.watch import watching
from ...workers.launch import Process
from .listen.batches import Batches
from .listen.calls import Calls
from .listen.losses import Losses
from .listen.session import Session
from .listen.updates import Updates
from .record import ENDED, FAILED, STOPPED, Record

TOGETHER_SECONDS = 10.0             # that a rank which stops waits for the others


# where a worker's batch, that of all together, and the number of workers are in the script's arguments
LOCAL, GLOBAL, WORKERS = "{local}", "{global}", "{workers}"


@dataclass(frozen=True)
class ScriptRequest:
    """What is to be examined.

    batch    the global batch, for LOCAL and GLOBAL in the arguments; None: these are taken as they are
    updates  to watch before the epoch is cut short;  seconds  that a run may take
    """

    script: str
    arguments: tuple[str, ...]
    batch: int | None
    workers: int
    updates: int
    seconds: float

    def arguments_on(self, workers: int) -> tuple[str, ...]:
        marked = {WORKERS: workers}
        if self.batch is not None:
            marked.update({LOCAL: self.batch // workers, GLOBAL: self.batch})
        return tuple(reduce(lambda one, mark: one.replace(mark, str(marked[mark])), marked, one)
                     for one in self.arguments)


def fork(asked: ScriptRequest, process: Process, folder: Path, records: Path, environment: dict[str, str]) -> int:
    """Start the process of a rank, which runs in the folder; returns its process id. It leads a process group of its
    own. ``records``: the folder of the records."""
    sys.stdout.flush()
    sys.stderr.flush()
    die_with_doctor = ending_with_this_process()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        die_with_doctor()
        _detach(records, process.rank)
        os.environ.clear()
        os.environ.update(environment)
        code = _watch(asked, process, folder, records)
    except BaseException:
        traceback.print_exc()
    finally:
        _exit(code)


def output_of(records: Path, rank: int) -> str:
    """What the rank's process wrote to stderr."""
    try:
        return (records / f"rank{rank}.stderr").read_text(errors="replace")
    except FileNotFoundError:
        return ""


def stack_of(records: Path, rank: int) -> Path:
    """The file in which the rank's process writes where it stands, each time it gets SIGUSR1."""
    return records / f"rank{rank}.stack"


def _detach(records: Path, rank: int) -> None:
    """Take the process out of the doctor's group, signals and streams."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    for descriptor, name in enumerate((os.devnull, records / f"rank{rank}.stdout", records / f"rank{rank}.stderr")):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC if descriptor else os.O_RDONLY
        opened = os.open(name, flags, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = (open(descriptor, mode, closefd=False)
                                         for descriptor, mode in enumerate("rww"))


def _watch(asked: ScriptRequest, process: Process, folder: Path, records: Path) -> int:
    """Run the script to its end or to its stop; returns the exit code."""
    random.seed()                       # as in a process of its own: the fork has the doctor's
    np.random.seed()
    torch.seed()
    cores = len(usable_cores()) // max(asked.workers, process.local_size)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or max(1, cores)))
    gc.enable()
    os.chdir(folder)
    sys.dont_write_bytecode = True
    faulthandler.register(signal.SIGUSR1, open(stack_of(records, process.rank), "w"))
    record = Record(process.rank, process.size)
    session = Session(record, records, asked.updates, lambda: _leave(session, process.size))
    batches, losses = Batches(session), Losses()
    listeners = batches, losses, Updates(session, batches, losses), Calls(session, folder)
    with watching(listeners, process.local_size, process.size):
        error = run_script(asked.script, asked.arguments_on(process.size))
        cut = isinstance(error, StopIteration) and any(one.cut is not None for one in record.iterations)
        record.error = "" if cut else failure_of(error)
        record.state = STOPPED if cut else FAILED if record.error else ENDED
        session.save()
    return int(record.state == FAILED)


def _leave(session: Session, workers: int) -> NoReturn:
    """End this process together with the others, so that none of them loses a message that it waits for."""
    session.save()
    (session.folder / f"rank{session.record.rank}.stopped").touch()
    until = time.monotonic() + TOGETHER_SECONDS
    while time.monotonic() < until and len(list(session.folder.glob("rank*.stopped"))) < workers:
        time.sleep(0.01)
    _exit(0)


def _exit(code: int) -> NoReturn:
    """End without what the script left to do at exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
