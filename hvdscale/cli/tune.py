"""hvdscale-tune: search metaparameters at each global batch size, on the workers that the launcher started."""
from __future__ import annotations

import contextlib
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import ExitCode, HvdscaleError, TrialsError, UsageError
from ..plan.settings import Settings, key_of, parse_assignments
from ..system.hangup import heed
from ..system.lock import CONSENT, this_process
from ..workers.launch import cores_of_launch, on_terminal, place
from .common import (CONTEXT, begin_run, echo, exit_now, parse, paths, say_error, slow_imports, take_over_option,
                     version_option)

if TYPE_CHECKING:
    from ..sweep.file import Sweep


@dataclass(frozen=True)
class TuneRequest:
    """The command line: the sweep file's path and content, and what to do with it."""

    path: str
    sweep: Sweep
    out: str
    only: dict[str, list[str]]
    free: dict              # settings that change no update
    mode: str               # run, dry-run, status or retry
    take_over: bool
    terminal: bool          # whether what is printed reaches one
    accept_changes: bool = False


@click.command(context_settings=CONTEXT)
@click.argument("sweep", metavar="SWEEP.toml", shell_complete=paths)
@click.option("--out", metavar="DIR", shell_complete=paths,
              help="folder of the sweep, by default sweeps/NAME after the file; jobs with one folder share the work")
@click.option("--dry-run", "mode", flag_value="dry-run", help="print trials, steps, examples, and the time from a few "
              "measured steps, and stop")
@click.option("--status", "mode", flag_value="status", help="collect the results so far, print the state, and stop")
@click.option("--retry", "mode", flag_value="retry", help="reset the trials that failed or were lost, so that the "
              "next run starts them again, and stop")
@click.option("--only", multiple=True, metavar="batch=N|optimizer=NAME", help="only these studies; may be repeated")
@click.option("--data-dir", metavar="DIR", shell_complete=paths, help="folder of the data set's files")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="set a key of hvdscale-train that "
              "changes no update, such as threads or stall_seconds")
@click.option("--accept-changes", is_flag=True, help="resume although source, defaults, model or data of the job have "
              "changed; the sweep records both")
@take_over_option
@version_option
def command(sweep, out, mode, only, data_dir, assignments, accept_changes, take_over):
    """Search metaparameters at each global batch size of SWEEP.toml, alone, or under mpirun, horovodrun,
    srun or torchrun.

    The workers share the trials out between them. The same command resumes a sweep that was interrupted. Once
    a study is done its trials lie in DIR/STUDY.h5, for hvdscale-report, and the best points in DIR/tuned.toml:

    \b
      hvdscale-tune sweep.toml --dry-run
      mpirun -np 8 hvdscale-tune sweep.toml --out sweeps/mnist
      hvdscale-train mnist/simple_cnn --global-batch 256 --lr-rule tuned --metaparameters sweeps/mnist/tuned.toml

    Exit codes: 0 done, 1 error, 2 misuse, 75 stopped by a signal.
    """
    with slow_imports():                # which --help can do without
        from ..sweep.file import read_sweep
        from ..sweep.settings import FREE_SETTINGS
    if take_over:
        os.environ[CONSENT] = "1"           # of the trials' logs and the results, too
    free = {**parse_assignments(assignments), **({"data_dir": data_dir} if data_dir else {})}
    for name in Settings.build({}, free).asked():
        if key_of(name) not in FREE_SETTINGS:
            raise UsageError(f"--set {name} would make other trials; it belongs into [settings] of {sweep}")
    return TuneRequest(sweep, read_sweep(sweep), out or os.path.join("sweeps", Path(sweep).stem), parse_only(only),
                       free, mode or "run", take_over, on_terminal(sys.stdout), accept_changes)


def parse_only(texts) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in texts:
        word, equals, value = text.partition("=")
        if word not in ("batch", "optimizer") or not value:
            raise UsageError(f"--only {text!r} is neither batch=N nor optimizer=NAME, such as batch=256")
        found.setdefault(word, []).extend(value.split(","))
    return found


def main() -> None:
    begin_run()
    asked, error = parse(command)
    here, run, again = place(), None, False
    try:
        if error:
            raise error
        cores = cores_of_launch(here)       # while all processes live: later some may have ended
        if asked.mode == "run" and asked.sweep.workers_per_trial == 1:
            from ..sweep.respawn import guard
            again = guard(here, lambda pid: note_killed(asked, pid)) > 0
        with slow_imports():                                        # before the watch
            from ..sweep.groups import form_group, leave
            from ..sweep.run import SweepRun, report_status, take_back_failed
        if asked.mode in ("status", "retry"):
            if here.rank == 0:
                {"status": report_status, "retry": take_back_failed}[asked.mode](asked)
            exit_now(ExitCode.DONE)
        settings = Settings.build({}, asked.sweep.settings, asked.free)
        group = form_group(asked.sweep.workers_per_trial, settings.stall_seconds, cores, settings.transport)
        run = SweepRun(asked, group, here, Signals(), again)
        exit_now(leave(group, run.carry_out(), run.others_gone))
    except HvdscaleError as raised:         # said once where all ranks have it; other groups take no harm
        if here.rank == 0:
            say_error(raised)
        elif not isinstance(raised, (UsageError, TrialsError)) and (run is None or run.group.rank == 0):
            echo(f"Error: rank {here.rank}: {raised}", err=True)
        if run is None:
            exit_now(raised.exit_code if here.rank == 0 else ExitCode.DONE)
        run.group.abandon()
        exit_now(leave(run.group, raised.exit_code, run.others_gone))
    except KeyboardInterrupt:
        exit_now(ExitCode.INTERRUPTED)


def note_killed(asked: TuneRequest, pid: int) -> bool:
    """Record that a process on this host died; returns whether it had a trial."""
    from ..sweep.ledger import Ledger
    with contextlib.suppress(HvdscaleError):        # then it counts as a dead attempt
        return Ledger(asked.out).note_killed([study.name for study in asked.sweep.studies], this_process()["host"], pid)
    return False


class Signals:
    """Whether a signal has come, which stops the trial and the sweep. A second Ctrl-C ends them immediately."""

    def __init__(self):
        self._came = False

    def __call__(self) -> bool:
        return self._came

    def watch(self) -> None:
        heed(self._note)

    def _note(self, number: int, frame: object) -> None:
        if self._came and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._came = True


if __name__ == "__main__":
    main()
