"""hvdscale-report compare and noise: a candidate's logs against a baseline's; what difference reruns let one see."""

import contextlib
import json
import os

import click

from ..analysis.budgets import Budget
from ..analysis.compare import BEST, OK, REGRESSION, Tolerances, compare_trials, pair_exact, runs_of, worst_of
from ..analysis.decide import decide, floors, worst
from ..analysis.decision.sequence import OPEN, WORSE, spend
from ..analysis.defaults import confidence_of, share_of
from ..analysis.steps import SECONDS, SPEED, STEPS
from ..analysis.trials import read_trials
from ..doctor.finding import Finding, Verdict
from ..doctor.formats import JUNIT, render_for_machines
from ..errors import ExitCode, UsageError
from ..report.compare import (as_json, comparison_table, decision_lines, decision_values, describe, detail_table,
                              equality_json, noise_lines, noise_tables, noise_values, place_of, verdict_line, wrapped)
from ..report.runs import read
from ..report.table import as_csv, as_text
from ..system.outputs import replace_own
from ..target import Target
from .common import CONTEXT, Command, confidence_option, echo, ledger_option, paths, width_option, within_option

WRITERS = (".json", ".csv", ".xml")
# cost is seconds at one worker count
MEASURES = {"steps": STEPS, "seconds": SECONDS, "cost": SECONDS, "throughput": SPEED, "metric": BEST}


@click.command("compare", cls=Command, context_settings=CONTEXT)
@click.argument("baseline", metavar="BASELINE", shell_complete=paths)
@click.argument("candidate", metavar="CANDIDATE", shell_complete=paths)
@click.option("--target", "targets", multiple=True, metavar="TARGET",
              help="Such as 'val/error<0.01'; may be given several times. Without it: those of the baseline's plans.")
@click.option("--tolerance", default="10%", show_default=True, metavar="SHARE",
              help="How many more steps to target the candidate may need.")
@click.option("--time-tolerance", default="25%", show_default=True, metavar="SHARE",
              help="How much more time it may need, and how much lower its throughput may be; none: not judged.")
@click.option("--metric-tolerance", default="none", show_default=True, metavar="AMOUNT",
              help="How much worse its best metric may be, in the unit of the metric.")
@confidence_option
@click.option("--strict", is_flag=True, help="Also fail where no verdict is possible, such as a missing cell or "
              "missing times (but not with --time-tolerance none).")
@click.option("--decide", "deciding", is_flag=True,
              help="Decide: better, worse, alike or open, by a test that may be looked at after every run.")
@click.option("--by", type=click.Choice([*MEASURES]),
              help="With --decide: what decides.  [default: steps, without a target throughput]")
@click.option("--budget", metavar="AMOUNT",
              help="With --by metric: its best value within '5000 steps', '10 epochs' or examples.")
@within_option
@ledger_option
@click.option("--equal", is_flag=True,
              help="Ask for the same bits, of runs with exact = true at any worker counts, in place of all tolerances.")
@click.option("--out", metavar="FILE", shell_complete=paths, help="Write every test there: FILE.json or FILE.csv; "
              "with --decide FILE.xml is JUnit's.")
@click.option("--skip-broken", is_flag=True, help="Skip logs that cannot be read, and name them.")
@width_option
def main(baseline, candidate, targets, tolerance, time_tolerance, metric_tolerance, confidence, strict, deciding, by,
         budget, within, ledger, equal, out, skip_broken):
    """Whether CANDIDATE converges as well as BASELINE: each a log, or a directory of logs.

    Steps and time to target, throughput and the best metric are compared for each workload, worker count and global
    batch that both have; of searches the median best of as many trials as both have. A regression is an interval that
    lies wholly beyond the tolerance, or a target that the candidate does not meet.

    \b
      hvdscale-report compare main.h5 branch.h5 --tolerance 10%
      hvdscale-report compare nightly/ today/ --strict --out verdict.json
      hvdscale-report compare base/ change/ --decide --ledger base.json

    Exit code 0: no regression is certain; 4: there is one, or with --strict one cannot be ruled out, or with --equal
    some bits differ; 1: a log cannot be read; 2: an option is invalid, or there is nothing to compare. With --decide 0:
    better or alike; 4: worse; 5: open.
    """
    if_any = (None if text.strip() == "none" else share_of(name, text) for name, text in (
        ("--time-tolerance", time_tolerance), ("--metric-tolerance", metric_tolerance)))
    tolerances = Tolerances(share_of("--tolerance", tolerance), *if_any, confidence_of(confidence))
    if out is not None and os.path.splitext(out)[1] not in WRITERS:
        raise UsageError(f"--out {out}: ends in none of {', '.join(WRITERS)}, so it is not known what to write")
    if out is not None and out.endswith(".csv" if deciding else ".xml"):
        raise UsageError(f"--out {out}: with --decide a FILE.json or FILE.xml is written, else FILE.json or FILE.csv")
    if equal:
        return _compare_bits((baseline, candidate), out, skip_broken)
    for name, given, needed in (("--by", by, deciding), ("--budget", budget, by == "metric"),
                                ("--ledger", ledger, deciding)):
        if given and not needed:
            raise UsageError(f"{name} {given}: needs --{'by metric' if name == '--budget' else 'decide'}")
    within = share_of("--within", within)
    trials = [read_all(path, skip_broken) for path in (baseline, candidate)]
    comparisons = compare_trials(*trials, [Target.parse(target) for target in targets], tolerances)
    for comparison in comparisons:
        echo(as_text(comparison_table(comparison)))
    if deciding:
        found = say_decision(comparisons, within, by, ledger, budget and Budget.parse(budget))
        code = write_decision(out, comparisons, (baseline, candidate), found, within, ledger)
    else:
        echo(wrapped(verdict_line(comparisons)))
        verdict = worst_of(one.verdict for one in comparisons)
        code = ExitCode.REGRESSION if verdict == REGRESSION or strict and verdict != OK else ExitCode.DONE
        if out is not None:
            replace_own(out, json_text(as_json(comparisons, (baseline, candidate))) if out.endswith(".json") else
                        as_csv(detail_table(comparisons)))
    click.get_current_context().exit(code)


def say_decision(comparisons, within, by=None, ledger=None, budget=None, both=True):
    measure = MEASURES[by or ("steps" if comparisons[0].target else "throughput")]
    what = " ".join(dict.fromkeys([measure, *(str(one.target) for one in comparisons), str(budget or "")])).strip()
    found = decide(comparisons, measure, within, 1.0, budget, both)
    if ledger and not all(one.reason for one in found):         # a test is made of some
        share = spend(ledger, comparisons[0].tolerances.confidence, what, *(
            [trial for one in comparisons for cell in one.cells for trial in getattr(cell, side).considered]
            for side in ("baseline", "candidate")))
        found = decide(comparisons, measure, within, share, budget, both)
    for line in decision_lines(found, within, ledger, both):
        echo(wrapped(line))
    return found


def write_decision(out, comparisons, logs, found, within, ledger):
    """Write what was decided as JSON or JUnit's XML, unless out is None; its exit code."""
    code = {WORSE: ExitCode.REGRESSION, OPEN: ExitCode.OPEN}.get(worst(found), ExitCode.DONE)
    values = decision_values(found, within, ledger)
    if out and out.endswith(".xml"):
        verdicts = {WORSE: Verdict.FAILED, OPEN: Verdict.UNSEEN}
        replace_own(out, render_for_machines(JUNIT, values | {"decisions": ()}, [
            Finding(place_of(one), verdicts.get(one.decision, Verdict.PASSED), describe(one), one.decision)
            for one in found], code, suite="hvdscale-report compare"))
    elif out:
        replace_own(out, json_text(as_json(comparisons, logs) | values))
    return code


def _compare_bits(paths, out, skip_broken):
    if out is not None and not out.endswith(".json"):
        raise UsageError(f"--out {out}: with --equal a FILE.json is written")
    with contextlib.ExitStack() as opened:
        pairs, alone = pair_exact(*(runs_of(opened.enter_context(_opened(path, skip_broken))) for path in paths))
    found = equality_json(pairs, alone, paths)
    echo(wrapped(found["said"]))
    if out is not None:
        replace_own(out, json_text(found))
    if not found["equal"]:
        click.get_current_context().exit(ExitCode.REGRESSION)


@contextlib.contextmanager
def _opened(path, skip_broken):
    with read(path, skip_broken=skip_broken) as runs:
        for message in (*(f"skipped: {message}" for message in runs.skipped), *runs.remarks):
            echo(message)
        yield runs.logs


def read_all(path, skip_broken=False):
    """The trials of a log or a directory; says what is skipped."""
    with _opened(path, skip_broken) as logs:
        return [trial for log in logs for trial in read_trials(log)]


def json_text(values):
    return json.dumps(values, indent=1, allow_nan=False) + "\n"


@click.command("noise", cls=Command, context_settings=CONTEXT)
@click.argument("runs", metavar="RUNS", shell_complete=paths)
@click.option("--target", "targets", multiple=True, metavar="TARGET",
              help="Such as 'val/error<0.01'. Without it: those of the runs' plans.")
@confidence_option
@click.option("--out", metavar="FILE", shell_complete=paths, help="Write it as JSON.")
@width_option
def noise(runs, targets, confidence, out):
    """The smallest difference that 1, 2, 3, 5 and 10 runs of each side see at 80%, from RUNS: three or more reruns of a
    setting with several seeds, and for MLPerf's benchmarks the chance to pass the convergence check."""
    found = floors(read_all(runs), [Target.parse(target) for target in targets], confidence_of(confidence))
    if not found:
        raise UsageError(f"{runs}: no setting has three finished runs with different seeds; run one more often")
    for table in noise_tables(found):
        echo(as_text(table))
    for line in noise_lines(found):
        echo(wrapped(line))
    if out:
        replace_own(out, json_text({"format": "hvdscale-noise", "said": noise_lines(found),
                                    "noise": noise_values(found)}))
