"""One job at several worker counts, each run in separate processes with its own log.

    OUT/w4-r2.h5     repeat 2 at 4 workers;  OUT/w4-probe.h5  throughput only;  *.out  the run's output
    OUT/w4-b8-r2.h5  the same with 8 examples a worker, where others have another number

A run with a finished log is not repeated, so an interrupted series resumes.
"""

import contextlib
import itertools
import json
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..analysis.defaults import PROBE_STEPS
from ..analysis.next_runs import Measurement
from ..analysis.trials import read_trials
from ..errors import HvdscaleError, LogError, UsageError
from ..formatting.numbers import counted
from ..formatting.toml import value_as_toml
from ..log.reader import read_log
from ..log.schema import Status
from ..log.segments import find_logs
from ..plan.plan import differences
from ..plan.job import changes_of, key_of, note_version, refuse_changes
from ..plan.schedule import PLATEAU
from ..plan.settings import PLACES, Settings
from ..system.outputs import PRINTED, refuse_foreign
from ..system.forked import ending_with_this_process
from ..system.run_module import module_command
from ..workers.launch import MARK_OF_RANK, killed_process, launch_command, launch_environment

PROBE = {"steps": PROBE_STEPS, "eval_every": 0, "target": "none"}
ASIDE = {*PLACES, "accept_changes", "accepted"}         # what does not identify a run
FINISHED = Status.COMPLETE, Status.INFEASIBLE
INSTEAD = "Put it back, choose another --out, or --overwrite to run all again"


@dataclass(frozen=True)
class SeriesRun:
    """One run of a series: its worker count, its log, and what it is asked for: the keys for hvdscale-train."""

    workers: int
    log: str
    keys: Mapping[str, Any]

    @property
    def output(self) -> str:
        return self.log.removesuffix(".h5") + ".out"


def runs_of(counts: list[int], repeats: int, probe: bool, keys: dict, out: str, kind: str = "") -> list[SeriesRun]:
    """The runs of a series; repeat r has seed + r - 1. kind: what sets file names apart from another series' there"""
    seed = keys.get("seed", 0)
    if not probe:
        return repeated(counts, repeats, out, lambda workers, repeat: {**keys, "seed": seed + repeat - 1}, kind)
    constant = {"decay": "constant"} if keys.get("decay") == PLATEAU else {}    # without evaluations
    keys = Settings.build({}, keys, {**PROBE, **constant}).asked()
    runs = repeated(counts, repeats, out, lambda workers, repeat: {
        **keys, **({"seed": seed + repeat - 1} if repeat > 1 else {})}, f"{kind}-probe")
    return [replace(run, log=run.log.replace("-probe-r1.h5", "-probe.h5")) for run in runs]


def repeated(counts: list[int], repeats: int, out: str, keys: Callable[[int, int], Mapping], kind: str = ""
             ) -> list[SeriesRun]:
    """The runs at each worker count, up and down in turn, lest a machine that slows down look like bad scaling."""
    return [SeriesRun(w, os.path.join(out, f"w{w}{kind}-r{r}.h5"), keys(w, r)) for r in range(1, repeats + 1)
            for w in sorted(set(counts), reverse=r % 2 == 0)]


def runs_to_measure(wanted: Iterable[Measurement], workload: str, keys: dict, local_batch: int, out: str
                    ) -> list[SeriesRun]:
    """The runs that make these measurements, each with the next repeats that OUT has not."""
    found = []
    for place, seeds in wanted:
        own, kind = dict(keys), ""
        if place.local_batch != local_batch and "global_batch" not in keys:
            own["local_batch"], kind = place.local_batch, f"-b{place.local_batch}"
        if place.passes != keys.get("accumulate", 1):
            own["accumulate"], kind = place.passes, f"{kind}-k{place.passes}"
        repeats = itertools.count(1)
        new = (run for repeat in repeats for run in runs_of([place.workers], repeat, not seeds, own, out, kind)[-1:]
               if not ended(run, workload))
        found += itertools.islice(new, max(seeds, 1))
    return found


def ended(run: SeriesRun, workload: str | None = None) -> bool:
    """Whether the run has a finished log of this workload and these keys; raises UsageError if its log is of others."""
    if (found := _last_trial(run.log)) is None:
        return False
    wanted = {**({"workload": workload} if workload else {}), **run.keys}
    refuse_another("series", run.log, *({key: value for key, value in each.items() if key not in ASIDE}
                                        for each in (found.asked, wanted)))
    return found.status in FINISHED


class _Trial(NamedTuple):
    status: int
    asked: dict
    job: dict               # {}: unknown
    log_id: str


def _last_trial(path: str) -> _Trial | None:
    with contextlib.suppress(LogError, IndexError, KeyError, ValueError), read_log(path) as log:
        plan = json.loads(log.trials["plan"][-1])
        return _Trial(log.trials["status"][-1], plan["asked"], plan.get("job") or {}, log.segments[0].log_id)
    return None


def finished_logs(out: str) -> list[str]:
    return [path for path in find_logs([out]) if (found := _last_trial(path)) and found.status in FINISHED]


def worker_hours(logs: Iterable[str]) -> float:
    spent = 0.0
    for path in logs:
        with read_log(path) as log:
            for trial in read_trials(log):
                seconds = trial.batches.examples_before(trial.last_step) / trial.examples_per_second
                spent += trial.workers * seconds / 3600 if seconds > 0 else 0.0
    return spent


def refuse_another(what: str, log: str, then: Mapping, now: Mapping) -> None:
    if differ := differences(then, now):
        raise UsageError(f"{log} belongs to another {what}: {'; '.join(differ.values())}. Choose another --out, or "
                         "--overwrite to run all again")


def job_of(run: SeriesRun) -> dict:
    """The job that a finished run's log says it was; {}: unknown."""
    return _last_trial(run.log).job


def current_job(workload: str, keys: dict, say: Callable[[str], object]) -> dict:
    """The job as it is now, from another process, as this one is without torch; raises HvdscaleError."""
    command = module_command("hvdscale.training.prepare", workload, json.dumps(keys))
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                          env=launch_environment())
    if done.returncode:
        raise HvdscaleError(done.stderr.strip() or f"{workload}: its process ended with {done.returncode}")
    found = json.loads(next(line for line in reversed(done.stdout.splitlines()) if line.startswith('{"job"')))
    for note in found["notes"]:
        say(f"note: {note}")
    return found["job"]


def refuse_edited(finished: list[SeriesRun], workload: str, keys: dict, accept: bool,
                  say: Callable[[str], object]) -> dict[str, str]:
    """The earlier jobs of finished runs that count as the job of now: what differs, by key; raises UsageError."""
    known = {run.log: job for run in finished if (job := job_of(run))}
    now = current_job(workload, keys, say) if known else {}
    accepted = {key: what for then in known.values() if not changes_of(then, now)
                for key, what in then.get("accepted", {}).items()}          # by an earlier command
    for log, then in known.items():
        accepted |= refuse_changes(then, now, accept or key_of(then) in accepted, log, INSTEAD)
        for note in (*note_version(then, now), *map("accepted: {}".format, changes_of(then, now))):
            say(f"note: {log}: {note}")
    return accepted


def carry_out(run: SeriesRun, workload: str, launcher: str | None, hosts: str | None,
              say: Callable[[str], object]) -> dict:
    """Start the run, forward its lines, and wait for its end; its job. Raises HvdscaleError without a finished log."""
    keys = {**run.keys, "log": run.log, "overwrite": True}
    given = [word for key, value in keys.items() for word in ("--set", f"{key}={value_as_toml(value)}")]
    command = module_command("hvdscale.cli.train", workload, *given)
    command, earlier = launch_command(launcher, run.workers, command, hosts), _last_trial(run.log)
    refuse_foreign(run.output, PRINTED)
    with _writing(run.output):
        os.makedirs(os.path.dirname(run.output) or ".", exist_ok=True)
        output = open(run.output, "w", encoding="utf-8", errors="surrogateescape")
        output.write(shlex.join(command) + "\n")
    with _writing(run.output), output, subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", env=launch_environment(), preexec_fn=ending_with_this_process(signal.SIGTERM)) as process:
        try:
            for line in process.stdout:
                line = MARK_OF_RANK.sub("", line)
                output.write(line)
                say(line.rstrip())
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if not ended(run, workload) or earlier and earlier.log_id == _last_trial(run.log).log_id:
        with open(run.output, encoding="utf-8", errors="surrogateescape") as output:
            lines = output.readlines()
        killed = killed_process("".join(lines))
        raise HvdscaleError(f"the run at {counted(run.workers, 'worker')} ended without a finished log (exit code "
                            f"{process.returncode}{killed and f': {killed}'}). The same command resumes it. Its "
                            f"last lines, from {run.output}:\n{''.join(lines[-15:])}")
    return job_of(run)


@contextlib.contextmanager
def _writing(path: str) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:         # of the reader of our own output
        raise
    except OSError as error:
        raise HvdscaleError(f"{path}: cannot be written: {error.strerror}; choose another --out") from None
