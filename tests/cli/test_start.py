"""Where the commands start."""
import configparser
import signal
import subprocess
import sys

import pytest

from hvdscale.cli import start
from hvdscale.errors import ExitCode
from tests.conftest import ROOT, command_environment, heed_ctrl_c
from tests.parallel.sweeps import sweep_file

COMMANDS = ("train", "scale", "tune", "branch", "doctor", "report", "plan", "log", "data")
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
    *((command, "click") for command in COMMANDS), ("report", "numpy"), ("plan", "numpy"),
    ("scale", "h5py"), ("train", "torch"), ("doctor", "torch"),
    ("tune", "torch")])
def test_ctrl_c_ends_a_command_quietly_while_it_is_being_imported(command, module, tmp_path):
    words = {"train": ["digits/fc"], "scale": ["digits/fc", "--out", "runs"], "doctor": ["digits/fc"],
             "tune": [sweep_file(tmp_path)], "report": ["log.h5"], "plan": ["log.h5"]}.get(command, [])
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
