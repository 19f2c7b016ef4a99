"""Workers that the script starts itself: they run already, so its function is called as the worker that this one is."""
from __future__ import annotations

import inspect
import os
import sys
from multiprocessing.process import BaseProcess
from types import SimpleNamespace

import torch.multiprocessing

from ..formatting.numbers import counted
from .lines import called_by_script, line_of_call
from .listener import Watch
from .remarks import PROCESSES

INSTEAD = "The workers that the script starts itself ({}) were the doctor's."
OTHER_COUNT = ("{}: it starts {}, and this run has {}; take the number from torch.cuda.device_count(), or from an "
               "argument of the script for which the doctor is given {{workers}}")
BY_LIBRARY = ("a library that the script calls starts workers itself (torch.multiprocessing). The doctor starts them, "
              "as torchrun does: call the function of one worker where RANK is set")
NOT_FOLLOWED = f"{PROCESSES} ({{}}); torch.multiprocessing.spawn is followed, and so is a script that torchrun starts"


def install(watch: Watch) -> None:
    """Have the script's ``spawn`` and ``start_processes`` call its function in this process."""
    def calling(original):
        signature = inspect.signature(original)

        def spawn(*args, **options):
            if not called_by_script():
                raise SystemExit(BY_LIBRARY)
            given = signature.bind(*args, **options)
            given.apply_defaults()
            asked, line = given.arguments, line_of_call()
            if asked["nprocs"] != watch.local_workers:
                raise SystemExit(OTHER_COUNT.format(line, counted(asked["nprocs"], "worker"), watch.local_workers))
            watch.tell("instead", INSTEAD.format(line))
            asked["fn"](int(os.environ.get("LOCAL_RANK", 0)), *asked["args"])
            if asked["join"]:
                return None
            return SimpleNamespace(processes=[], pids=list, join=lambda timeout=None, grace_period=None: True)
        return spawn

    def noting_start(original):
        def start(process):
            if called_by_script():
                watch.tell("remark", NOT_FOLLOWED.format(line_of_call()))
            return original(process)
        return start
    watch.patches.replace(BaseProcess, "start", noting_start)
    for owner in (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
        for name in ("spawn", "start_processes"):
            watch.patches.replace(owner, name, calling)
