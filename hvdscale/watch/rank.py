"""One rank of a watched script, in an interpreter of its own: MODULE PLACE SCRIPT ARGUMENTS ...

    rank = Rank()                       in the main of MODULE, which says who listens
    rank.run([listener], save)

    with watching([listener]):          what is told to them: one set of patches, however many listen
        runpy.run_path("train.py", run_name="__main__")

PLACE is the folder that all ranks share: see runner.py. The rank leaves there what it saw (rank0.record), where it
stands at a SIGUSR1 (rank0.stack), and that it ends in the middle of the script (rank0.stopped).
"""

import contextlib
import faulthandler
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import torch._dynamo  # noqa: F401  as the first optimizer would, for a second

from ..workers.launch import place
from . import checkpoints, collectives, devices, generators, loaders, passes, wrappers
from .lines import OURS as PACKAGE, line_of
from .listener import Listener, Watch
from .runner import ENDED, EXITED, FAILED, RUNNING, STOPPED, arguments_of_rank, file_of, read_task

TOGETHER_SECONDS = 10.0             # that a rank which stops waits for the others
OURS = (*(os.path.join(PACKAGE, room, "") for room in ("watch", "doctor", "scaling")), runpy.__file__, "<frozen runpy>")


@contextlib.contextmanager
def watching(listeners: Sequence[Listener], local_workers: int = 1, workers: int = 1, details: bool = True,
             held_still: bool = False) -> Iterator[Watch]:
    """Tell the listeners what happens in this process, and put everything back at the end.

    details     also what takes time in each update, or waits for a GPU: all but passes, steps, batches and collectives
    held_still  random numbers are: see generators.py
    """
    watch = Watch(listeners, local_workers, workers, details)
    try:
        for each in (generators, devices, loaders, passes, collectives, wrappers, checkpoints):
            each.install(watch)
        if held_still:
            generators.hold_still(watch)
        yield watch
    finally:
        watch.patches.undo()


class Rank:
    """This process, as a rank of the script that its command names."""

    def __init__(self) -> None:
        self.place, self.script = Path(sys.argv[1]), sys.argv[2]
        self.task, self.process = read_task(self.place), place()
        self.arguments = arguments_of_rank(sys.argv[3:], self.process.local_rank)

    def run(self, listeners: Sequence[Listener], save: Callable[[str, str], None], details: bool = True,
            is_cut: Callable[[], bool] = lambda: False) -> NoReturn:
        """Run the script to its end, and end this process.

        save    keeps a state of the rank, one of the above, and the error of a script that failed
        is_cut  whether a StopIteration is not the script's, as its epoch was cut short
        """
        faulthandler.register(signal.SIGUSR1, open(file_of(self.place, self.process.rank, "stack"), "w"))
        save(RUNNING, "")
        if self.task.get("seeded"):         # another one by rank, so that a broadcast that is missing shows
            generators.seed_all(self.process.rank)
        with watching(listeners, self.process.local_size, self.process.size, details, bool(self.task.get("still"))):
            ended = run_script(self.script, self.arguments, bool(self.task.get("module")))
            cut = isinstance(ended, StopIteration) and is_cut()
            error, finished = ("", STOPPED) if cut else (failure_of(ended), ENDED)
            save(FAILED if error else finished, error)
        _exit(int(bool(error)))

    def leave(self) -> NoReturn:
        """End this process together with the others, so that none of them loses a message that it waits for."""
        file_of(self.place, self.process.rank, "stopped").touch()
        until = time.monotonic() + TOGETHER_SECONDS
        while time.monotonic() < until and len(list(self.place.glob("rank*.stopped"))) < self.process.size:
            time.sleep(0.01)
        _exit(0)


def _exit(code: int) -> NoReturn:
    """End without what the script left to do at exit, but for MPI, whose launcher takes that for a failure."""
    if not code and "mpi4py.MPI" in sys.modules and not sys.modules["mpi4py.MPI"].Is_finalized():
        sys.modules["mpi4py.MPI"].Finalize()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_script(script: str, arguments: Sequence[str], module: bool = False) -> BaseException | None:
    """Run the script, or as python -m would the ``module``, to its end; the error that it ended with, if any."""
    path, sys.argv = os.path.abspath(script), [script, *arguments]
    sys.path[:] = [os.getcwd() if module else os.path.dirname(path), *(one for one in sys.path if one)]
    try:
        if module:
            name = script.removesuffix(".py").removesuffix("/__main__").replace("/", ".")
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(path, run_name="__main__")
    except BaseException as error:
        return error
    return None


def failure_of(error: BaseException | None) -> str:
    """The script's traceback without the frames of this package, or what it exited with; "" where it ended well."""
    if error is None or isinstance(error, SystemExit) and error.code in (None, 0):
        return ""
    if isinstance(error, SystemExit):
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        return f"{EXITED} {error.code} ({line_of(frames[-1])})" if isinstance(error.code, int) else str(error.code)
    if need := devices.need_of_gpu(error):
        return need
    told: traceback.TracebackException | None = traceback.TracebackException.from_exception(error)
    seen: list[traceback.TracebackException] = []
    while told is not None and told not in seen:
        seen.append(told)
        told.stack[:] = [frame for frame in told.stack if not frame.filename.startswith(OURS)]
        told = told.__cause__ or told.__context__
    return "".join(seen[0].format())
