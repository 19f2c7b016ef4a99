"""What lies in the working folder is not imported by hvdscale, whatever its name, in any process that it starts."""
import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hvdscale
from hvdscale.system.run_module import module_command
from tests.conftest import command_environment

PACKAGE = Path(hvdscale.__file__).parent
LOADERS = ("from hvdscale.data.loading import _context\n"
           "def say(): print('done', flush=True)\n"
           "if __name__ == '__main__':\n"
           "    process = _context().Process(target=say)\n    process.start()\n    process.join()")


@pytest.fixture
def shadowed(tmp_path):
    """Runs a command in a folder that has a module of every name of the standard library, and of others."""
    work = tmp_path / "work"
    work.mkdir()
    for name in {*sys.stdlib_module_names, "numpy", "click", "h5py", "torch", "hvdscale"} - {"__main__"}:
        (work / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'a').write('{name} ')\n")

    def run(*command):
        done = subprocess.run(command, cwd=work, env=command_environment(), capture_output=True, text=True, timeout=120)
        assert not (tmp_path / "imported").exists(), (tmp_path / "imported").read_text()
        assert done.returncode == 0, done.stderr
        return done.stdout
    return run


def test_a_module_is_run_without_the_working_folder_on_its_path(shadowed):
    assert "Usage: hvdscale" in shadowed(*module_command("hvdscale.cli.log", "--help")).replace("python -m ", "")


def test_loader_workers_and_their_server_are_started_without_it(shadowed, tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "load.py").write_text(LOADERS)
    assert shadowed(sys.executable, tmp_path / "load.py") == "done\n"


def test_no_module_starts_python_in_another_way():
    """By sys.executable, -m or -c."""
    found = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") for node in ast.walk(
        ast.parse(path.read_text())) if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable"}
    assert found == {"system/run_module.py"}
