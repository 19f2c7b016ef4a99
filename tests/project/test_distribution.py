"""The wheel and the sdist, installed in a fresh environment away from the checkout, pass the offline tests; and the
set-up trains on every Python that is there. All take minutes."""
import contextlib
import glob
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import guides
from tests.conftest import ROOT
from tests.project.test_base_install import OLDEST, PYTHONS, base_python, leftovers

pytestmark = pytest.mark.slow
NEWEST = (3, 13)
# what a test of the installed package has beside it; hvdscale itself is not among it
BESIDE = ("tests", "tools")
OFFLINE = ("analysis", "exchange", "formatting", "log", "report", "cli/test_bad_logs.py", "cli/test_compare_command.py",
           "cli/test_plan_command.py", "plan/test_metaparameters.py", "plan/test_schedule.py",
           "plan/test_search_space.py", "plan/test_settings.py", "plan/test_shards.py", "sweep/test_file.py",
           "training/test_display.py", "project/test_readme_data.py")
PLAIN = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME", "PYTHON")}


def copy_of_the_tree(folder):
    return Path(shutil.copytree(ROOT, folder, ignore=leftovers(".venv", ".git", ".pytest_cache")))


def done(*command, cwd, timeout=1800, environment=PLAIN):
    """What a command that succeeds printed."""
    ended = subprocess.run([str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True,
                           timeout=timeout, stdin=subprocess.DEVNULL)
    assert ended.returncode == 0, f"{ended.stdout[-5000:]}\n{ended.stderr[-5000:]}"
    return ended.stdout


def make_wheel(tree, out):
    done(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", out, ".", cwd=tree)


def make_sdist(tree, out):
    done(sys.executable, "-c", f"from setuptools import build_meta; build_meta.build_sdist({str(out)!r})", cwd=tree)


@pytest.mark.parametrize("make", [make_wheel, make_sdist])
def test_what_is_distributed_passes_the_offline_tests_away_from_the_checkout(make, tmp_path, machines_network):
    if make is make_sdist:
        pytest.importorskip("setuptools")
    (tmp_path / "out").mkdir()
    outside, python = tmp_path / "outside", tmp_path / "venv/bin/python"
    with machines_network():
        make(copy_of_the_tree(tmp_path / "tree"), tmp_path / "out")
        [made] = (tmp_path / "out").iterdir()
        shutil.rmtree(tmp_path / "tree")
        done(base_python(sys.executable)[0], "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
        done(sys.executable, "-m", "pip", "--python", python, "install", made, "pytest", "docutils", cwd=tmp_path)
    outside.mkdir()
    for name in BESIDE:
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, outside / name)
    for guide in guides.PATHS:
        (outside / guide).parent.mkdir(exist_ok=True, parents=True)
        shutil.copy(ROOT / guide, outside / guide)
    (outside / "pytest.ini").write_text("[pytest]\naddopts = -m 'not slow'\nmarkers =\n    slow: takes minutes\n")
    place = done(python, "-c", "import hvdscale; print(hvdscale.__file__)", cwd=outside)
    assert place.startswith(str(tmp_path / "venv"))
    assert "no torch" in done(python.with_name("hvdscale-log"), "--version", cwd=outside)
    files = [f"tests/{name}" for name in OFFLINE]
    assert " passed" in done(python, "-m", "pytest", "-q", *files, cwd=outside)


def pythons():
    """One Python of each version that the set-up takes: those of HVDSCALE_PYTHONS, on PATH, and of pyenv."""
    places = [*PYTHONS, *(shutil.which(f"python3.{minor}") for minor in range(OLDEST[1], NEWEST[1] + 1)),
              *sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/*/bin/python3")))]
    found = {}
    for place in filter(None, places):
        with contextlib.suppress(subprocess.CalledProcessError):        # a shim of pyenv for a Python that is not set
            base, version = base_python(place)
            if OLDEST <= tuple(map(int, version.split("."))) <= NEWEST:
                found.setdefault(version, base)
    return found


@pytest.mark.parametrize("version", [f"3.{minor}" for minor in range(OLDEST[1], NEWEST[1] + 1)])
def test_the_set_up_trains_on_each_python_that_is_there(version, tmp_path, machines_network):
    if version not in pythons():
        pytest.skip(f"there is no Python {version}")
    tree = copy_of_the_tree(tmp_path / "a clone")
    environment = {**PLAIN, "PYTHON": pythons()[version], "OMPI_ALLOW_RUN_AS_ROOT": "1",
                   "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1"}
    with machines_network():
        done(tree / "tools/setup", cwd=tree, timeout=3600, environment=environment)
    commands = tree / ".venv/bin"
    environment["PATH"] = f"{commands}:{environment['PATH']}"
    printed = done("mpirun", "--oversubscribe", "-np", "2", commands / "hvdscale-train", "digits/fc", "--steps", "20",
                   "--log", "w.h5", cwd=tmp_path, environment=environment)
    assert "COMPLETE: budget of 20 steps spent" in printed
    assert f"Python {version}." in done(commands / "hvdscale-train", "--version", cwd=tmp_path)
    assert "With 2 workers, global batch 32" in done(commands / "hvdscale-report", "w.h5", cwd=tmp_path)
