"""Collectives of the job's own code, which the checks cannot run: they call the loss on one rank at a time."""
from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Any

import torch.distributed as dist
from torch.distributed import _functional_collectives, distributed_c10d

from ..errors import CommunicationError
from ..watch import collectives
from ..watch.lines import OURS, TORCH, is_own
from ..watch.patches import Patches

OF_TORCH = (*collectives.COMBINE, "broadcast", "broadcast_object_list", "scatter", "barrier", "recv", "irecv",
            "all_gather_tensor", "reduce_scatter_tensor", "all_to_all_single")
OF_HOROVOD = (*collectives.OF_HOROVOD, "broadcast", "broadcast_", "broadcast_async", "broadcast_async_",
              "broadcast_object", "barrier")
TRANSPORT = os.path.join(TORCH, "distributed", "")
CANNOT = ("the doctor calls it on one rank at a time, so the others would never answer; for how to write and test it, "
          "see 'Losses over the global batch' in the guide to workloads")


@contextlib.contextmanager
def refusing_collectives() -> Iterator[None]:
    """Have a collective that the job calls raise a CommunicationError, which names it and the job's function."""
    patches = Patches()

    def follow(module: ModuleType, names: tuple[str, ...] = OF_HOROVOD) -> None:
        for name in names:
            if hasattr(module, name):
                patches.replace(module, name, _refusing)
    try:
        for owner in (dist, distributed_c10d, _functional_collectives):
            follow(owner, OF_TORCH)
        patches.when_imported("horovod.torch", follow)
        yield
    finally:
        patches.undo()


def _refusing(original):
    def communicate(*args: Any, **options: Any) -> Any:
        calls = _calls_of_job()
        if not calls:
            return original(*args, **options)
        inner, outer = calls[0], calls[-1]
        raise CommunicationError(f"{os.path.relpath(inner.f_code.co_filename)}:{inner.f_lineno}: "
                                 f"{outer.f_code.co_qualname} calls {original.__name__}; {CANNOT}")
    return communicate


def _calls_of_job() -> list[FrameType]:
    """The frames of the job that the running collective comes from, the innermost first; none of hvdscale's own. A
    module of torch that communicates counts as the function that hvdscale has called."""
    found: list[FrameType] = []
    frame, through = sys._getframe(2), True
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(OURS):
            return found
        through = through and (name.startswith(TRANSPORT) or f"{os.sep}horovod{os.sep}" in name)
        if is_own(name) or not through and not found:
            found.append(frame)
        frame = frame.f_back
    return found
