"""A process that must not outlive the one that started it."""
from __future__ import annotations

import multiprocessing
import os
import threading


def end_with_parent(*_: object) -> None:
    """End this process of multiprocessing when the one that it works for ends, in whatever way."""
    def wait():
        multiprocessing.parent_process().join()
        os._exit(1)
    threading.Thread(target=wait, daemon=True).start()
