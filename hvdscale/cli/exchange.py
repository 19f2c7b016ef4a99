"""hvdscale-log import and export: other formats to a log, and a log to other formats."""

import math
import os
import time
from collections.abc import Callable
from functools import partial

import click

from ..errors import LogError, UsageError
from ..exchange.archive.export import export_archive
from ..exchange.archive.read import import_archive
from ..exchange.archive.sources import OPENERS
from ..exchange.benchmarks.mllog import Wanted, import_mllog, is_mllog
from ..exchange.benchmarks.mlperf_rcp import TARGET, import_rcp
from ..exchange.benchmarks.table import UNITS
from ..exchange.csv_tables import import_tables, is_tables
from ..exchange.exported import export_events, export_parquet, export_tables
from ..exchange.runs.formats import has_runs, is_archive, read_runs
from ..exchange.runs.guessing import guess, say
from ..exchange.runs.into_log import settle, shown, write
from ..exchange.runs.mapping import GLOBAL_BATCH, KEEPS, PERS, Source, read_lines, read_mapping, with_given
from ..formatting.numbers import byte_size, counted, list_first
from ..formatting.screen import Progress
from ..log.files import SIGNATURE
from ..system.inputs import open_input, refusal
from .common import echo, format_counts, paths, take_over_option

KINDS = ("runs", "csv", "mllog", "rcp", "archive")
EXPORTS = {"csv": export_tables, "parquet": export_parquet, "tensorboard": export_events, "archive": export_archive}
MOST_LINES = 10                     # about what was left out
LOST = ("left out: worker counts, times, targets, seeds, steps and restarts, for which an archive has no place; "
        "--as csv keeps all")
ASSUMED = "assumed: 1 worker, as {} does not say how many there were"
UNTIMED = "assumed: 1 worker, without times, as MLPerf's lines do not say how many there were; --workers N or MxN does"


def worker_count(value: str) -> tuple[int, int | None]:
    """(workers, workers on a node or None) of N workers, or M nodes of N workers each."""
    counts = value.lower().split("x")
    if not (len(counts) <= 2 and all(count.isdecimal() and 0 < int(count) <= 2**31 for count in counts)):
        raise click.BadParameter(f"{value!r} is neither a number of workers, such as 8, nor nodes x workers, such as "
                                 "16x8")
    return math.prod(map(int, counts)), int(counts[1]) if len(counts) == 2 else None


@click.command("import")
@click.argument("sources", metavar="RUNS...", nargs=-1, required=True, shell_complete=paths)
@click.argument("out", metavar="LOG", shell_complete=paths)
@click.option("--map", "map_file", metavar="FILE", shell_complete=paths,
              help="runs: a TOML file that says what was not guessed, or wrongly")
@click.option("--dry-run", is_flag=True, help="runs: print how they would be read, as such a file, and stop")
@click.option("--kind", type=click.Choice(KINDS), help="what is given, where that is not plain")
@click.option("--skip-broken", is_flag=True, help="all but rcp: leave out what is wrong, and count it")
@click.option("--overlap", type=click.Choice(KEEPS), help="runs, csv: which rows stay where steps repeat")
@click.option("--unit", type=click.Choice(UNITS), help="runs: what a step counts; rcp, mllog: epoch_num")
@click.option("--set-size", "--train-examples", "train_examples", metavar="N", type=click.IntRange(1, 2**53),
              help="runs, rcp, mllog: examples in the training set")
@click.option("--dataset", help="runs, rcp, mllog: the name of the data set")
@click.option("--model", help="runs, rcp, mllog: the name of the model")
@click.option("--optimizer", help="runs, rcp, mllog: the name of the optimizer")
@click.option("--workers", type=worker_count, metavar="N|MXN", help="runs, mllog: workers of each run, or nodes x "
              "workers: 16x8")
@click.option("--batch", metavar="N", type=click.IntRange(1, 2**53), help="runs: the batch of each run")
@click.option("--batch-per", type=click.Choice(PERS), help="runs: whose the batch is: of all workers, or a worker's")
@click.option("--overwrite", is_flag=True, help="replace LOG where it exists")
@take_over_option
def import_log(sources, out, map_file, dry_run, kind, skip_broken, overlap, unit, train_examples, workers, batch,
               batch_per, overwrite, take_over, **names):
    """Import RUNS, files or folders, into the new log LOG, which is created only on success.

    \b
    runs      TensorBoard's event files, Hugging Face's trainer_state.json, MLflow's
              folder or SQLite, CSV with a row or JSON with an object a step, lines
              such as "step 9: val loss 2"
    csv       a folder with trials.csv and evaluations.csv
    mllog     MLPerf's logs: a file with :::MLLOG lines, a folder with result_*.txt
    rcp       a JSON file of MLPerf's reference points
    archive   a folder or .tar in the layout of Shallue et al. 2019

    How runs are read is guessed, and printed before LOG is written; --dry-run prints it alone. hvdscale-log export
    LOG FOLDER --as csv writes tables with the columns that are read.
    """
    lines = read_lines(map_file) if map_file else None
    kinds = [kind or "runs"] if kind or lines else list(dict.fromkeys(map(_kind_of, sources)))
    if len(kinds) > 1:
        raise UsageError(f"{sources[0]} is of kind {kinds[0]}, and others are of kind {', '.join(kinds[1:])}; import "
                         "each kind into a log of its own")
    kind, how = kinds[0], dict(overwrite=overwrite, take_over=take_over)
    names = {name: value for name, value in names.items() if value}
    for option, value, of in (
            ("skip-broken", skip_broken, "runs, archive, csv, mllog"), ("overlap", overlap, "runs, csv"),
            ("workers", workers, "runs, mllog"), ("map", map_file, "runs"), ("dry-run", dry_run, "runs"),
            ("batch", batch, "runs"), ("batch-per", batch_per, "runs"), *(
                (name, value, "runs, rcp, mllog") for name, value in {
                    "unit": unit, "set-size": train_examples, **names}.items())):
        if value and kind not in of.split(", "):
            raise UsageError(f"--{option} is for --kind {of}; the source is of kind {kind}")
    if kind == "runs":
        given = {"step_unit": unit, "train_examples": train_examples, "keep": overlap,
                 "batch_per": batch_per or (GLOBAL_BATCH if batch else None)}
        count, on_a_node = workers or (None, None)
        settings = {**names, "batch": batch, "workers": count, "nodes": count // on_a_node if on_a_node else None}
        return _import_runs(sources, out, map_file, lines, dry_run, skip_broken, given, settings, how)
    if len(sources) > 1:
        raise UsageError(f"an import of kind {kind} takes one source, and there are {len(sources)}; import each, and "
                         "report on the logs together")
    [source] = sources
    if kind == "archive":
        _import_archive(source, out, skip_broken, how)
    elif kind == "csv":
        left_out = [] if skip_broken else None
        rows, notes = import_tables(source, out, left_out=left_out, overlap=overlap, progress=_share("imported"), **how)
        _say_made(out, format_counts(rows), left_out or (), notes)
    elif kind == "mllog":
        wanted = Wanted(*(workers or (None, None)), unit, train_examples, names)
        done = import_mllog(source, out, wanted, skip_broken=skip_broken, **how)
        _say_made(out, counted(done.trials, "trial"), done.wrong, done.notes)
        if not wanted.workers:
            echo(UNTIMED, err=True)
    else:
        trials, notes = import_rcp(source, out, unit=unit, train_examples=train_examples, names=names, **how)
        _say_made(out, f"{counted(trials, 'trial')} under the target {TARGET}", (), notes)
        echo(ASSUMED.format("a reference point"), err=True)


def _import_runs(sources, out, map_file, lines, dry_run, skip_broken, given, settings, how):
    left_out = [] if skip_broken else None
    runs = read_runs(sources, lines, left_out)
    _say_left_out(left_out or ())
    mapping = guess(runs, given["step_unit"])
    if map_file:
        mapping = read_mapping(map_file, mapping, runs)
    given = {**given, **{name: Source(value) for name, value in settings.items() if value}}
    mapping = with_given(mapping, {name: value for name, value in given.items() if value})
    try:
        trials = settle(runs, mapping)
    except LogError:
        echo(mapping.as_toml(), err=not dry_run)
        raise
    echo(shown(trials, mapping, dry_run), err=not dry_run)
    if not dry_run:
        _say_made(out, counted(len(trials), "trial"), (), write(trials, out, mapping, sources, **how))


def _import_archive(source, out, skip_broken, how):
    started = time.monotonic()
    seen = import_archive(source, out, skip_broken=skip_broken, progress=_share("imported"), **how)
    if seen.others:
        files = " files" if len(seen.others) > 1 else ""
        echo(f"not of the layout, left out: {list_first(seen.others, 1)}{files}", err=True)
    _say_made(out, f"{counted(seen.trials, 'trial')} and {counted(seen.evaluations, 'evaluation')} of "
              f"{counted(seen.studies, 'study', 'studies')}", seen.wrong, seen.notes,
              f", in {time.monotonic() - started:.1f} s")
    echo(ASSUMED.format("an archive"), err=True)


@click.command("export")
@click.argument("log", shell_complete=paths)
@click.argument("out", metavar="FOLDER", shell_complete=paths)
@click.option("--as", "kind", type=click.Choice([*EXPORTS]), required=True, help="csv, parquet: tables with all that "
              "the log holds; tensorboard: a run a trial; archive: study.json, metadata.json and measurements.csv")
def export_log(log, out, kind):
    """Export LOG to the new FOLDER in a format that other programs read. `import` reads csv and archive back.

    parquet needs pyarrow, tensorboard the package of that name: pip install pyarrow tensorboard.
    """
    made = EXPORTS[kind](log, out, _share("exported"))
    if kind != "archive":
        return echo(f"{out}: {format_counts(made)}")
    echo(f"{out}: {counted(made.trials, 'trial')} of {counted(made.studies, 'study', 'studies')}")
    if made.own:
        echo(LOST, err=True)


def _share(verb: str) -> Callable[[float], None]:
    tell = Progress(partial(echo, err=True))
    return lambda share: tell(f"{verb} {share:.0%}")


def _kind_of(source) -> str:
    if os.path.isdir(source):
        asked = {"csv": is_tables, "mllog": is_mllog, "archive": is_archive}
        return next((kind for kind, is_kind in asked.items() if is_kind(source)), "runs")
    try:
        with open_input(source) as file:
            head = file.read(512)
    except OSError as error:
        raise UsageError(f"{source}: {refusal(error)}") from error
    if head.startswith(SIGNATURE):
        raise UsageError(f"{source}: is HDF5; if it is a log, it needs no import")
    if head.lstrip()[:1] == b"{" and not source.lower().endswith(".jsonl") and not has_runs(source):
        return "rcp"
    if head.startswith(tuple(OPENERS)) or head[257:262] == b"ustar" or ".tar" in os.path.basename(source):
        return "archive"
    if is_mllog(source):
        return "mllog"
    if has_runs(source):
        return "runs"
    raise UsageError(f"{source}: is none of what can be imported: an archive (its folder, or that as a .tar, .tar.gz, "
                     ".tar.bz2 or .tar.xz), a folder with trials.csv and evaluations.csv, a JSON object of MLPerf's "
                     f"reference points, a file with MLPerf's :::MLLOG lines, or runs: {say('known')}")


def _say_made(out, what, wrong, notes, more=""):
    """What was left out and noted, then what the new log holds."""
    _say_left_out(wrong)
    for note in notes:
        echo(f"note: {note}", err=True)
    echo(f"{out}: {what}, {byte_size(os.path.getsize(out))}{more}" + (f"; {len(wrong):,} left out" if wrong else ""))


def _say_left_out(wrong):
    for line in wrong[:MOST_LINES]:
        echo(f"left out: {line}", err=True)
    if len(wrong) > MOST_LINES:
        echo(f"left out: {len(wrong) - MOST_LINES:,} more", err=True)
