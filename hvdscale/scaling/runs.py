"""A script at several worker counts: each run is started, watched by its ranks, and becomes a log.

    OUT/w4-r2.h5     repeat 2 at 4 workers;  OUT/w4-r2.out  what it printed

A run with a finished log is not repeated. One that fails leaves no log, and the others stand.
"""

import contextlib
import hashlib
import json
import math
import os
import platform
import socket
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from ..errors import HvdscaleError
from ..formatting.numbers import counted
from ..formatting.screen import Tell
from ..log.schema import RANK_PARTS, UNKNOWN_SEED, Status, rank_column
from ..log.writer import LogWriter
from ..system.cores import usable_cores, without_core
from ..system.files import TEMPORARY, clear_leavings, own_folder
from ..system.outputs import PRINTED, Kind, refuse_foreign
from ..training.series import SeriesRun
from ..watch import runner
from ..watch.place import await_path
from ..watch.runner import (EXITED, FAILED, MADE, RECORD, RUNNING, TRACE, TRACED, RunEnd, ScriptRequest,
                            describe_failure, file_of)
from ..workers.launch import Process, killed_process, last_words, launch_command, launch_environment

RANK = "hvdscale.scaling.rank"
OF_TRACES = Kind("a compressed file", lambda head: head[:2] == b"\x1f\x8b")
MODEL = "script"        # what the model of a script is called: it is not known
LEAST = 3               # updates that are needed
MOST_WORDS = 200        # characters of what a script printed, in an error


def keys_of(asked: ScriptRequest, workers: int) -> dict[str, Any]:
    digest = hashlib.sha256(Path(asked.script).read_bytes()).hexdigest()[:12]
    keys = {"script": asked.script, "source": digest, "arguments": list(asked.arguments_on(workers)),
            "warm_up": asked.warm_up, "updates": asked.updates, "threads": asked.threads}
    return keys | {"profile": True} if asked.profile else keys


def carry_out(run: SeriesRun, asked: ScriptRequest, launcher: str | None, hosts: str | None, tell: Tell) -> list[str]:
    """Run the script on the run's workers, and write the log; returns remarks. Raises HvdscaleError."""
    with _opened(run, asked, uuid.uuid4().hex) as folder:
        command = launch_command(launcher, run.workers, asked.command(run.workers, RANK, folder), hosts)
        end = runner.run_command(command, asked, launch_environment(), run.output, partial(_show, asked, folder, tell))
        return _collect(run, asked, folder, launcher, end)


def carry_out_launched(run: SeriesRun, asked: ScriptRequest, process: Process, tell: Tell) -> list[str]:
    """The same as this rank of a launch; rank 0 writes the log. Raises HvdscaleError."""
    mark = hashlib.sha256(process.job.encode()).hexdigest()
    if process.rank:
        folder = _folder_of(run, mark)
        await_path(folder / runner.TASK, asked.seconds, "--out must be a folder that all hosts share")
        runner.run_launched(asked, process, RANK, folder, launch_environment(), output=run.output)
        return []
    with _opened(run, asked, mark) as folder:
        end = runner.run_launched(asked, process, RANK, folder, launch_environment(), output=run.output,
                                  look=partial(_show, asked, folder, tell))
        return _collect(run, asked, folder, process.launcher, end)


def _show(asked: ScriptRequest, folder: Path, tell: Tell) -> None:
    text, most = (folder / MADE).read_text() if (folder / MADE).exists() else "", asked.warm_up + asked.updates
    made = min(int(text or 0), most)
    tell(f"{made} of {most} updates, {asked.warm_up} of them warm-up" if made else "starting")


def _folder_of(run: SeriesRun, mark: str) -> Path:
    folder, name = os.path.split(run.log)
    return Path(folder, f".{name.removesuffix('.h5')}.{mark[:8]}-0-{mark[8:16]}{TEMPORARY}")


@contextlib.contextmanager
def _opened(run: SeriesRun, asked: ScriptRequest, mark: str) -> Iterator[Path]:
    """A new folder in which the ranks find what to do, while the run lasts; what an earlier run printed goes."""
    folder = _folder_of(run, mark)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        clear_leavings(folder.parent)
        with own_folder(folder):
            refuse_foreign(run.output, PRINTED)
            Path(run.output).unlink(missing_ok=True)
            runner.write_task(asked, folder)
            yield folder
    except OSError as error:
        raise HvdscaleError(f"{folder}: cannot be used: {error.strerror}; choose another --out") from None


def _collect(run: SeriesRun, asked: ScriptRequest, folder: Path, launcher: str | None, end: RunEnd) -> list[str]:
    """Write the log of a run that has ended, and return its remarks; raises HvdscaleError saying why there is none."""
    left = [file_of(folder, rank, RECORD) for rank in range(run.workers)]
    records = [json.loads(path.read_text()) for path in left if path.exists()]
    _refuse_failed(run, asked, folder, records, end)
    first = records[0]
    execution = {"workers": run.workers, "local_workers": first["local_workers"], "device": first["device"],
                 "threads": first["threads"], "launcher": launcher or "none", "untimed_passes": asked.warm_up}
    if first["device"] == "cpu":
        execution["cores"] = len(usable_cores())
    remarks = sorted({remark for record in records for remark in record["remarks"]}) + unseen_passes(records)
    if asked.profile:
        remarks += _keep_traces(run, folder, records)
    write_log(run.log, Path(asked.script).name, records, asked.local_batch(run.workers), execution, run.keys, remarks)
    return remarks


def _keep_traces(run: SeriesRun, folder: Path, records: Sequence[dict[str, Any]]) -> list[str]:
    """The traces go beside the log; where they lie, or why there are none."""
    if any(record["operators"] is None for record in records):
        return [f"the script ended before {TRACED} more updates, so there is no trace; lower --updates"]
    from .rank import communication_of                       # it needs torch
    base, traces = run.log.removesuffix(".h5"), [file_of(folder, record["rank"], TRACE) for record in records]
    for record, trace, found in zip(records, traces, communication_of(traces)):
        record["profile"] = {"operators": record["operators"], **found}
        refuse_foreign(to := f"{base}.rank{record['rank']}.json.gz", OF_TRACES)
        os.replace(trace, to)
    return [f"{base}.rank*.json.gz: traces for ui.perfetto.dev"]


def _refuse_failed(run: SeriesRun, asked: ScriptRequest, folder: Path, records: list[dict], end: RunEnd) -> None:
    on = f"{asked.script} on {counted(run.workers, 'worker')}"
    _, _, printed = Path(run.output).read_text(errors="replace").partition("\n")
    words = last_words(printed)[:MOST_WORDS]
    failures = {record["rank"]: record for record in records if record["state"] == FAILED}
    failed = runner.first_to_fail(folder, failures)
    if failed is not None:
        error, made = runner.line_of_error(failures[failed]["error"]), failures[failed]["made"]
        said = f": {words}" if words and failures[failed]["error"].startswith(EXITED) else ""
        raise HvdscaleError(describe_failure(asked, run.workers, failed, made, error + said))
    if end.late:
        raise HvdscaleError(f"{on} was ended after {asked.seconds:g} s, before {asked.warm_up + asked.updates} updates "
                            f"on every rank; --seconds allows more, fewer --updates need less")
    sizes = {record["workers"] for record in records}
    if sizes and sizes != {run.workers}:
        raise HvdscaleError(f"{on}: the launcher started {counted(min(sizes), 'worker')} instead")
    ended = [record for record in records if record["state"] != RUNNING]
    if len(ended) < run.workers:
        said = killed_process(printed) or words
        raise HvdscaleError(f"{on} ended with exit code {end.code}{said and f': {said}'}; "
                            f"{counted(run.workers - len(ended), 'rank')} of {run.workers} left no times")
    made = min(record["made"] for record in records)
    if not made:
        raise HvdscaleError(f"{on} ended before its first update: no torch.optim.Optimizer made a step"
                            f"{words and f'; the last that it printed: {words}'}")
    if made <= asked.warm_up + 1:
        raise HvdscaleError(f"{on} ended after {counted(made, 'update')}, of which {asked.warm_up} are warm-up; give "
                            "the script more to do, or lower --warm-up")


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
    # of the typical update on all ranks, as the loaders returned them; else as the script was told
    batch = int(np.median(_counts(records, "examples", kept).sum(0))) or (local_batch or 0) * len(records)
    if not batch:
        raise HvdscaleError(f"{script}: the examples of an update were not seen, as no DataLoader of torch returned "
                            "them; give --batch, the examples of a worker's update")
    tokens = _counts(records, "tokens", kept).sum(0)
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
                         **{name: [record[name] for record in records if record[name] is not None]
                            for name in ("watts", "clock", "slowed_by", "line")},
                         "without_core": [without_core([record["look"] for record in records], first["local_workers"])],
                         "profile": [record["profile"] for record in records if record.get("profile")],
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
