"""Sweep files of the quadratic bowl, and hvdscale-tune on them."""
import contextlib
import io
import signal
import subprocess
import sys
import time

from hvdscale.analysis.search import searches_of
from hvdscale.analysis.trials import read_trials
from hvdscale.cli.tune import TuneRequest, Signals
from hvdscale.log.reader import read_log
from hvdscale.sweep.file import read_sweep
from hvdscale.sweep.run import SweepRun
from hvdscale.workers.group import SingleWorker
from hvdscale.workers.launch import place
from tests.conftest import command_environment, launcher_command
from tests.factories.sweeps import assert_same_study

TUNE = (sys.executable, "-m", "hvdscale.cli.tune")


def sweep_file(folder, name="sweep.toml", settings="", **said):
    """A sweep of two studies by default; ``said`` replaces what stands at the top and in [space.lr]."""
    top = dict(workload='"tests.parallel.quadratic:workload"', batch_sizes="[16, 64]", optimizer='"sgd"', trials="6",
               targets='["val/loss<0.1", "val/loss<0.001"]', steps="48", evaluations="24", prune_keep="2")
    low, high = said.pop("low", "0.02"), said.pop("high", "0.5")
    top.update({name: str(value) for name, value in said.items()})
    text = "\n".join(f"{name} = {value}" for name, value in top.items() if value != "None")
    path = folder / name
    path.write_text(f"{text}\n[settings]\nthreads = 1\n{settings}\n"
                    f"[space.lr]\nscale = 'log'\nmin = {low}\nmax = {high}\n")
    return path


def tune(run, sweep, out, *options, ranks=0, launcher="mpirun", **given):
    """Run hvdscale-tune to its end, alone or on so many ranks."""
    launched = launcher_command(launcher, ranks) if ranks else []
    return run(*launched, *TUNE, sweep, "--out", out, *options, **given)


def asked(sweep, out, **said):
    """A command line that says no more than this."""
    return TuneRequest(**{**dict(path=str(sweep), sweep=read_sweep(str(sweep)), out=str(out), only={},
                                 free={}, mode="run", take_over=False, terminal=False), **said})


def carry_out(sweep, out, **said):
    """The sweep carried out in this process: the exit code, and what was printed; raises what the command would say."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = SweepRun(asked(sweep, out, **said), SingleWorker(), place(), Signals()).carry_out()
    return code, printed.getvalue()


def start(sweep, out, *options, launched=()):
    """Start hvdscale-tune in a process group of its own, alone or by a launcher."""
    return subprocess.Popen([*launched, *TUNE, str(sweep), "--out", str(out), *options], env=command_environment(),
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)


def exit_code(process):
    """Its exit code, once it has ended; what it printed is dropped."""
    process.communicate()
    return process.returncode


def kill_after(process, seconds):
    """Kill it, and by that its child, after the seconds, unless it has ended."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    process.communicate()
    time.sleep(0.2)


def studies_in(out):
    """Names of the studies' logs."""
    return sorted(path.stem for path in out.glob("*.h5"))


def search_in(out, study):
    with read_log(out / f"{study}.h5") as log:
        (search,) = searches_of(read_trials(log))
    return search


def steps_in(out, study):
    """Of each trial its draw, kind and steps to the strictest target."""
    return [(draw.number, draw.kind, draw.value) for draw in search_in(out, study).draws]


def assert_same_sweep(out, other, but_for=(), rtol=0.0):
    assert studies_in(out) == studies_in(other) != []
    for study in studies_in(out):
        assert_same_study(out / f"{study}.h5", other / f"{study}.h5", but_for, rtol)
