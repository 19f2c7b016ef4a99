"""Where the commands start: Ctrl-C while they are imported, --version and --help of each, and the changelog."""
import configparser
import re
import shutil
import signal
import subprocess
import sys
from importlib import import_module

import pytest
from click.testing import CliRunner

from hvdscale import __version__
from hvdscale.cli import start
from hvdscale.errors import ExitCode
from hvdscale.system.version import commit_of, version_line
from tests.conftest import ROOT, command_environment, heed_ctrl_c
from tests.parallel.sweeps import sweep_file

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
def test_every_commands_help_is_one_screen_and_names_the_option(command):
    module = import_module(f"hvdscale.cli.{command}")
    command = getattr(module, "command", module.main)
    shown = CliRunner().invoke(command, ["--help"]).output
    assert "--version" in shown and len(shown.splitlines()) <= 60
    for subcommand, (*_, line) in getattr(module, "COMMANDS", {}).items():
        help = CliRunner().invoke(command, [subcommand, "--help"]).output
        assert len(help.splitlines()) <= 60 and line.rstrip(".") in " ".join(help.split()) and line in shown
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
    """tests/project/test_guides.py asks for its markup."""
    versions = re.findall(r"^(\d+\.\d+\.\d+) \(\d{4}-\d\d-\d\d\)\n-+$", CHANGELOG, re.M)
    assert versions[0] == __version__
    assert versions == sorted(set(versions), key=lambda version: [*map(int, version.split("."))], reverse=True)


# one that drops a KeyboardInterrupt, as some do
WAITS = """
import sys, time
command, module, *sys.argv[1:] = sys.argv[1:]
class Finder:
    def find_spec(name, *_):
        if name == module:
            print("importing", flush=True)
            try:
                time.sleep(60)
            except KeyboardInterrupt:
                time.sleep(60)
sys.meta_path.insert(0, Finder)
from hvdscale.cli import start
getattr(start, command)()
"""


@pytest.mark.parametrize("command, module", [
    *((command, "click") for command in COMMANDS), ("report", "numpy"), ("plan", "numpy"), ("log", "numpy"),
    ("scale", "h5py"), ("train", "torch"), ("doctor", "torch"),
    ("tune", "torch")])
def test_ctrl_c_ends_a_command_quietly_while_it_is_being_imported(command, module, tmp_path):
    words = {"train": ["digits/fc"], "scale": ["digits/fc", "--out", "runs"], "doctor": ["digits/fc"],
             "tune": [sweep_file(tmp_path)], "report": ["log.h5"], "plan": ["log.h5"], "log": ["ls"]}.get(command, [])
    process = subprocess.Popen([sys.executable, "-c", WAITS, command, module, *words], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, env=command_environment(), cwd=tmp_path,
                               preexec_fn=heed_ctrl_c)
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=300) == ("", "")
    assert process.returncode in (-signal.SIGINT, ExitCode.INTERRUPTED)          # the same to a shell


@pytest.mark.parametrize("before", [signal.default_int_handler, signal.SIG_IGN])
def test_in_the_command_ctrl_c_is_what_it_was(before, monkeypatch):
    found = []
    monkeypatch.setattr("hvdscale.cli.log.main", lambda: found.append(signal.getsignal(signal.SIGINT)))
    signal.signal(signal.SIGINT, before)
    start.log()
    assert found == [before]


def test_every_command_that_is_installed_starts_here():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    commands = config["options.entry_points"]["console_scripts"].split("\n")[1:]
    for name, place in (line.split(" = ") for line in commands):
        module, _, function = place.partition(":")
        assert (name, module) == (f"hvdscale-{function}", start.__name__) and callable(getattr(start, function))
        assert (ROOT / "hvdscale" / "cli" / f"{function}.py").exists()
