"""Checkpoints, which torch, torch.distributed.checkpoint and safetensors save and load; and files that are written,
read, or get another name."""

import functools
import inspect
import os
import sys

import torch

from .lines import LIBRARY
from .listener import Watch

SHARDED = "torch.distributed.checkpoint"
CODE = (".py", ".pyc", ".so")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# module -> function -> whether it saves, its parameter of what is saved, and that of the place
FUNCTIONS = {f"{SHARDED}.state_dict_saver": {"save": (True, "state_dict", "checkpoint_id"),
                                             "async_save": (True, "state_dict", "checkpoint_id")},
             f"{SHARDED}.state_dict_loader": {"load": (False, "state_dict", "checkpoint_id")},
             "safetensors.torch": {"save_file": (True, "tensors", "filename"), "load_file": (False, "", "filename")}}
ELSEWHERE = (*LIBRARY, "/proc", "/dev", "/sys")


def install(watch: Watch) -> None:
    if not watch.details:
        return
    patches, watching = watch.patches, [True]           # an audit hook cannot be removed
    patches.on_undo(watching.clear)

    def hook(event: str, args: tuple) -> None:
        if not watching or event not in ("open", "os.rename"):
            return
        if event == "os.rename":
            watch.tell("renamed", *(os.path.abspath(os.fsdecode(one)) for one in args[:2]))
        elif isinstance(args[0], (str, bytes)):
            path, flags = os.fsdecode(args[0]), args[2] if isinstance(args[2], int) else 0
            if flags & WRITING:
                watch.tell("written", os.path.realpath(path))
            if not flags & os.O_ACCMODE and not path.endswith(CODE) and not path.startswith(ELSEWHERE):
                watch.tell("read", os.path.realpath(path))
    sys.addaudithook(hook)
    patches.around(torch, "save", _telling(watch, True, "obj", "f"))
    patches.around(torch, "load", _telling(watch, False, "", "f"))
    for name, functions in FUNCTIONS.items():
        for function, how in functions.items():
            patches.when_imported(name, functools.partial(_follow, watch, function, how))


def _follow(watch: Watch, name: str, how: tuple[bool, str, str], module) -> None:
    for owner in (module, sys.modules.get(module.__name__.rpartition(".")[0])):
        if getattr(owner, name, None) is not None and (owner is module or owner.__name__ == SHARDED):
            watch.patches.around(owner, name, _telling(watch, *how))


def _telling(watch: Watch, saves: bool, state: str, place: str):
    """What is done around a call: a save is told before and after it, and a load after it."""
    def telling(original, *args, **options):
        given = inspect.signature(original).bind(*args, **options).arguments
        path = _path_of(*map(given.get, (place, "storage_writer", "storage_reader")))
        if saves:
            watch.tell("saving", path, given.get(state))
            if isinstance(given.get("f"), (str, os.PathLike)):          # from C++, which raises no event
                watch.tell("written", path)
        result = original(*args, **options)
        watch.tell(*("saved", path) if saves else ("loaded", path))
        return result
    return telling


def _path_of(*places) -> str:
    """The path of the first of these that has one, without links; empty for a buffer in memory."""
    for one in places:
        found = one if isinstance(one, (str, os.PathLike)) else getattr(one, "name", None) or getattr(one, "path", None)
        if isinstance(found, (str, os.PathLike)):
            return os.path.realpath(found)
    return ""
