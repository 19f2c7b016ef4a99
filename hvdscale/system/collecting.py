"""When Python's garbage collector is kept from objects that stay."""
from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Without passes of the garbage collector, nor later ones over what was made meanwhile: they take a third of the
    time over a log of 200,000 trials, and a quarter of that of imports."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was_on:
            gc.enable()
