"""hvdscale-report noise: the smallest difference that reruns of a setting let one see."""
from __future__ import annotations

import click

from ..analysis.decide import floors
from ..analysis.shares import confidence_of
from ..errors import UsageError
from ..formatting.lines import wrap
from ..report.decide import noise_lines, noise_table
from ..report.table import as_text, as_values
from ..system.outputs import replace_own
from ..target import Target
from .common import CONTEXT, Command, confidence_option, echo, width_option
from .compare import json_text, read_all
from .completion import paths


@click.command("noise", cls=Command, context_settings=CONTEXT)
@click.argument("runs", metavar="RUNS", shell_complete=paths)
@click.option("--target", "targets", multiple=True, metavar="TARGET",
              help="Such as 'val/error<0.01'. Without it: those of the runs' plans.")
@confidence_option
@click.option("--out", metavar="FILE", shell_complete=paths, help="Write it as JSON.")
@width_option
def main(runs, targets, confidence, out):
    """The smallest difference that 1, 2, 3, 5 and 10 runs of each side see at 80%, from RUNS: three or more reruns of a
    setting with several seeds, and for MLPerf's benchmarks the chance to pass the convergence check.
    """
    found = floors(read_all(runs), [Target.parse(target) for target in targets], confidence_of(confidence))
    if not found:
        raise UsageError(f"{runs}: no setting has three finished runs with different seeds; run one more often")
    table = noise_table(found)
    echo(as_text(table))
    for line in noise_lines(found):
        echo(wrap(line))
    if out:
        replace_own(out, json_text({"format": "hvdscale-noise", "said": noise_lines(found), "noise": as_values(table)}))
