"""hvdscale-train: train one workload on the workers that the launcher started; the options and the end of every command
that trains."""

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Container
from dataclasses import MISSING
from importlib.resources import files

import click

from ..errors import (CheckpointError, DataError, ExitCode, FaultError, HvdscaleError, LogError, StoppedError,
                      UsageError, WorkerLostError)
from ..plan import presets
from ..plan.settings import (KEYS, LENGTHS, OPTIONS, Settings, is_key, key_of, key_type, keys_by_heading,
                             parse_assignments)
from ..system.files import clear_leavings
from ..system.hangup import heed, postpone_stops
from ..system.lock import Lock
from .common import (CONTEXT, Brief, begin_run, echo, exit_now, general_options, parse, paths, say_error, slow_imports,
                     words)

# horovodrun and torchrun take --log anywhere for an ambiguous abbreviation of its own options
ALSO = {"log": ("--log-file",)}
METAVARS = {int: "N", float: "X"}
# keys that name a file or folder
PATHS = ("metaparameters", "data_dir", "init_from", "checkpoint", "log", "save_model")
# the keys that most people set, listed by --help
FEW = ("--config --set --local-batch --global-batch --lr --base-batch --lr-rule --warmup --optimizer --budget --target "
       "--eval-every --data-dir --seed --precision --device")
# options that set one entry of a table
ARGUMENTS = {"--model-arg": "model_args", "--data-arg": "data_args"}


def list_workloads() -> str:
    return files(__package__).joinpath("workloads.txt").read_text("utf-8").rstrip("\n")


def workloads(ctx, param, incomplete: str) -> list[str]:
    """The built-in workloads that begin so, without those whose names have a number to fill in."""
    names = [line.split()[0] for line in list_workloads().splitlines() if "/" in line.partition(" ")[0]]
    return [name for name in names if name.startswith(incomplete) and "WIDTH" not in name]


def presets_or_paths(ctx, param, incomplete: str) -> list:
    return [name for name in presets.names() if name.startswith(incomplete)] or paths(ctx, param, incomplete)


def key_options(without=frozenset(), unlisted=frozenset()):
    """A decorator that adds WORKLOAD, --config, --set, and an option for every key that has one; those of ``unlisted``
    are accepted but ignored, so that command lines of hvdscale-train work."""
    def add(command):
        command = click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="set any key")(command)
        for option, table in ARGUMENTS.items():
            said = f"an entry of {table}, the {KEYS[table].metadata['help'].partition(',')[0]}"
            command = click.option(option, table, multiple=True, metavar="NAME=VALUE", help=said)(command)
        command = click.option("--config", metavar="FILE|PRESET", shell_complete=presets_or_paths,
                               help="TOML file of keys, or a preset (`hvdscale-train --list` names them); options "
                               "and --set override it")(command)
        for name in reversed([name for names in OPTIONS.values() for name in names if name not in without]):
            spellings = [f"--{name.replace('_', '-')}", *ALSO.get(name, ())]
            command = click.option(*spellings, name, help=_help(name), hidden=name in {*unlisted, "warmup_epochs"},
                                   **_kind(name))(command)
        return click.argument("workload", required=False, shell_complete=workloads)(command)
    return add


def _kind(name: str) -> dict:
    """How click takes the option of a name: a length, or a word in place of a number, as --set does."""
    rules, kind = KEYS[key_of(name)].metadata, key_type(name)
    if kind is bool:
        return dict(is_flag=True, default=None)
    if name in PATHS:
        return dict(metavar="PATH", shell_complete=paths)
    if rules["word"] or name in KEYS and rules["units"]:
        def as_set(value: str):
            return parse_assignments([f"{name}={value}"])[name]
        return dict(type=as_set, metavar=f"N|{rules['word']}" if rules["word"] else "LENGTH")
    return dict(type=kind, metavar=METAVARS.get(kind), shell_complete=rules["choices"] and words(rules["choices"]))


def asked(workload: str | None, config: str | None, assignments, model_args=(), data_args=(),
          **flags) -> tuple[str, list[dict]]:
    """The workload's name, as typed or else from the configuration, and the layers of settings from the options of
    ``key_options``, the strongest last. Raises UsageError for contradictory or malformed options."""
    layer, named = presets.read_config(config) if config else ({}, None)
    if (workload or named) is None:
        raise UsageError("which workload? Give its name first, such as digits/fc, or a --config that names one; "
                         "`hvdscale-train --list` lists the built-in ones")
    typed = {name: value for name, value in flags.items() if value is not None}
    entries = []
    for option, texts in zip(ARGUMENTS, (model_args, data_args)):
        for text in texts:
            if "=" not in text:
                raise UsageError(f"{option} {text!r} is not NAME=VALUE, such as width=2")
            entries.append(f"{ARGUMENTS[option]}.{text}")
    assigned = parse_assignments([*assignments, *entries])
    for name in typed.keys() & assigned.keys():
        if typed[name] != assigned[name]:
            raise UsageError(f"--{name.replace('_', '-')} {typed[name]} and --set {name}={assigned[name]} differ; "
                             "give one of them")
    return workload or named, [layer, {**assigned, **typed}]


def _help(name: str) -> str:
    if name not in KEYS:
        key, unit = LENGTHS[name]
        return f"{key} in {unit}"
    key = KEYS[name]
    rules, text = key.metadata, key.metadata["help"]
    if rules["choices"] and not all(choice in text for choice in rules["choices"]):
        text += f" ({', '.join(rules['choices'])})"
    shown = key.default not in (None, MISSING) and key.default is not False
    return f"{text} [{key.default}]" if shown else text


class Grouped(Brief):
    """A command of which --help-all lists the options under headings, and ``keys`` that have no option."""

    keys: Container[str] = ()

    def format_options(self, ctx, formatter):
        if self.brief(ctx):
            return super().format_options(ctx, formatter)
        records = self.rows(ctx)
        groups = {"Options": [name for name in records if not is_key(name)]}
        for heading, keys in keys_by_heading().items():
            options = [name for key in keys for name in OPTIONS.get(key, (key,)) if name in records]
            groups[heading] = [*options, *(key for key in keys if key in self.keys and key not in records)]
        for heading, names in groups.items():
            written = {name: f"{name} LENGTH" if key_of(name) in LENGTHS else name for name in names}
            rows = [records[name] if name in records else (written[name], _help(name)) for name in names]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


class _Command(Grouped):
    keys = KEYS

    def format_epilog(self, ctx, formatter):
        more = ("" if self.brief(ctx) else "What has no -- is a key for --set KEY=VALUE and the configuration file, "
                "as all options are. NAME_UNIT = v says the same as NAME = \"v UNIT\": warmup_epochs=5. ")
        for text in (more + "A workload's defaults override values in brackets; --dry-run prints the settled plan.",
                     "Exit codes: 0 done, 1 error, 2 misuse, 3 diverged (the log says INFEASIBLE), 75 stopped by a "
                     "signal or a closed terminal; horovodrun --gloo and torchrun return 1 instead of 3 and 75."):
            formatter.write_paragraph()
            formatter.write_text(text)


@click.command(cls=_Command, context_settings=CONTEXT,
               few=f"{FEW} --log-file --checkpoint --overwrite --dry-run --list")
@key_options()
@click.option("--dry-run", is_flag=True, help="print the plan and stop")
@click.option("--list", "listing", is_flag=True, help="list the built-in workloads and stop")
@general_options
def command(workload, dry_run, listing, **given):
    """Train WORKLOAD, alone or under horovodrun, mpirun, srun or torchrun; the worker count sets the global batch.

    WORKLOAD is dataset/model (--list names them) or module:object, your own hvdscale.workload.Workload. A preset names
    its workload.

    \b
      hvdscale-train digits/fc
      horovodrun -np 8 hvdscale-train mnist/simple_cnn --data-dir mnist --local-batch 32 --target "val/error<0.01"
      hvdscale-train --config goyal2017-resnet50 --dry-run

    A LENGTH is a number with its unit: steps, epochs, examples, tokens or, of a budget and between checkpoints, s, min
    or h, such as "10 epochs".
    """
    if listing:
        echo(list_workloads())
        return 0
    return *asked(workload, **given), dry_run


def main() -> None:
    begin_run()
    carry_out_together(command, _run, elastic=True)


def carry_out_together(command: click.Command, run, elastic: bool = False) -> None:
    """Run a command, which returns its arguments, the layers of settings second, on all ranks of the launch, with one
    message and one exit code for all. ``run`` has its arguments and the workers, and gives the exit code; it raises the
    same error on all ranks. ``elastic``: whether it is started again, with a Recovery more, where workers are lost or
    hosts change."""
    parsed, error = parse(command)
    try:
        settings = Settings.build({}, *parsed[1])
    except (HvdscaleError, TypeError):          # all ranks raise it together, later
        settings = Settings()
    try:
        with slow_imports():
            from ..training import loop, outputs, prepare  # noqa: F401  they must come before the stall check starts
            from ..workers.transport import form
            workers = form(settings.stall_seconds, settings.transport, settings.sync_every is not None)
        if workers.size > 1:
            postpone_stops()
    except HvdscaleError as raised:
        say_error(raised)
        sys.exit(raised.exit_code)

    def attempt(*recovery) -> int:
        workers.raise_together("the command line", error)
        return run(*parsed, workers, *recovery)
    try:
        if elastic and workers.elastic:
            from ..training.elastic import regroup
            code = regroup(workers, attempt)
        else:
            code = attempt()
    except (WorkerLostError, FaultError) as lost:
        say_error(lost)
        workers.abandon()
        exit_now(lost.exit_code)
    except HvdscaleError as agreed:             # raised on all ranks, or on an only one
        if workers.rank == 0:
            say_error(agreed)
        code = agreed.exit_code
    except KeyboardInterrupt:           # during training Ctrl-C is a vote
        exit_now(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        os._exit(ExitCode.BROKEN_PIPE)
    heed(signal.SIG_IGN)            # the work is done; all end together
    with contextlib.suppress(WorkerLostError):
        workers.leave()
    exit_now(code if workers.rank == 0 else 0)          # as a launcher ends the others when one fails


def _run(name: str, layers: list[dict], dry_run: bool, workers, recovery=None) -> int:
    """Run the job; ``recovery``: how it resumes from an earlier start, by default by checkpoints in a folder."""
    from ..training.checkpoint import CheckpointFolder
    from ..training.outputs import Recovery, open_display, open_folder, refuse_outputs
    from ..training.prepare import sketch
    from ..training.resume import ended_for_good
    recovery = recovery or Recovery()
    if ended := ended_for_good(layers, workers):
        if workers.rank == 0:
            echo(f"the run had already ended, so torchrun need not start it again. {ended}")
        return 0
    try:
        job = recovery.prepare(name, layers, workers)
    except DataError:
        sketched = dry_run and sketch(name, layers, workers)
        if not sketched:
            raise
        if workers.rank == 0:
            echo(sketched)
        return 0
    except StoppedError as stopped:
        settings = Settings.build({}, *layers)
        if workers.rank == 0 and settings.checkpoint is not None:
            with contextlib.suppress(HvdscaleError):            # for the script that requeues it
                with CheckpointFolder(settings.checkpoint, settings.take_over) as folder:
                    folder.note_error(stopped, log=settings.log)
        raise
    refuse_outputs(job.settings, workers)
    if dry_run:
        open_display(job, "none: a dry run", workers, recovery.find_start(job, workers))
        return 0
    with open_folder(job, workers) as folder:
        try:
            return _train(job, recovery.find_start(job, workers), folder, workers, recovery)
        except HvdscaleError as error:
            if folder is not None:
                folder.note_error(error, log=job.settings.log)
            raise


def _train(job, start, folder, workers, recovery) -> int:
    from ..training.learning import not_learned
    from ..training.loop import train
    from ..training.outputs import open_display, open_run_log
    if start.ended:
        return _finish_ended(job, start, start.ended, folder, workers)
    with open_run_log(job, workers, start, opened=recovery.note_log) as run_log:
        display = open_display(job, run_log.path, workers, start)
        checkpoints = recovery.open_checkpoints(job, start, folder, run_log, display, workers)
        outcome = train(job, run_log, display, workers, checkpoints)
        run_log.close()
    display.say(f"{outcome.stop.status.name}: {outcome.stop.reason}")
    display.measured(outcome)
    if workers.rank == 0 and run_log.failure is None:
        for note in not_learned(job, outcome, run_log.path):
            display.say(f"  note: {note}")
    if saved := job.save_model(outcome.stop, workers):
        display.say(saved)
    failure: HvdscaleError | None = None
    if run_log.failure is not None:
        failure = LogError(f"{run_log.failure}. To read the rows written so far: "
                           f"hvdscale-log show {shlex.quote(run_log.path)}")
    elif checkpoints.failure is not None and outcome.stop.exit_code == ExitCode.DONE:
        failure = CheckpointError(f"{checkpoints.failure}. The run is done, but its last checkpoint is missing. Make "
                                  "room; then the same command with --resume auto takes the last steps again")
    checkpoints.end(outcome.stop._replace(exit_code=failure.exit_code) if failure else outcome.stop)
    if failure:
        raise failure
    display.say(f"log: {run_log.path}\nnext: {_next(job, outcome, run_log.path)}")
    return outcome.stop.exit_code


def _finish_ended(job, start, stop, folder, workers) -> int:
    if stop.exit_code == ExitCode.DONE:
        job.restore_model(start.state)
    saved = job.save_model(stop, workers)
    if folder is not None:
        folder.note_outcome(stop, log=start.log)
        with contextlib.suppress(LogError):         # a process that was killed leaves the lock's file, and others
            Lock.take(start.log).release()
            clear_leavings(os.path.dirname(start.log) or ".")
        ended = f"{start.checkpoint}: the run had already ended. {stop.status.name}: {stop.reason}"
        echo("\n".join(filter(None, (ended, saved, f"log: {start.log}"))))
    return stop.exit_code


def _next(job, outcome, log: str) -> str:
    if outcome.stop.exit_code != ExitCode.PREEMPTED:
        return f"hvdscale-report {shlex.quote(log)}"
    if job.settings.checkpoint is None:
        added = "" if job.settings.overwrite or job.settings.log is None else " with --overwrite"
        return (f"the same command{added} restarts at step 0, as the {outcome.step} steps were not saved; with "
                "--checkpoint DIR a stopped run can resume")
    added = "" if job.settings.resume == "auto" else " with --resume auto"
    return f"the same command{added} resumes at step {outcome.step}"


if __name__ == "__main__":
    main()
