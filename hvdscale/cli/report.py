"""hvdscale-report: tables, figures and a page from logs, without torch."""

from functools import partial

import click

from ..analysis.defaults import CROSSINGS, FIRST, LOSS_WITHIN, PERFECT_WITHIN, RULE_WITHIN, RULES, USEFUL_WITHIN
from ..formatting.screen import Progress
from ..target import Target
from .common import (CONTEXT, Command, confidence_option, echo, formats_of, formats_option, full_option,
                     general_options, paths, slow_imports)


@click.command(cls=Command, context_settings=CONTEXT, words={"compare": "compare:main", "noise": "compare:noise"},
               few="--target --out --budget --compare --useful-within --size --figures --full --skip-broken --width")
@click.argument("logs", nargs=-1, required=True, metavar="LOGS...", shell_complete=paths)
@click.option("--target", "targets", multiple=True, metavar="TARGET",
              help="Split/metric, a comparison and a number, such as 'val/error<0.01'; may be given several times. "
                   "Without it each trial is compared with the target of its own plan.")
@click.option("--out", metavar="DIR", shell_complete=paths,
              help="Write report.html, report.json, tables/ and figures/ there.")
@formats_option
@click.option("--figures", type=click.Choice(["main", "all"]), default="main", show_default=True,
              help="Which to draw: the main ones of each workload and those of --compare and --paper, or every one.")
@click.option("--budget", "budgets", multiple=True, metavar="LIST",
              help="Show the best of each metric under budgets, such as '5000 steps, 10 epochs'; in steps, epochs, "
                   "examples or seconds; may be given several times.")
@click.option("--compare", multiple=True, metavar="NAME",
              help="Compare curves with published ones: shallue2019, mlperf, mccandlish2018, zhang2024.")
@click.option("--paper", metavar="NAME", help="Draw every figure that was published with these curves: shallue2019.")
@click.option("--perfect-within", default=str(PERFECT_WITHIN), show_default=True, metavar="SHARE",
              help="A batch scales perfectly if it needs at most this share more examples than the best one.")
@click.option("--useful-within", default=str(USEFUL_WITHIN), show_default=True, metavar="SHARE",
              help="The maximum useful batch is the smallest that needs at most this share more steps than the fewest.")
@click.option("--loss-within", default=LOSS_WITHIN, show_default=True, metavar="LOSS|SHARE",
              help="At a fixed budget, list the batches whose loss is at most this much above that of the best batch, "
                   "such as 0.01 or 1%.")
@click.option("--rule", "rules", multiple=True, metavar="RULE", default=RULES, show_default=True,
              help="Learning-rate rules to compare with the tuned optimum, as lr_rule of hvdscale-train takes them: "
                   "linear, sqrt, none or power:0.7; with max_lr_factor behind <=, such as 'linear<=8'; adam_sqrt for "
                   "adam and adamw; may be given several times.")
@click.option("--rule-within", default=str(RULE_WITHIN), show_default=True, metavar="SHARE",
              help="A rule loses at a batch where it needs more than this share more steps than the tuned optimum.")
@click.option("--branch-tolerance", metavar="LOSS|SHARE",
              help="How much more loss than the best smaller batch a branch of hvdscale-branch may have, such as 0.01 "
                   "or 1%.  [default: as the branches were run]")
@click.option("--trials", type=click.IntRange(min=1), metavar="N",
              help="Compare searches at the median best of N trials at every batch, and leave out batches with fewer. "
                   "Without it N is the smallest number of trials of any batch.")
@click.option("--crossing", type=click.Choice(CROSSINGS), default=FIRST, show_default=True,
              help="Where a run meets its target: at the first evaluation that does, or where its curve, smoothed, "
                   "crosses it for good.")
@click.option("--size", "sizes", multiple=True, metavar="NAME[=PATTERN]",
              help="Fit laws over a size in which the runs differ: parameters, tokens (of the budget), examples (of "
                   "the training set), an argument of the model such as width, or a column of an imported table; or "
                   "from the workload's name by a pattern, such as 'parameters=gpt_([0-9.]+[MB])'; may be given "
                   "several times.")
@click.option("--law", "laws", multiple=True, metavar="RULE",
              help="Show what a rule from elsewhere costs at each size that was measured, such as "
                   "'batch = 8.7e-3 * tokens^0.383' or 'rate = 0.3 * parameters^-0.5'; with --size; may be given "
                   "several times.")
@confidence_option
@full_option
@click.option("--skip-broken", is_flag=True,
              help="Continue without logs that cannot be read; they are named and counted.")
@general_options
def main(logs, targets, out, formats, figures, full, skip_broken, **asked):
    """Steps, time and speedup to a target, from LOGS: log files, or directories of them or of other programs' runs.

    \b
      hvdscale-report runs/*.h5 --out report/
      hvdscale-report runs --target "val/error<0.02" --target "val/error<0.01"
      hvdscale-report compare main.h5 branch.h5     # two logs, as a gate: hvdscale-report compare --help
      hvdscale-report noise reruns/                 # what difference so many runs see
    """
    with slow_imports():                # which --help can do without
        from ..report.pages import make
        from ..report.subject import request_of
    request = request_of(**asked, spell=lambda name: f"--{name.replace('_', '-')}")
    make(logs, list(map(Target.parse, targets)), out, asked=request, formats=formats_of(formats),
         skip_broken=skip_broken, every_figure=figures == "all", whole=full, echo=echo,
         tell=Progress(partial(echo, err=True)))


if __name__ == "__main__":
    main()
