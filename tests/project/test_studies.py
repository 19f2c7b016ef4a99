"""The studies published with the tool: their files are sweeps of built-in workloads, at one number of trials."""
import re
import shutil
import subprocess

import h5py
import numpy as np
import pytest

from hvdscale.log.reader import read_log
from hvdscale.sweep.file import read_sweep
from hvdscale.workloads import find
from tests import guides
from tests.conftest import DATA, ROOT, command_environment

STUDIES = ROOT / "tools/studies"
FILES = sorted(STUDIES.glob("*.toml"))
SMALLEST = "mnist_fc_256_sgd"
SMALL = """
workload = "mnist/fc_32"
batch_sizes = [8]
optimizers = ["nesterov"]
targets = ["val/error<0.95"]
trials = 1
steps = 2
evaluations = 1
[settings]
eval_splits = "val"
[space.lr]
scale = "log"
min = 0.001
max = 0.01
"""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_study_is_a_sweep_of_twenty_trials_at_each_batch(path):
    sweep = read_sweep(str(path))
    assert find(sweep.workload).metrics["error"] == "min"
    assert (sweep.record["trials"], sweep.repeats, sweep.keep, sweep.evaluations) == (20, 3, 2, 60)
    assert all(study.trials == 20 and "steps" in study.layer for study in sweep.studies)
    assert path.name.removesuffix(".toml") in (STUDIES / "README.rst").read_text()


def test_the_script_names_its_arguments(tmp_path):
    done = subprocess.run([STUDIES / "run"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and "tools/studies/run DATA OUT" in done.stdout


def test_the_script_carries_out_a_study_and_reports_on_it(tmp_path, mnist):
    """The script itself, in a folder with a smaller sweep of the same name."""
    shutil.copy(STUDIES / "run", tmp_path)
    (tmp_path / "data").symlink_to(mnist.parent)
    (tmp_path / "mnist_simple_cnn_nesterov.toml").write_text(SMALL)
    done = subprocess.run(["./run", "data", "studies", "mnist_simple_cnn_nesterov"], capture_output=True, text=True,
                          cwd=tmp_path, env=command_environment())
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "studies/mnist_simple_cnn_nesterov/nesterov-b8.h5").is_file()
    assert (tmp_path / "studies/mnist_simple_cnn_nesterov/report/report.html").is_file()


@pytest.mark.slow
def test_every_figure_of_the_page_is_drawn_from_the_kept_logs(tmp_path):
    done = subprocess.run([STUDIES / "draw", STUDIES, tmp_path], capture_output=True, text=True,
                          env=command_environment())
    assert done.returncode == 0, done.stdout + done.stderr
    kept = list((STUDIES / "figures").iterdir())
    assert {path.name for path in kept} == {path.name for path in tmp_path.iterdir()}
    for path in kept:
        guides.assert_drawn_alike(tmp_path / path.name, path)


def test_the_page_shows_every_figure_and_the_front_page_one_of_them():
    shown = [path for path in guides.images("tools/studies/README.rst") if path.parent.name == "figures"]
    assert sorted(shown) == sorted((STUDIES / "figures").iterdir())
    assert guides.images("README.rst") == [STUDIES / "figures/mnist.png"]


@pytest.mark.parametrize("path", sorted(STUDIES.rglob("*.toml")), ids=lambda path: path.stem)
def test_a_finished_study_has_a_log_of_all_its_trials_for_each_batch(path):
    sweep, logs = read_sweep(str(path)), logs_of(path)
    if not logs:
        pytest.skip("not finished yet")
    assert sorted(logs) == sweep.record["batch_sizes"]
    assert path.parent != STUDIES or sum(log.stat().st_size for log in logs.values()) < 10_000_000
    for log in logs.values():           # none is running, none names a folder of the machine that made it
        with h5py.File(log) as file:
            assert not re.search(rb"/(home|root|tmp|work)/", file["text"][()].tobytes())
        with read_log(str(log)) as opened:
            assert (opened.trials["status"] != 0).all() and len(opened.trials["id"]) >= sweep.record["trials"]


def logs_of(path):
    """The logs that lie beside a sweep's file, by batch."""
    return {int(log.stem.rpartition("-b")[2]): log for log in path.with_suffix("").glob("*.h5")}


@pytest.mark.slow
def test_the_smallest_study_is_repeated_to_the_bit(tmp_path):
    """On a processor whose kernels add in the same order as those of the machine that made the log."""
    if not (DATA / "mnist").is_dir():
        pytest.skip("needs MNIST")
    subprocess.run([STUDIES / "run", DATA, tmp_path, SMALLEST], check=True,
                   env={**command_environment(), "HVDSCALE_NP": "2"})
    for log in logs_of(STUDIES / f"{SMALLEST}.toml").values():
        kept, repeated = columns_of(log), columns_of(tmp_path / SMALLEST / log.name)
        assert kept.keys() == repeated.keys()
        for name, values in kept.items():
            np.testing.assert_array_equal(values, repeated[name], err_msg=f"{log.name}: {name}")


def columns_of(path):
    """A log's trials and evaluations, but their times, and where they were made."""
    with read_log(str(path)) as log:
        return {f"{table}/{name}": getattr(log, table)[name][:] for table, names in {
            "trials": ("id", "status", "stop_reason", "seed", "global_batch", "metaparameters/learning_rate"),
            "evaluations": ("trial", "step", "examples", "val/error", "val/cross_entropy")}.items() for name in names}
