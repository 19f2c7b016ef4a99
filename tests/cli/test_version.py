"""--version of every command, and the changelog."""
import re
import shutil
import subprocess
import sys
from importlib import import_module

import pytest
from click.testing import CliRunner

from hvdscale import __version__
from hvdscale.system.version import version_line
from hvdscale.system.version import commit_of
from tests.conftest import ROOT

COMMANDS = ("train", "scale", "tune", "branch", "doctor", "report", "plan", "log", "data")
CHANGELOG = (ROOT / "tools" / "CHANGELOG.rst").read_text(encoding="utf-8")
LINE = re.compile(r"hvdscale (?P<version>[\d.]+)( \(commit (?P<commit>[0-9a-f]{40}\+?)\))?, "
                  r"(Horovod [\d.]+|no Horovod), (Open MPI [\d.]+|MPICH [\d.]+|no MPI), "
                  r"(torch [\d.]+(\+\w+)?|no torch), Python [\d.]+")
# runs a command where nothing of this can be imported
REFUSING = """
import sys
class Finder:
    def find_spec(name, *_):
        if name in ("torch", "horovod", "mpi4py", "numpy", "h5py", "scipy", "matplotlib", "click"):
            raise AssertionError(name)
sys.meta_path.insert(0, Finder)
from hvdscale.cli import start
sys.argv = ["hvdscale-command", "--version"]
sys.exit(start.COMMAND())
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_prints_its_version_without_other_imports(command, run):
    done = run(sys.executable, "-c", REFUSING.replace("COMMAND", command))
    assert LINE.fullmatch(done.stdout.strip())["version"] == __version__ and done.stderr == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_commands_help_names_the_option(command):
    module = import_module(f"hvdscale.cli.{command}")
    command = getattr(module, "command", module.main)
    assert "--version" in CliRunner().invoke(command, ["--help"]).output
    said = CliRunner().invoke(command, ["--version"])
    assert (said.exit_code, said.output) == (0, version_line() + "\n")


def test_an_installed_copy_names_no_commit_though_it_lies_in_a_repository(tmp_path):
    shutil.copytree(ROOT / "hvdscale", tmp_path / "site" / "hvdscale", ignore=shutil.ignore_patterns("__pycache__"))
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], [*author, "commit", "-q", "--allow-empty", "-m", "a"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    said = subprocess.run([sys.executable, "-m", "hvdscale.cli.log", "--version"], cwd=tmp_path / "site", text=True,
                          capture_output=True, check=True, env={"PATH": "/usr/bin:/bin"}).stdout
    assert LINE.fullmatch(said.strip())["commit"] is None


def test_a_checkout_names_its_commit(monkeypatch):
    if not (ROOT / ".git").exists():
        pytest.skip("needs a checkout")
    monkeypatch.chdir(ROOT)
    assert LINE.fullmatch(version_line())["commit"] == commit_of(".")


def test_the_newest_entry_of_the_changelog_is_the_version():
    versions = re.findall(r"^(\d+\.\d+\.\d+) \(\d{4}-\d\d-\d\d\)\n-+$", CHANGELOG, re.M)
    assert versions[0] == __version__
    assert versions == sorted(set(versions), key=lambda version: [*map(int, version.split("."))], reverse=True)


def test_the_changelog_is_valid_restructured_text():
    docutils = pytest.importorskip("docutils.core")
    from docutils.writers import get_writer_class
    docutils.publish_string(CHANGELOG, writer=get_writer_class("html")(), settings_overrides={
        "report_level": 2, "halt_level": 2, "embed_stylesheet": False})
