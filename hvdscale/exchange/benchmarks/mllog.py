"""Import of MLPerf training logs: files with ``:::MLLOG {...}`` lines, as mlcommons/logging writes them; see the guide.

    import_mllog("results/h100/bert", "bert.h5")        result_*.txt there, or one file: a trial each

How far a run was is said by ``samples_count``, else ``step_num``, else ``epoch_num``. As for reference points,
``val/converged`` is 1 where a run that ended with success met the benchmark's targets (at its last evaluation in the
open division, or where none meets them), and else 0.
"""
from __future__ import annotations

import json
import math
import os
import re

import numpy as np

from ...errors import LogError
from ...formatting.numbers import list_first
from ...log.schema import UNKNOWN_SEED, Status
from ...system.inputs import open_input
from ..files import WrongFile
from ..imported import ImportedLog, Seen
from .mllog_lines import LONGEST, OLDER, TOKEN, read_run
from .mllog_measured import Measured, Wanted, as_whole
from .mlperf_rcp import TARGET
from .table import optimizer_of

RESULT = re.compile(r"result_\d+\.txt")


def is_mllog(path: str) -> bool:
    """Whether a file has such lines near its start, or a folder has files named like results."""
    if os.path.isdir(path):
        return any(RESULT.fullmatch(name) for _, _, names in os.walk(path) for name in names)
    with open_input(path) as file:
        head = file.read(LONGEST)
        return any(token.encode() in head for token in (TOKEN, OLDER))


def import_mllog(source, out, wanted: Wanted = Wanted(), *, skip_broken: bool = False, overwrite: bool = False,
                 take_over: bool = False) -> Seen:
    """Import each run into the new log ``out``; LogError for a wrong file, unless it is skipped, and without a run."""
    source, seen = os.fspath(source), Seen()
    notes: dict[str, list[str]] = {}
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(source) for name in names]
    paths.sort(key=lambda path: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path)])
    with ImportedLog(out, {"kind": "mllog", "from": source}, overwrite=overwrite, take_over=take_over) as log:
        for path in paths if os.path.isdir(source) else [source]:
            try:
                run = read_run(path)
                if run:
                    measured = Measured(run, wanted)
                    _add(log, measured)
                    seen.trials += 1
                    for note in measured.notes:
                        notes.setdefault(note, []).append(path)
            except WrongFile as error:
                if not skip_broken:
                    raise WrongFile(f"{error}; --skip-broken leaves the file out") from None
                seen.wrong.append(str(error))
        if not seen.trials:
            raise LogError(f"{source}: no run of MLPerf: " + (
                "\n".join(["each file with one is wrong, such as", *seen.wrong[:3]]) if seen.wrong else
                f"no file there has {TOKEN}lines with the key run_start"))
    seen.notes = [f"{list_first(paths, 1)}: {note}" for note, paths in notes.items()]
    return seen


def _add(log: ImportedLog, measured: Measured) -> None:
    run, wanted, benchmark = measured.run, measured.wanted, measured.benchmark
    rows, workers = measured.rows, measured.workers
    steps = [row.step for row in rows]
    status, reason = Status.COMPLETE, "the target of the benchmark was met"
    if run.ended != "success":
        status = Status.INCOMPLETE
        reason = "no run_stop" if run.ended is None else f"run_stop: {run.ended or 'no status'}"
    budget = as_whole(run.given.get("max_steps")) or max(steps, default=0)
    plan = {"problem": {"train_examples": benchmark.examples} if benchmark.examples else {},
            "measurement": {"budget_steps": budget, "target": TARGET},
            **({"execution": {"local_workers": wanted.per_node}} if wanted.per_node else {}),
            "mllog": {key: value for key, value in run.given.items() if value is None or isinstance(value, (int, str))
                      or isinstance(value, float) and math.isfinite(value)}}
    seed = as_whole(run.given.get("seed"))
    log.better |= benchmark.better
    ids = log.trials([measured.parameters], {
        "status": status, "stop_reason": reason, "dataset": benchmark.name,
        "model": "reference", "optimizer": optimizer_of(run.given, benchmark),
        "global_batch": measured.batch, "seed": UNKNOWN_SEED if seed is None else seed, "budget_steps": budget,
        "workers": workers or 1, "accumulation": as_whole(run.given.get("gradient_accumulation_steps")) or 1,
        "plan": json.dumps(plan, ensure_ascii=False),
        "source": json.dumps({"path": run.path, "imported": "mllog"}), **wanted.names},
        run.started / 1000 if workers and run.started else math.nan)
    log.evaluations(ids, [len(rows)], np.array(steps, np.int64), np.array([row.examples for row in rows], np.int64),
                    measured.columns, np.array([row.seconds for row in rows], float) if workers else None)
