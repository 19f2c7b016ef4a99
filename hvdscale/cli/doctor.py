"""hvdscale-doctor: is a job the same problem on any number of workers?"""

import os
import sys
import time
from collections.abc import Callable
from functools import partial

import click

from ..formatting.screen import Progress, Screen, quiet
from ..system.hangup import end_at_signals
from ..workers.launch import launched, on_terminal
from .common import CONTEXT, checks_option, command_at, format_option, general_options
from .train import FEW, Grouped, asked, carry_out_together, key_options


@click.command(cls=Grouped, context_settings=CONTEXT, few=f"--sample --checks --format {FEW}")
@key_options(unlisted=("checkpoint", "resume", "log", "save_model", "overwrite", "accept_changes"))
@click.option("--sample", type=click.IntRange(min=8), default=46, show_default=True,
              help="examples in the step that findings about the model take; fewer are faster and need less memory")
@checks_option
@format_option
@general_options
def command(workload, sample, checks, wanted, **given):
    """Check that WORKLOAD is the same problem on any number of workers: alone, or under horovodrun, mpirun, srun
    or torchrun.

    WORKLOAD is dataset/model (`hvdscale-train --list` names them) or module:object, your own
    hvdscale.workload.Workload. The doctor checks the job that hvdscale-train would run with these options. It writes
    neither log nor checkpoint, so options such as --checkpoint are ignored.

    \b
      hvdscale-doctor digits/cnn
      horovodrun -np 2 hvdscale-doctor job:workload --global-batch 96
      hvdscale-doctor job:workload --checks gradients,losses --format junit > doctor.xml

    A training script with DistributedDataParallel is examined as it is:

    \b
      hvdscale-doctor script train.py --batch 32 -- --batch-size {local}
      hvdscale-doctor script --help
      hvdscale-doctor resume train.py --stop 6
    """
    return *asked(workload, **given), sample, checks, wanted


def main() -> None:
    """Run the command. Exit codes: 0 no finding failed, 1 one failed or the job cannot start, 2 misuse."""
    word = "".join(sys.argv[1:2])
    if word in ("script", "resume"):
        return command_at(f"doctor_script:{word}")(sys.argv[2:], prog_name=f"{os.path.basename(sys.argv[0])} {word}")
    if launched() is None:
        end_at_signals()
    carry_out_together(command, _run)


def _run(name, layers, sample, checks, wanted, workers) -> int:
    from ..doctor.ranks import play
    from ..doctor.examine import ORDER, examine
    from ..doctor.formats import TEXT, checks_of, render_for_machines, stdout_alone
    from ..training.prepare import prepare
    with workers.together("the checks"):
        checks = checks_of(checks, ORDER)
    with stdout_alone(wanted) as out:
        terminal = workers.rank == 0 and wanted == TEXT and on_terminal(out)
        started, screen = time.monotonic(), Screen(out, terminal, (0.0, 0.0))
        if launched() is None:
            play(0, 1)                      # as in the child processes, so that the job may ask for its rank
        job = prepare(name, layers, workers)
        examination = examine(job, layers, workers, sample, say_on(workers.rank, screen), checks)
        code = 0 if examination.sound else 1
        if workers.rank == 0:
            screen.erase()
            print(examination.render(time.monotonic() - started, terminal) if wanted == TEXT else
                  render_for_machines(wanted, examination.about, examination.findings, code), file=out)
        return code


def say_on(rank: int, screen: Screen) -> Callable[[str], None]:
    """The printer of check names on this rank: to a terminal at once, else to stderr once it takes a while."""
    if screen.terminal:
        return lambda name: screen.line(f"checking {name}", time.monotonic())
    tell = Progress(partial(click.echo, err=True)) if rank == 0 else quiet
    return lambda name: tell(f"checking {name}")


if __name__ == "__main__":
    main()
