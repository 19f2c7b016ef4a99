"""What the offline commands print, word by word, as tests/golden/ keeps it."""
import re
import shlex
import shutil
from functools import partial
from subprocess import CompletedProcess
from types import FunctionType

import numpy as np
import pytest
from click.testing import CliRunner

from hvdscale.cli import branch, scale, tune
from hvdscale.cli.compare import main as compare_command
from hvdscale.cli.log import main as log_command
from hvdscale.cli.plan import main as plan_command
from hvdscale.cli.report import main as report_command
from hvdscale.errors import HvdscaleError
from tests import guides
from tests.analysis.test_worker_plan import COUNTS, probe, run
from tests.conftest import GOLDEN
from tests.factories.log_files import finished
from tests.factories.logs import log, save, trial


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with the logs that the commands name."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(GOLDEN / "v1.h5", tmp_path)
    (tmp_path / "nothing").mkdir()
    return tmp_path


def screens(name, file, command):
    """What a command prints for each of the lines that tests/golden/FILE.txt has of it behind a ``$``, with the exit
    code where it is not 0: a further line there is a further case.

    name        of the command; of one that begins another's lines, these are not its own
    command     of click, or a function that runs the words and gives a finished process
    """
    run = command if isinstance(command, FunctionType) else partial(_invoke, command)
    typed = re.findall(rf"^\$ ({name}(?! compare).*)", (GOLDEN / f"{file}.txt").read_text(encoding="utf-8"), re.M)
    return "\n".join(_screen(line, run(*shlex.split(line.removeprefix(name)))) for line in typed)


def _invoke(command, *words):
    done = CliRunner().invoke(command, words)
    if isinstance(done.exception, HvdscaleError):           # of a command that all ranks end together
        return CompletedProcess(words, done.exception.exit_code, "", f"Error: {done.exception}\n")
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return CompletedProcess(words, done.exit_code, done.output, "")


def _screen(typed, done):
    code = f"(exit code {done.returncode})\n" if done.returncode else ""
    return f"$ {typed}\n{done.stdout}{done.stderr}{code}"


def test_the_plan_is_worded_as_it_was(folder, golden):
    for name, trials in {
            "series": [run(workers, seed=seed) for workers in COUNTS for seed in range(2)],
            "short": [run(workers) for workers in COUNTS[:3]],
            "crowded": [run(workers, cores=2) for workers in (1, 2, 4)],
            "all_crowded": [run(workers, cores=1) for workers in (2, 4)],
            "unmet": [trial(1, error=(0.9, 0.5, 0.4))],
            "two_of_three": [run(1), run(1, seed=1), trial(3, error=(0.9, 0.5, 0.4), seed=2, train_examples=10**6)],
            "probe": [probe(1)], "quiet": [probe(1, None)], "untimed": [trial(1, seconds=(np.nan,) * 3)],
            "elsewhere": [trial(steps=(), error=(), target=None, step_seconds=[0.1] * 50, optimizer="adam")]}.items():
        save(log(*trials), f"{name}.h5")
    golden("plan", screens("hvdscale-plan", "plan", plan_command), numbers=False)


def test_what_is_said_of_logs_is_worded_as_it_was(folder, golden, monkeypatch):
    monkeypatch.setattr("hvdscale.formatting.text_table.BLOCK_SECONDS", np.inf)         # on a busy machine, too
    whole = (folder / "v1.h5").read_bytes()
    for name, content in {"copy": whole, "cut": whole[:20000], "text": b"no log", "empty": b""}.items():
        (folder / f"{name}.h5").write_bytes(content)
    finished("other.h5", trials=2)
    said = screens("hvdscale-log", "log", log_command)
    golden("log", re.sub(r"[\d.]+ KiB", "N KiB", said))                  # as HDF5 likes


def test_what_is_reported_is_worded_as_it_was(folder, golden):
    save(log(trial(1, error=(0.9, 0.5, 0.4))), "unmet.h5")
    save(log(), "empty.h5")
    for name, changes in {"e1": {}, "e2": {"workers": 2}, "e3": {"losses": (1, 0.7)}, "e4": {"peak_lr": 0.2}}.items():
        save(log(trial(**{"losses": (1, 0.5), "step_seconds": (0.1, 0.1), "problem": {"exact": {"threads": 1}},
                          **changes})), f"{name}.h5")
    golden("report", screens("hvdscale-report", "report", report_command) + "\n" + screens(
        "hvdscale-report compare", "report", compare_command), numbers=False)


def test_what_training_refuses_and_plans_is_worded_as_it_was(folder, here, golden):
    def train(*words):
        return here("hvdscale-train", *words, check=False)
    golden("train", screens("hvdscale-train", "train", train))


@pytest.mark.parametrize("name, command", [
    ("tune", tune.command), ("scale", scale.main), ("branch", branch.command)])
def test_what_a_command_of_many_runs_refuses_is_worded_as_it_was(folder, golden, name, command):
    (folder / "sweep.toml").write_text(guides.block("hvdscale/sweep/README.rst", "toml"))
    golden(name, screens(f"hvdscale-{name}", name, command))
