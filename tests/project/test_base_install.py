"""`pip install .` gives the offline commands, on every supported Python, without torch, MPI or Horovod."""
import ast
import importlib.metadata
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from packaging.requirements import Requirement

ROOT = pathlib.Path(__file__).parents[2]
OLDEST = (3, 10)
PYTHONS = [sys.executable, *os.environ.get("HVDSCALE_PYTHONS", "").split()]


def base_python(python):
    """The interpreter that a virtual environment was made of, and its version."""
    code = "import sys; print(getattr(sys, '_base_executable', sys.executable)); print('%d.%d' % sys.version_info[:2])"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split("\n")[:2]


@pytest.fixture(scope="module", params=["linked", *(pytest.param(python, marks=pytest.mark.slow)
                                                    for python in PYTHONS)], ids=os.path.basename)
def base_venv(request, tmp_path_factory, machines_network):
    """bin/ of a fresh environment that holds the base install of a copy of this tree."""
    folder = tmp_path_factory.mktemp("base")
    if request.param == "linked":
        return linked(folder, machines_network)
    return installed(request.param, folder, machines_network)


def leftovers(*hidden):
    """What copies of the tree leave out: build/, which holds old modules, at the top runs/, and those hidden."""
    anywhere = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", *hidden)
    return lambda folder, names: anywhere(folder, names) | ({"runs"} if pathlib.Path(folder) == ROOT else set())


def installed(python, tmp, machines_network, extra=""):
    """bin/ of a fresh environment of that Python, with a copy of this tree and an extra such as [torch]."""
    make_environment(python, tmp)
    with machines_network():
        pip("--python", tmp / "venv/bin/python", "install", f"{tmp / 'tree'}{extra}")
    return tmp / "venv" / "bin"


def linked(tmp, machines_network):
    """bin/ of a fresh environment with the wheel of this tree, and links to the packages here that it requires."""
    make_environment(sys.executable, tmp)
    with machines_network():                                        # which gives setuptools to who has none
        pip("wheel", "--no-deps", *["--no-build-isolation"] * bool(importlib.util.find_spec("setuptools")), "-w", tmp,
            tmp / "tree")
    pip("--python", tmp / "venv/bin/python", "install", "--no-deps", "--no-index", *tmp.glob("*.whl"))
    [site] = (tmp / "venv").glob("lib/python*/site-packages")
    [ours] = importlib.metadata.distributions(name="hvdscale", path=[str(site)])
    for package in required(ours, {}).values():
        for top in {path.parts[0] for path in package.files} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(package.locate_file(top))
    return tmp / "venv" / "bin"


def required(package, found):
    """What a package requires without extras, and what that requires, by name."""
    for wanted in map(Requirement, package.requires or ()):
        if wanted.name not in found and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
            found[wanted.name] = importlib.metadata.distribution(wanted.name)
            assert found[wanted.name].version in wanted.specifier
            required(found[wanted.name], found)
    return found


def make_environment(python, tmp):
    """venv of that Python beside tree, a copy of this one."""
    shutil.copytree(ROOT, tmp / "tree", ignore=leftovers(".*"))
    base, _ = base_python(python)
    subprocess.run([base, "-m", "venv", "--without-pip", tmp / "venv"], check=True)    # Debian may lack ensurepip


def pip(*words):
    done = run([sys.executable, "-m", "pip", *words])
    assert done.returncode == 0, done.stdout + done.stderr


def run(command, **kwargs):
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, **kwargs)


@pytest.mark.parametrize("package", ["torch", "horovod", "mpi4py", "sklearn"])
def test_the_base_install_brings_no_training_package(base_venv, package, tmp_path):
    assert run([base_venv / "python", "-c", f"import {package}"], cwd=tmp_path).returncode != 0


def test_the_offline_commands_run_on_the_base_install(base_venv, tmp_path):
    log = ROOT / "tools" / "readme" / "mnist.h5"
    for command in (["hvdscale-report", log, "--out", "x"], ["hvdscale-plan", log], ["hvdscale-log", "check", log],
                    ["hvdscale-data", "--help"]):
        done = run([base_venv / command[0], *command[1:]], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert {path.suffix for path in (tmp_path / "x").rglob("*.*")} == {".html", ".json", ".csv", ".svg", ".png"}


def test_the_base_install_has_all_that_hvdscale_read_imports(base_venv, tmp_path):
    code = ("import hvdscale, sys; report = hvdscale.read(sys.argv[1]).report(); "
            "print(report.verdict[0], report.figures['speedup-weak-32'], len(report._repr_html_()) > 1000)")
    done = run([base_venv / "python", "-c", code, ROOT / "tools" / "readme" / "mnist.h5"], cwd=tmp_path)
    assert done.returncode == 0 and re.match(r"Fastest: .* Figure\(.* True\n", done.stdout), done.stderr


def test_training_on_the_base_install_is_one_error_that_names_the_set_up(base_venv, tmp_path):
    done = run([base_venv / "hvdscale-train", "digits/fc"], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch("Error: training needs torch, .* pip install .*\n", done.stderr), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("python", PYTHONS, ids=os.path.basename)
def test_torch_alone_trains_under_torchrun(tmp_path, machines_network, python):
    programs = installed(python, tmp_path, machines_network, "[torch]")
    for package in ("horovod", "mpi4py"):
        assert run([programs / "python", "-c", f"import {package}"], cwd=tmp_path).returncode != 0
    path = f"{programs}:/usr/bin:/bin"
    torchrun = [programs / "torchrun", "--nproc-per-node", "2", "--no-python"]
    for command, said in (
            ([*torchrun, "hvdscale-train", "digits/cnn", "--log-file", "w2.h5"], "COMPLETE: target val/error<0.05 met"),
            (["hvdscale-report", "w2.h5", "--full"], "By global batch: val/error<0.05"),
            (["hvdscale-scale", "digits/fc", "--workers", "1,2", "--steps", "20", "--out", "s"], "[2/2] 2 workers"),
            ([*torchrun, "hvdscale-doctor", "digits/fc"], "checkpoint      passed")):
        done = run(["env", f"PATH={path}", *command], cwd=tmp_path)
        assert done.returncode == 0 and said in done.stdout, done.stdout + done.stderr
    assert "transport      torch.distributed" in (tmp_path / "s/w2-r1.out").read_text()


def test_every_module_is_of_the_oldest_grammar_and_names_no_file_of_a_checkout():
    for path in sorted((ROOT / "hvdscale").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path), feature_version=OLDEST)
        texts = [node.value for node in ast.walk(tree) if isinstance(getattr(node, "value", 0), str)]
        del texts[:1 if ast.get_docstring(tree) else 0]
        assert not [text for text in texts if re.search(r"\b(tools|slurm)/|README", text)], path
