"""A script at several worker counts: each run is started, watched by its ranks, and becomes a log.

    OUT/w4-r2.h5     repeat 2 at 4 workers;  OUT/w4-r2.out  what it printed

A run with a finished log is not repeated. One that fails leaves no log, and the others stand.
"""
from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import HvdscaleError
from ..formatting.numbers import counted
from ..system.cores import usable_cores
from ..system.files import write_whole
from ..system.parent import ending_with_this_process
from ..training.series import SeriesRun
from ..workers.launch import Process, killed_process, launch_command, launch_environment
from .run_log import unseen_passes, write_log

LOCAL = "{local}"               # where a worker's batch is in the script's arguments
GRACE_SECONDS = 15.0            # that a launcher has to end its workers, and ranks to leave their records
POLL_SECONDS = 0.05
RUNNING, FAILED = "running", "failed"


@dataclass(frozen=True)
class ScaleRequest:
    """What is to be timed.

    batch         examples of a worker's update;  global_batch  those of all; at most one is given
    warm_up       updates before the first that is timed;  updates  that are timed
    seconds       that a run may take;  threads  of each worker
    """

    script: str
    arguments: tuple[str, ...]
    batch: int | None
    global_batch: int | None
    warm_up: int
    updates: int
    seconds: float
    threads: int

    def local_batch(self, workers: int) -> int | None:
        return self.batch or (self.global_batch // workers if self.global_batch else None)

    def arguments_on(self, workers: int) -> tuple[str, ...]:
        share = str(self.local_batch(workers) or LOCAL)
        return tuple(one.replace(LOCAL, share) for one in self.arguments)

    def keys(self, workers: int, repeat: int) -> dict[str, Any]:
        """What a finished log must have been asked for too, to stand for the run."""
        digest = hashlib.sha256(Path(self.script).read_bytes()).hexdigest()[:12]
        return {"script": self.script, "source": digest, "arguments": list(self.arguments_on(workers)),
                "warm_up": self.warm_up, "updates": self.updates, "threads": self.threads}


def carry_out(run: SeriesRun, asked: ScaleRequest, launcher: str | None, hosts: str | None) -> list[str]:
    """Start the script on the run's workers, wait for their records and write the log; what was changed so that the
    script could run here. Raises HvdscaleError."""
    with _records(run) as folder:
        _open(folder, run, asked)
        command = launch_command(launcher, run.workers, _rank_command(folder, asked, run.workers), hosts)
        code, late = _await(command, run, asked)
        return _collect(run, asked, folder, launcher, code, late)


def carry_out_launched(run: SeriesRun, asked: ScaleRequest, process: Process) -> list[str]:
    """The same as this rank of a launch; rank 0 writes the log. Raises HvdscaleError."""
    folder = _folder_of(run, process)
    if process.rank == 0:
        with _records(run, folder):
            _open(folder, run, asked)
            code, late = _await(_rank_command(folder, asked, run.workers), run, asked)
            until = time.monotonic() + GRACE_SECONDS
            while time.monotonic() < until and _running(folder, run.workers):
                time.sleep(POLL_SECONDS)
            return _collect(run, asked, folder, process.launcher, code, late)
    until = time.monotonic() + asked.seconds
    while not (folder / "task.json").exists():
        if time.monotonic() > until:
            raise HvdscaleError(f"rank {process.rank} has waited {asked.seconds:g} s for {folder}, which rank 0 makes; "
                                "--out must be a folder that all hosts share")
        time.sleep(POLL_SECONDS)
    _await(_rank_command(folder, asked, run.workers), run, asked)
    return []


def _folder_of(run: SeriesRun, process: Process | None = None) -> Path:
    mark = hashlib.sha256(process.job.encode()).hexdigest()[:12] if process else str(os.getpid())
    return Path(run.log.removesuffix(".h5") + f".{mark}")


@contextlib.contextmanager
def _records(run: SeriesRun, folder: Path | None = None) -> Iterator[Path]:
    """A new folder for what the ranks record, for as long as the run lasts."""
    folder = folder or _folder_of(run)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise HvdscaleError(f"{folder}: cannot be made: {error.strerror}; choose another --out") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _open(folder: Path, run: SeriesRun, asked: ScaleRequest) -> None:
    """Let the ranks begin; what an earlier run printed goes."""
    Path(run.output).unlink(missing_ok=True)
    write_whole(folder / "task.json", json.dumps({"warm_up": asked.warm_up, "updates": asked.updates}), sync=False)


def _rank_command(folder: Path, asked: ScaleRequest, workers: int) -> list[str]:
    return [sys.executable, "-m", "hvdscale.scaling.rank", os.path.abspath(folder), asked.script,
            *asked.arguments_on(workers)]


def _await(command: list[str], run: SeriesRun, asked: ScaleRequest) -> tuple[int, bool]:
    """The exit code of the command, and whether it was ended for its time."""
    environment = {**launch_environment(), "OMP_NUM_THREADS": str(asked.threads)}
    with open(run.output, "a", encoding="utf-8") as output:       # that of all ranks of a launch
        output.write(shlex.join(command) + "\n")
        output.flush()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                   env=environment, preexec_fn=ending_with_this_process(signal.SIGTERM))
        try:
            return process.wait(asked.seconds), False
        except subprocess.TimeoutExpired:
            return _end(process), True
        except BaseException:
            _end(process)
            raise


def _end(process: subprocess.Popen) -> int:
    process.terminate()
    try:
        return process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _running(folder: Path, workers: int) -> bool:
    records = _load(folder)
    return len(records) < workers or any(record["state"] == RUNNING for record in records)


def _load(folder: Path) -> list[dict[str, Any]]:
    """The records that ranks have left, by rank."""
    records = [json.loads(path.read_text()) for path in folder.glob("rank*.json")]
    return sorted(records, key=lambda record: record["rank"])


def _collect(run: SeriesRun, asked: ScaleRequest, folder: Path, launcher: str | None, code: int,
             late: bool) -> list[str]:
    """Write the log of a run that has ended, and return its remarks; raises HvdscaleError saying why there is none."""
    records = _load(folder)
    _refuse_failed(run, asked, records, code, late)
    execution = {"workers": run.workers, "local_workers": records[0]["local_workers"], "device": records[0]["device"],
                 "threads": records[0]["threads"], "launcher": launcher or "none",
                 "untimed_passes": asked.warm_up,
                 **({"cores": len(usable_cores())} if records[0]["device"] == "cpu" else {})}
    remarks = sorted({remark for record in records for remark in record["remarks"]}) + unseen_passes(records)
    write_log(run.log, Path(asked.script).name, records, asked.local_batch(run.workers), execution,
              run.keys, remarks)
    return remarks


def _refuse_failed(run: SeriesRun, asked: ScaleRequest, records: list[dict[str, Any]], code: int, late: bool) -> None:
    on = f"{asked.script} on {counted(run.workers, 'worker')}"
    ended = [record for record in records if record["state"] != RUNNING]
    failed = next((record for record in ended if record["state"] == FAILED), None)
    if failed:
        last = failed["error"].strip().splitlines()[-1]
        raise HvdscaleError(f"{on}, rank {failed['rank']}, after {counted(failed['made'], 'update')}: {last}")
    if late:
        raise HvdscaleError(f"{on} was ended after {asked.seconds:g} s, before {asked.warm_up + asked.updates} updates "
                            f"on every rank; --seconds allows more, fewer --updates need less")
    sizes = {record["workers"] for record in records}
    if sizes and sizes != {run.workers}:
        raise HvdscaleError(f"{on}: the launcher started {counted(min(sizes), 'worker')} instead")
    if len(ended) < run.workers:
        killed = killed_process(Path(run.output).read_text(errors="replace"))
        raise HvdscaleError(f"{on} ended with exit code {code}{killed and f': {killed}'}, and "
                            f"{counted(run.workers - len(ended), 'rank')} of {run.workers} left no times")
    made = min(record["made"] for record in records)
    if not made:
        raise HvdscaleError(f"{on} ended before its first update: no torch.optim.Optimizer made a step")
    if made <= asked.warm_up + 1:
        raise HvdscaleError(f"{on} ended after {counted(made, 'update')}, of which {asked.warm_up} are warm-up; give "
                            "the script more to do, or lower --warm-up")
