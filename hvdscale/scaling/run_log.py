"""The log of a timed run, from the records of its ranks."""
from __future__ import annotations

import json
import math
import platform
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import __version__
from ..errors import HvdscaleError
from ..formatting.numbers import counted
from ..log.schema import RANK_PARTS, UNKNOWN_SEED, Status, rank_column
from ..log.writer import LogWriter

MODEL = "script"        # what the model of a script is called: it is not known
LEAST = 3               # updates that are needed


def write_log(path: str, script: str, records: Sequence[Mapping[str, Any]], local_batch: int | None,
              execution: Mapping[str, Any], asked: Mapping[str, Any], remarks: Sequence[str]) -> None:
    """Write one trial, whose steps are the updates that were timed on all ranks, but for those that begin an epoch or
    follow an evaluation on some rank; ``local_batch``: as the script was told. Raises HvdscaleError and LogError."""
    count = min(len(record["updates"]["step"]) for record in records)
    apart = np.any([record["updates"]["apart"][:count] for record in records], axis=0)
    kept = np.flatnonzero(~apart)
    if len(kept) < LEAST:
        raise HvdscaleError(f"{script} on {counted(len(records), 'worker')}: of {counted(count, 'update')} that were "
                            f"timed {len(kept)} neither begin an epoch nor follow an evaluation, and {LEAST} are "
                            "needed; raise --updates")
    times = {rank_column(record["rank"], part): np.array(record["updates"][part])[kept]
             for record in records for part in RANK_PARTS}
    batch, tokens = _global_batch(script, records, kept, local_batch), _counts(records, "tokens", kept).sum(0)
    passes = max(1, int(np.median(_counts(records, "batches", kept))))      # more than 1 where gradients accumulate
    first, local = records[0], -(-batch // (len(records) * passes))
    writer = LogWriter(path, metrics=(), metaparameters=("learning_rate",), ranks=len(records),
                       optional=("tokens", "data_seconds", "compute_seconds", "communication_seconds"),
                       attributes={"versions": {"hvdscale": __version__, "python": platform.python_version(),
                                                "numpy": np.__version__, "torch": first["torch"]}}, overwrite=True)
    plan = {"problem": {"script": script, "global_batch": batch}, "measurement": {},
            "execution": {**execution, "local_batch": local, "accumulate": passes},
            "measured": {"peak_memory_bytes": [record["memory"] for record in records],
                         "parameters": first["parameters"],
                         "watts": [record["watts"] for record in records if record["watts"] is not None],
                         "left_out": int(apart.sum()), "remarks": list(remarks)},
            "asked": dict(asked)}
    writer.append("trials", id=0, status=Status.RUNNING, stop_reason="", dataset=script, model=MODEL,
                  optimizer=first["optimizer"], global_batch=batch, local_batch=local,
                  accumulation=passes, ghost_batch=0, workers=len(records), seed=UNKNOWN_SEED, budget_steps=len(kept),
                  plan=json.dumps(plan), **{"metaparameters/learning_rate": first["rate"]})
    writer.append("restarts", trial=0, first_step=0, workers=len(records), host=socket.gethostname(),
                  device=first["device"], time=time.time(), previous_end="")
    whole, data, waiting = (times[rank_column(0, part)] for part in ("step", "data", "waiting"))
    writer.extend("steps", len(kept), trial=0, step=range(1, len(kept) + 1), loss=math.nan, lr=first["rate"],
                  step_seconds=whole, data_seconds=data, communication_seconds=waiting,
                  compute_seconds=np.maximum(whole - data - waiting, 0.0),
                  tokens=tokens if tokens.all() else math.nan, **times)
    writer.set_status(0, Status.COMPLETE, f"{counted(len(kept), 'update')} timed")
    writer.finish()


def _counts(records: Sequence[Mapping[str, Any]], name: str, kept: np.ndarray) -> np.ndarray:
    return np.array([np.array(record["updates"][name])[kept] for record in records], float)


def unseen_passes(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """The remark that an update's examples may be of several passes, where they were not seen."""
    passes, batches = (int(np.median(records[0]["updates"][name] or [0])) for name in ("passes", "batches"))
    return [f"the script makes {passes} backward passes an update, and no DataLoader shows their examples: the batch "
            f"is taken for that of the whole update. If each pass has that many, give {passes} times the batch."
            ] if passes > 1 and not batches else []


def _global_batch(script: str, records: Sequence[Mapping[str, Any]], kept: np.ndarray, local_batch: int | None) -> int:
    """Examples of the typical update on all ranks, as the loaders returned them; else as the script was told."""
    seen = int(np.median(_counts(records, "examples", kept).sum(0)))
    if seen or local_batch:
        return seen or local_batch * len(records)
    raise HvdscaleError(f"{script}: the examples of an update were not seen, as no DataLoader of torch returned them; "
                        "give --batch, the examples of a worker's update")
