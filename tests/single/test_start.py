"""Where the commands start."""
import configparser
import signal
import subprocess
import sys

import pytest

from hvdscale.cli import start
from tests.conftest import ROOT, command_environment, heed_ctrl_c

WAITS = """
import sys, time
class Finder:
    def find_spec(name, *_):
        if name == "numpy":
            print("importing", flush=True)
            time.sleep(60)
sys.meta_path.insert(0, Finder)
from hvdscale.cli.start import report
report()
"""


def test_ctrl_c_ends_a_command_quietly_while_it_is_being_imported():
    process = subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=command_environment(), preexec_fn=heed_ctrl_c)
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == -signal.SIGINT         # 130 to a shell


@pytest.mark.parametrize("before", [signal.default_int_handler, signal.SIG_IGN])
def test_in_the_command_ctrl_c_is_what_it_was(before, monkeypatch):
    found = []
    monkeypatch.setattr("hvdscale.cli.log.main", lambda: found.append(signal.getsignal(signal.SIGINT)))
    own = signal.signal(signal.SIGINT, before)
    try:
        start.log()
    finally:
        signal.signal(signal.SIGINT, own)
    assert found == [before]


def test_every_command_that_is_installed_starts_here():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    commands = config["options.entry_points"]["console_scripts"].split("\n")[1:]
    for name, place in (line.split(" = ") for line in commands):
        module, _, function = place.partition(":")
        assert (name, module) == (f"hvdscale-{function}", start.__name__) and callable(getattr(start, function))
        assert (ROOT / "hvdscale" / "cli" / f"{function}.py").exists()
