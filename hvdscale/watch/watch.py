"""One set of patches, and those who listen.

    with watching([listener]):
        runpy.run_path("train.py", run_name="__main__")
"""

import contextlib
from collections.abc import Iterator, Sequence

from . import checkpoints, collectives, devices, generators, loaders, passes, wrappers
from .listener import Listener, Watch


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
