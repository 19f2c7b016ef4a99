"""Commands that write, killed at random moments: the same command then gives what it would have, and nothing else."""
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback

import numpy as np
import pytest

import hvdscale
from hvdscale.cli import start
from hvdscale.log.check import check
from hvdscale.system.files import clear_leavings
from tests.conftest import command_environment, restore_handlers
from tests.log.test_record import ABOUT

SCRIPT = """import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(200):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()
"""
RECORD = ("import hvdscale\n"
          f"with hvdscale.record('out.h5', overwrite=True, **{ABOUT}) as run:\n"
          "    for step in range(60000):\n        run.step(1.0)\n")
KILLED = RECORD.replace("out.h5", "broken.h5") + """    with run.evaluation() as seen:
        seen["val/error"] = 0.5
    import os
    os.kill(os.getpid(), 9)
"""
SWEEP = """workload = "digits/fc"
batch_sizes = [32]
optimizer = "sgd"
trials = 3
targets = ["val/error<0.01"]
steps = 20
evaluations = 4
[settings]
threads = 1
[space.lr]
scale = "log"
min = 0.02
max = 0.5
"""
ON_PATH = {"hvdscale-train": "train", "hvdscale-tune": "tune", "hvdscale-branch": "branch", "hvdscale-log": "log",
           "hvdscale-report": "report", "hvdscale-plan": "plan"}         # commands that run in a fork of the tests
COMMANDS = {
    "export": "hvdscale-log export in.h5 out --as csv", "parquet": "hvdscale-log export in.h5 out --as parquet",
    "archive": "hvdscale-log export in.h5 out --as archive",
    "import": "hvdscale-log import tables out.h5 --overwrite",
    "runs": "hvdscale-log import lines out.h5 --unit steps --overwrite",
    "merge": "hvdscale-log merge in.h5 other.h5 --out out.h5 --overwrite", "repair": "hvdscale-log repair broken.h5",
    "report": "hvdscale-report other.h5 --out out --format json,csv",
    "compare": "hvdscale-report compare other.h5 other.h5 --out out.json",
    "decide": "hvdscale-report compare other.h5 other.h5 --decide --by throughput --ledger out.json",
    "plan": "hvdscale-plan other.h5 --noise-scale 100 --out out --format json,csv",
    "record": f"{sys.executable} record.py",
    "train": "hvdscale-train digits/fc --steps 60 --log-file out.h5 --overwrite --save-model out.pt",
    "resume": "hvdscale-train digits/fc --steps 60 --log-file out.h5 --checkpoint out --set checkpoint_every=5 "
              "--resume auto",
    "tune": "hvdscale-tune sweep.toml --out out",
    "branch": "hvdscale-branch digits/fc --steps 20 --at 10,20 --factors 1,2 --orders 1 --branch-examples 64 --out out",
    "scale": "hvdscale-scale digits/fc --workers 1 --steps 5 --out out",
    "scale script": "hvdscale-scale script script.py --workers 1 --batch 8 --out out",
    "doctor": "hvdscale-doctor digits/fc --checks gradients",
    "doctor script": "hvdscale-doctor script script.py",
    "doctor resume": "hvdscale-doctor resume script.py --workers 1"}
ENDS = {"decide": (0, 5), "doctor script": (0, 1, 4), "doctor resume": (0, 1, 4)}       # exit codes of a whole run
WHOLE = ".h5", ".csv", ".toml", ".broken"                       # of files that are the same each time
STARTS_AGAIN = "export", "parquet", "archive"                   # refuse a folder that is there


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with what the commands read; what they import, forks of this process have."""
    for module in ("torch", "scipy.stats", *(f"hvdscale.cli.{name}" for name in ON_PATH.values())):
        pytest.importorskip(module)
    folder = tmp_path_factory.mktemp("made")
    for name, steps in (("in", 100000), ("other", 10)):
        with hvdscale.record(folder / f"{name}.h5", **ABOUT) as log:
            for step in range(steps):
                log.step(1.0)
            with log.evaluation() as seen:
                seen["val/error"] = 0.5
    (folder / "record.py").write_text(RECORD)
    (folder / "script.py").write_text(SCRIPT)
    (folder / "sweep.toml").write_text(SWEEP)
    (folder / "lines").mkdir()
    (folder / "lines/b8.log").write_text("".join(f"step {at}: val loss {1 / at}\n" for at in range(1, 20000)))
    (folder / "killed.py").write_text(KILLED)
    run(sys.executable, "killed.py", cwd=folder)
    run("hvdscale-log", "export", "in.h5", "tables", "--as", "csv", cwd=folder, check=True)
    return folder


def run(*command, **how):
    return subprocess.run(command, env=command_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True, **how)


class Started:
    """A command in a process of its own, in a folder: a fork of this one, which has imported torch, where it can be."""

    def __init__(self, command, folder, **environment):
        name, *words = command.split()
        self.said, environment = folder.parent / "stderr", {**command_environment(), **environment}
        self.pid = os.fork()
        if self.pid:
            return
        try:
            os.setsid()
            os.chdir(folder)
            for number, path in enumerate((os.devnull, os.devnull, self.said)):
                os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
            if name not in ON_PATH:
                os.execvpe(name, [name, *words], environment)
            restore_handlers()
            os.environ.update(environment)
            clear_leavings.cache_clear()
            sys.argv = [name, *words]
            sys.stdin, sys.stdout, sys.stderr = (open(number, mode, closefd=False) for number, mode in enumerate("rww"))
            getattr(start, ON_PATH[name])()
            sys.stderr.flush()
            os._exit(0)
        except SystemExit as ended:
            sys.stderr.flush()
            os._exit(ended.code if isinstance(ended.code, int) else bool(ended.code))
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(99)

    def wait(self, seconds=600.0):
        """Its exit code; None: it has not ended by then."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        return None


def content(path):
    """What a result says, without times and ids: a log's counted columns, a file's bytes, a folder's files but for
    reports, which have times."""
    if path.suffix == ".h5":
        with check(path) as log:
            return {(table.name, name): repr(np.asarray(table[name]).tolist()) for table in log.tables for name in table
                    if "seconds" not in name and "time" not in name and name not in ("plan", "source", "source_trial")
                    and table.name != "restarts"}
    if path.is_dir():
        return {one.relative_to(path).as_posix(): content(one) for one in sorted(path.rglob("*"))
                if one.suffix in WHOLE and not {"logs", "report"} & {*one.relative_to(path).parts}}
    return path.read_bytes() if path.suffix in WHOLE[1:] else None


def results_of(folder, made):
    there = set(os.listdir(made)) - {"broken.h5"}
    return {name: content(folder / name) for name in sorted(os.listdir(folder)) if name not in there}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_was_killed_is_carried_out_by_the_same_command_and_leaves_nothing(name, made, tmp_path):
    """HVDSCALE_KILLS times each, by KILL, TERM or HUP; the seeds are 0, 1, ..."""
    folder, tidy, command = tmp_path / "work", tmp_path / "scratch", COMMANDS[name]
    tidy.mkdir()
    expected, whole = None, 0.0
    for seed in range(-1, int(os.environ.get("HVDSCALE_KILLS", "13"))):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(made, folder)
        if name != "repair":
            (folder / "broken.h5").unlink()
        draw = random.Random(seed)
        number = draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
        started = time.monotonic()
        if expected is not None:
            process = Started(command, folder, TMPDIR=str(tidy))
            if process.wait(whole * draw.uniform(0.05, 1.0)) is None:
                os.kill(process.pid, number)
                assert process.wait() is not None, (seed, number)
            elif name in STARTS_AGAIN:
                shutil.rmtree(folder / "out")
            if name in STARTS_AGAIN and (folder / "out").exists():              # it had ended
                shutil.rmtree(folder / "out")
            if number != signal.SIGKILL and name != "record":                     # a user's own script
                assert not [one for one in os.listdir(folder) if one.endswith(".tmp")], (seed, number)
        done = Started(command, folder, TMPDIR=str(tidy))
        assert done.wait() in ENDS.get(name, (0,)), (seed, number, done.said.read_text())
        found = results_of(folder, made)
        if expected is None:
            expected, whole = found, time.monotonic() - started
        assert [*found] == [*expected] and found == expected, (seed, number)
        assert not [one for one in os.listdir(tidy) if "hvdscale" in one], (seed, number)
