"""hvdscale-report compare: a candidate's logs against a baseline's, as a gate for convergence."""
from __future__ import annotations

import contextlib
import json
import os

import click

from ..analysis.compare import OK, REGRESSION, Tolerances, compare_trials
from ..analysis.equality import pair_exact, runs_of
from ..analysis.shares import confidence_of, share_of
from ..analysis.trials import read_trials
from ..errors import ExitCode, UsageError
from ..formatting.lines import wrap
from ..report.compare import as_json, comparison_table, detail_table, equality_json, verdict_of, verdict_text
from ..report.runs import read
from ..report.table import as_csv, as_text
from ..system.outputs import replace_own
from ..target import Target
from .common import CONTEXT, Command, confidence_option, echo, width_option
from .completion import paths

WRITERS = (".json", ".csv")


@click.command("compare", cls=Command, context_settings=CONTEXT)
@click.argument("baseline", metavar="BASELINE", shell_complete=paths)
@click.argument("candidate", metavar="CANDIDATE", shell_complete=paths)
@click.option("--target", "targets", multiple=True, metavar="TARGET",
              help="Such as 'val/error<0.01'; may be given several times. Without it: those of the baseline's plans.")
@click.option("--tolerance", default="10%", show_default=True, metavar="SHARE",
              help="How many more steps to target the candidate may need.")
@click.option("--time-tolerance", default="25%", show_default=True, metavar="SHARE",
              help="How much more time it may need, and how much lower its throughput may be; none: times are "
                   "shown, not judged.")
@click.option("--metric-tolerance", default="none", show_default=True, metavar="AMOUNT",
              help="How much worse its best metric may be, in the unit of the metric.")
@confidence_option
@click.option("--strict", is_flag=True,
              help="Also fail where no verdict is possible, such as a missing cell or missing times (but not with "
                   "--time-tolerance none).")
@click.option("--equal", is_flag=True,
              help="Ask for the same bits, of runs with exact = true at any worker counts, in place of all tolerances.")
@click.option("--out", metavar="FILE", shell_complete=paths, help="Write every test there: FILE.json or FILE.csv.")
@click.option("--skip-broken", is_flag=True, help="Skip logs that cannot be read, and name them.")
@width_option
def main(baseline, candidate, targets, tolerance, time_tolerance, metric_tolerance, confidence, strict, equal,
         out, skip_broken):
    """Whether CANDIDATE converges as well as BASELINE: each a log, or a directory of logs.

    Steps and time to target, throughput and the best metric are compared for each workload, worker count and global
    batch that both have; of searches the median best of as many trials as both have. A regression is an interval that
    lies wholly beyond the tolerance, or a target that the candidate does not meet.

    \b
      hvdscale-report compare main.h5 branch.h5 --tolerance 10%
      hvdscale-report compare nightly/ today/ --strict --out verdict.json

    Exit code 0: no regression is certain; 4: there is one, or with --strict one cannot be ruled out, or with --equal
    some bits differ; 1: a log cannot be read; 2: an option is invalid, or there is nothing to compare.
    """
    tolerances = Tolerances(share_of("--tolerance", tolerance), _optional("--time-tolerance", time_tolerance),
                            _optional("--metric-tolerance", metric_tolerance), confidence_of(confidence))
    if out is not None and os.path.splitext(out)[1] not in WRITERS:
        raise UsageError(f"--out {out}: ends in none of {', '.join(WRITERS)}, so it is not known what to write")
    if equal:
        _compare_bits((baseline, candidate), out, skip_broken)
        return
    trials = [_read(path, skip_broken) for path in (baseline, candidate)]
    comparisons = compare_trials(*trials, [Target.parse(target) for target in targets], tolerances)
    for comparison in comparisons:
        echo(as_text(comparison_table(comparison)))
    echo(verdict_text(comparisons))
    if out is not None:
        replace_own(out, _json_text(as_json(comparisons, (baseline, candidate))) if out.endswith(".json") else
                    as_csv(detail_table(comparisons)))
    verdict = verdict_of(comparisons)
    if verdict == REGRESSION or strict and verdict != OK:
        click.get_current_context().exit(ExitCode.REGRESSION)


def _compare_bits(paths, out, skip_broken):
    if out is not None and not out.endswith(".json"):
        raise UsageError(f"--out {out}: with --equal a FILE.json is written")
    with contextlib.ExitStack() as opened:
        pairs, alone = pair_exact(*(runs_of(opened.enter_context(_opened(path, skip_broken))) for path in paths))
    found = equality_json(pairs, alone, paths)
    echo(wrap(found["said"]))
    if out is not None:
        replace_own(out, _json_text(found))
    if not found["equal"]:
        click.get_current_context().exit(ExitCode.REGRESSION)


@contextlib.contextmanager
def _opened(path, skip_broken):
    with read(path, skip_broken=skip_broken) as runs:
        for message in (*(f"skipped: {message}" for message in runs.skipped), *runs.remarks):
            echo(message)
        yield runs.logs


def _read(path, skip_broken):
    with _opened(path, skip_broken) as logs:
        return [trial for log in logs for trial in read_trials(log)]


def _json_text(values):
    return json.dumps(values, indent=1, allow_nan=False) + "\n"


def _optional(name, text):
    return None if text.strip() == "none" else share_of(name, text)
