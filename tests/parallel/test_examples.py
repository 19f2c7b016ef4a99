"""The examples of tools/examples run as they are written, and are what they say."""
import re
import shutil
import sys

import pytest
import torch
from click.testing import CliRunner
from sklearn.metrics import f1_score

from hvdscale.cli.report import main as report
from hvdscale.log.reader import read_log
from hvdscale.log.schema import Status
from hvdscale.training.evaluate import Evaluator
from hvdscale.training.prepare import prepare
from hvdscale.workers.group import SingleWorker
from tests import guides
from tests.conftest import ROOT, launcher_command
from tests.parallel.sweeps import carry_out

EXAMPLES = ROOT / "tools/examples"
GUIDE = (EXAMPLES / "README.rst").read_text()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of the examples, which is the working directory."""
    for path in EXAMPLES.glob("*.*"):
        shutil.copy(path, tmp_path)
    for name in ("macro_f1", "tokens"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    threads = torch.get_num_threads()
    yield tmp_path
    torch.set_num_threads(threads)


def test_the_guide_names_every_file():
    assert set(re.findall(r"^``(\S+)``  ", GUIDE, re.M)) == {path.name for path in EXAMPLES.glob("*.*")} - {
        "README.rst"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["macro_f1", "tokens"])
def test_an_example_trains_on_two_workers_as_its_command_says(folder, run, name):
    [command] = [each.command for each in guides.typed("tools/examples/README.rst") if f" {name}:w" in each.command]
    _, _, _, *words = command.split()
    run(*launcher_command("mpirun", 2), sys.executable, "-m", "hvdscale.cli.train", *words[1:])
    with read_log(folder / f"runs/{name}.h5") as log:
        column = log.evaluations["val/macro_f1" if name == "macro_f1" else "val/error"]
        assert log.trials["status"].tolist() == [Status.COMPLETE] and log.trials["workers"].tolist() == [2]
        assert (column[-1] > 0.85) if name == "macro_f1" else (column[-1] < 0.6 * column[0])


def test_the_macro_f1_of_the_example_is_that_of_the_whole_split(folder):
    """At any size of its batches, as scikit-learn has it."""
    job = prepare("macro_f1:workload", [{"threads": 1, "epochs": 1.0}], SingleWorker())
    guesses = job.model(job.data.val.inputs).argmax(1)
    wanted = f1_score(job.data.val.labels, guesses, labels=range(10), average="macro", zero_division=0)
    for chunk in (7, 300):
        found = Evaluator(job.workload, {"val": job.data.val}, chunk, SingleWorker(), job.device)(job.model, ("val",))
        assert found["val/macro_f1"] == pytest.approx(wanted, abs=1e-12)


@pytest.mark.slow                       # test_own_jobs has a job like it
def test_a_padded_example_makes_the_same_updates_on_two_workers(folder, run, here):
    words = ["tokens:workload", "--global-batch", "48", "--steps", "3", "--precision", "fp64", "--log"]
    here("hvdscale-train", *words, "w1.h5")
    run(*launcher_command("mpirun", 2), sys.executable, "-m", "hvdscale.cli.train", *words, "w2.h5")
    with read_log(folder / "w1.h5") as one, read_log(folder / "w2.h5") as two:
        assert one.steps["loss"] == pytest.approx(two.steps["loss"], rel=1e-10)


def test_the_sweep_of_the_examples_finds_the_steps_to_its_targets(folder):
    assert carry_out("sweep.toml", "sweeps/macro_f1")[0] == 0
    reported = " ".join(CliRunner().invoke(report, ["sweeps/macro_f1", "--full"]).output.split())
    assert "Search: val/macro_f1>0.9" in reported and "A further target of the sweep: val/macro_f1>0.8;" in reported


@pytest.mark.slow
def test_the_study_of_the_examples_runs_on_slurm_and_is_reported(cluster, checkout):
    launcher_command("mpirun", 1)
    shutil.copytree(EXAMPLES, checkout / "tools/examples")
    done = cluster.run("./study.sh", "-t10", cwd=checkout / "tools/examples")
    study, report = re.match(r"study (\d+), report (\d+): ", done.stdout).groups()
    for job in (f"{study}_0", f"{study}_1", report):
        assert cluster.wait(job, limit=300)["JobState"] == "COMPLETED", cluster.logs()
    assert (checkout / "tools/examples/sweeps/macro_f1/report/report.html").exists()
