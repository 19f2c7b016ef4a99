"""A script at several worker counts: each run is started, watched by its ranks, and becomes a log.

    OUT/w4-r2.h5     repeat 2 at 4 workers;  OUT/w4-r2.out  what it printed

A run with a finished log is not repeated. One that fails leaves no log, and the others stand.
"""
from __future__ import annotations

import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import HvdscaleError
from ..formatting.numbers import counted
from ..system.cores import usable_cores
from ..system.files import TEMPORARY, clear_leavings, own_folder
from ..system.outputs import PRINTED, refuse_foreign
from ..training.series import SeriesRun
from ..watch import runner
from ..watch.place import await_path
from ..watch.runner import RunEnd, ScriptRequest, describe_failure, record_of
from ..workers.launch import Process, killed_process, launch_command, launch_environment
from .run_log import unseen_passes, write_log

RANK = "hvdscale.scaling.rank"
RUNNING, FAILED = "running", "failed"


def keys_of(asked: ScriptRequest, workers: int) -> dict[str, Any]:
    digest = hashlib.sha256(Path(asked.script).read_bytes()).hexdigest()[:12]
    return {"script": asked.script, "source": digest, "arguments": list(asked.arguments_on(workers)),
            "warm_up": asked.warm_up, "updates": asked.updates, "threads": asked.threads}


def carry_out(run: SeriesRun, asked: ScriptRequest, launcher: str | None, hosts: str | None) -> list[str]:
    """Run the script on the run's workers, and write the log; returns remarks. Raises HvdscaleError."""
    with _opened(run, asked, uuid.uuid4().hex) as folder:
        command = launch_command(launcher, run.workers, asked.command(run.workers, RANK, folder), hosts)
        end = runner.run_command(command, asked, launch_environment(), run.output)
        return _collect(run, asked, folder, launcher, end)


def carry_out_launched(run: SeriesRun, asked: ScriptRequest, process: Process) -> list[str]:
    """The same as this rank of a launch; rank 0 writes the log. Raises HvdscaleError."""
    mark = hashlib.sha256(process.job.encode()).hexdigest()
    if process.rank:
        folder = _folder_of(run, mark)
        await_path(folder / runner.TASK, asked.seconds, "--out must be a folder that all hosts share")
        runner.run_launched(asked, process, RANK, folder, launch_environment(), output=run.output)
        return []
    with _opened(run, asked, mark) as folder:
        end = runner.run_launched(asked, process, RANK, folder, launch_environment(), output=run.output)
        return _collect(run, asked, folder, process.launcher, end)


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
    records = [json.loads(record_of(folder, rank).read_text()) for rank in range(run.workers)
               if record_of(folder, rank).exists()]
    _refuse_failed(run, asked, folder, records, end)
    first = records[0]
    execution = {"workers": run.workers, "local_workers": first["local_workers"], "device": first["device"],
                 "threads": first["threads"], "launcher": launcher or "none", "untimed_passes": asked.warm_up}
    if first["device"] == "cpu":
        execution["cores"] = len(usable_cores())
    remarks = sorted({remark for record in records for remark in record["remarks"]}) + unseen_passes(records)
    write_log(run.log, Path(asked.script).name, records, asked.local_batch(run.workers), execution,
              run.keys, remarks)
    return remarks


def _refuse_failed(run: SeriesRun, asked: ScriptRequest, folder: Path, records: list[dict[str, Any]], end: RunEnd
                   ) -> None:
    on = f"{asked.script} on {counted(run.workers, 'worker')}"
    by_rank = {record["rank"]: record for record in records}
    failed = runner.first_to_fail(folder, [rank for rank, record in by_rank.items() if record["state"] == FAILED])
    if failed is not None:
        record = by_rank[failed]
        raise HvdscaleError(describe_failure(asked, run.workers, failed, record["made"],
                                             runner.line_of_error(record["error"])))
    if end.late:
        raise HvdscaleError(f"{on} was ended after {asked.seconds:g} s, before {asked.warm_up + asked.updates} updates "
                            f"on every rank; --seconds allows more, fewer --updates need less")
    sizes = {record["workers"] for record in records}
    if sizes and sizes != {run.workers}:
        raise HvdscaleError(f"{on}: the launcher started {counted(min(sizes), 'worker')} instead")
    ended = [record for record in records if record["state"] != RUNNING]
    if len(ended) < run.workers:
        killed = killed_process(Path(run.output).read_text(errors="replace"))
        raise HvdscaleError(f"{on} ended with exit code {end.code}{killed and f': {killed}'}, and "
                            f"{counted(run.workers - len(ended), 'rank')} of {run.workers} left no times")
    made = min(record["made"] for record in records)
    if not made:
        raise HvdscaleError(f"{on} ended before its first update: no torch.optim.Optimizer made a step")
    if made <= asked.warm_up + 1:
        raise HvdscaleError(f"{on} ended after {counted(made, 'update')}, of which {asked.warm_up} are warm-up; give "
                            "the script more to do, or lower --warm-up")
