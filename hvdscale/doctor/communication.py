"""Collectives of the job's own code, which the checks cannot run: they call the loss on one rank at a time."""
from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch.distributed as dist
from torch.distributed import _functional_collectives, distributed_c10d

from ..errors import CommunicationError
from ..watch import collectives
from ..watch.lines import OURS, TORCH
from ..watch.patches import Patches

OF_TORCH = (*collectives.COMBINE, "broadcast", "broadcast_object_list", "scatter", "barrier", "recv", "irecv",
            "all_gather_tensor", "reduce_scatter_tensor", "all_to_all_single")
OF_HOROVOD = (*collectives.OF_HOROVOD, "broadcast", "broadcast_", "broadcast_async", "broadcast_async_",
              "broadcast_object", "barrier")
TRANSPORTS = (os.path.join(TORCH, "distributed", ""), f"{os.sep}horovod{os.sep}", __file__)    # not the job's own
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
        frame = sys._getframe(1)
        while frame.f_back and any(room in frame.f_code.co_filename for room in TRANSPORTS):
            frame = frame.f_back
        if frame.f_code.co_filename.startswith(OURS):
            return original(*args, **options)
        raise CommunicationError(f"{os.path.relpath(frame.f_code.co_filename)}:{frame.f_lineno}: "
                                 f"{frame.f_code.co_qualname} calls {original.__name__}; {CANNOT}")
    return communicate
