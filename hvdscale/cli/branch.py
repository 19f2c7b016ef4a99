"""hvdscale-branch: how far the batch may grow at points of training, by branches from checkpoints of one run."""

import os

import click

from ..errors import UsageError
from ..plan.branches import BranchRequest
from ..plan.settings import PLACES, Settings
from .common import CONTEXT, begin_run, paths, rerun_option, version_option, whole_numbers
from .train import FEW, Grouped, asked, carry_out_together, key_options

DEFAULT = BranchRequest()


@click.command(cls=Grouped, context_settings=CONTEXT, few="--out --at --from --factors --orders --branch-examples "
               f"--metric --tolerance --dry-run --overwrite {FEW}")
@click.option("--out", required=True, metavar="DIR", shell_complete=paths, help="folder for the logs and checkpoints")
@click.option("--at", metavar="LIST", help="steps of the run at which to branch  [default: 1/8, 1/4, 1/2 and all of "
              "its budget]")
@click.option("--from", "source", metavar="DIR", shell_complete=paths, help="branch from the checkpoints of a run of "
              "hvdscale-train, rather than train one; its log names workload and settings")
@click.option("--factors", metavar="LIST", default=",".join(map(str, DEFAULT.factors)), show_default=True,
              help="k: branches have k times the run's batch")
@click.option("--orders", type=click.IntRange(1, 1000), default=DEFAULT.orders, show_default=True,
              help="branches of each k, with other orders of the data")
@click.option("--branch-examples", type=click.IntRange(min=1), metavar="N",
              help="examples of each branch, rounded up  [default: 16 steps of the largest batch]")
@click.option("--evaluations", type=click.IntRange(min=2), default=DEFAULT.evaluations, show_default=True,
              help="evaluations of each branch, from which the loss at its end is smoothed")
@click.option("--rule", metavar="RULE", help="how the rate follows the batch, as --lr-rule of hvdscale-train  "
              "[default: linear for sgd, momentum and nesterov; sqrt for others]")
@click.option("--metric", metavar="SPLIT/NAME", help="the loss to compare  [default: train/cross_entropy]")
@click.option("--tolerance", metavar="LOSS|SHARE", help="how much more loss a larger batch may have, such as 0.01 or "
              "1%  [default: 0.01 for language models, else 5%]")
@click.option("--shard", metavar="I/N", help="this part of the branches, 0/N to (N-1)/N; for the tasks of a job array")
@click.option("--dry-run", is_flag=True, help="print the plan of the run and what its branches would be, and stop")
@rerun_option
@key_options(without=PLACES)
@version_option
def command(workload, out, at, source, factors, orders, branch_examples, evaluations, rule, metric, tolerance, shard,
            dry_run, overwrite, **given):
    """Measure the critical batch of WORKLOAD along its training, alone, or under horovodrun, mpirun, srun or torchrun.

    One run is trained with checkpoints at the steps --at. From each of them branches train at several times its
    batch, for the same number of examples. The report names the largest batch whose loss is within the tolerance of
    the best smaller one (Merrill et al. 2025), beside the gradient noise scale. All other options are those of
    hvdscale-train. If interrupted, the same command resumes.

    \b
      hvdscale-branch digits/fc --out runs/branched --steps 400 --at 50,100,200,400
      hvdscale-branch --from runs/kept --out runs/branched --factors 1,2,4,8
      hvdscale-report runs/branched

    Exit codes: 0 done, 1 error, 2 misuse, 3 the run diverged, 75 stopped by a signal.
    """
    from ..analysis.defaults import Tolerance
    if tolerance is not None:
        Tolerance.parse(tolerance, "--tolerance")
    wanted = BranchRequest(_ascending("--at", at) if at else (), _ascending("--factors", factors), orders,
                           branch_examples, evaluations, rule, metric, tolerance)
    if len(wanted.factors) < 2 or wanted.factors[0] < 1:
        raise UsageError(f"--factors {factors}: give at least two, from 1 on, such as 1,2,4,8")
    if source is not None and (workload is not None or given["config"] is not None):
        raise UsageError("--from DIR: the log of that run names its workload and settings; leave "
                         f"{'--config' if workload is None else workload} out")
    workload, layers = asked(workload if source is None else "-", **given)
    for name in Settings.build({}, *layers).asked():
        if name in PLACES:
            raise UsageError(f"{name} cannot be set: --out says where runs write, and --overwrite is an option")
    index, _, count = (shard or "0/1").partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise UsageError(f"--shard {shard!r} is not I/N with I from 0 to N - 1, such as 0/3")
    return workload, layers, wanted, out, source, (int(index), int(count)), overwrite, dry_run


def _ascending(option: str, text: str) -> tuple[int, ...]:
    return tuple(sorted(set(whole_numbers(option, text))))


def main() -> None:
    begin_run()
    carry_out_together(command, _run)


def _run(name, layers, wanted, out, source, shard, overwrite, dry_run, workers) -> int:
    from ..training.branches import Branching, layers_of_run
    with workers.together("the run to branch from"):
        if source is not None:
            name, of_run = layers_of_run(source)
            layers = [of_run, *layers]
        if workers.rank == 0 and not dry_run:
            os.makedirs(out, exist_ok=True)
    return Branching(name, layers, wanted, out, source, shard, overwrite, workers).carry_out(dry_run)


if __name__ == "__main__":
    main()
