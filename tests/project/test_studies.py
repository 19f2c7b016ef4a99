"""The studies published with the tool: their files are sweeps of built-in workloads, at one number of trials."""
import subprocess

import pytest

from hvdscale.sweep.file import read_sweep
from hvdscale.workloads import find
from tests.conftest import ROOT

STUDIES = ROOT / "tools/studies"
FILES = sorted(STUDIES.glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_study_is_a_sweep_of_twenty_trials_at_each_batch(path):
    sweep = read_sweep(str(path))
    assert find(sweep.workload).metrics["error"] == "min"
    assert (sweep.trials, sweep.repeats, sweep.prune_keep, sweep.evaluations) == (20, 3, 2, 60)
    assert all(study.trials == 20 and "steps" in study.layer for study in sweep.studies)
    assert path.name.removesuffix(".toml") in (STUDIES / "README.rst").read_text()


def test_the_script_names_its_arguments(tmp_path):
    done = subprocess.run([STUDIES / "run"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and "tools/studies/run DATA OUT" in done.stdout
