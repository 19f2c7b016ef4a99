"""Completion in the shell: the script of every command, and what it completes."""
import re
import subprocess
from importlib import import_module

import pytest
from click.shell_completion import BashComplete

from hvdscale.data.fetch import DATA_SETS
from tests import guides
from tests.conftest import ROOT, command_environment

COMMANDS = re.findall(r"^    hvdscale-(\w+) = ", (ROOT / "setup.cfg").read_text(), re.M)
LINE = guides.completion()


def test_the_readmes_line_completes_every_command():
    assert set(re.search(r"for c in ([\w ]+);", LINE)[1].split()) == set(COMMANDS)
    code = "\n".join([
        LINE, f"for c in {' '.join(COMMANDS)}; do complete -p hvdscale-$c; done", "COMP_CWORD=1",
        "COMP_WORDS=(hvdscale-log ex)", "_hvdscale_log_completion hvdscale-log",
        "COMP_WORDS=(hvdscale-train digits/c)", "_hvdscale_train_completion hvdscale-train", 'echo "${COMPREPLY[@]}"'])
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, env=command_environment())
    assert (done.returncode, done.stderr) == (0, "")
    *complete, found = done.stdout.splitlines()
    assert complete == [f"complete -o nosort -F _hvdscale_{name}_completion hvdscale-{name}" for name in COMMANDS]
    assert found.split() == ["export", "digits/cnn"]


def completed(typed):
    """(type, value) of each that click completes of the last word."""
    command, *words, last = typed.split(" ")
    module = import_module(f"hvdscale.cli.{command.removeprefix('hvdscale-')}")
    shell = BashComplete(getattr(module, "command", None) or module.main, {}, command, "")
    return [(item.type, item.value) for item in shell.get_completions(words, last)]


@pytest.mark.parametrize("typed, wanted", [
    ("hvdscale-train digits/", ["digits/cnn", "digits/fc"]), ("hvdscale-doctor digits/c", ["digits/cnn"]),
    ("hvdscale-scale mnist/simple_cnn_w", ["mnist/simple_cnn_wide"]), ("hvdscale-train --epo", ["--epochs"]),
    ("hvdscale-train --precision bf", ["bf16"]), ("hvdscale-train --config goyal2017-resnet5", ["goyal2017-resnet50"]),
    ("hvdscale-tune --st", ["--status"]), ("hvdscale-branch digits/f", ["digits/fc"]),
    ("hvdscale-branch --fac", ["--factors"]), ("hvdscale-report --skip", ["--skip-broken"]),
    ("hvdscale-report compare --str", ["--strict"]), ("hvdscale-plan --pri", ["--price"]),
    ("hvdscale-log ex", ["export"]), ("hvdscale-log ls --wa", ["--watch"]),
    ("hvdscale-log export --as ten", ["tensorboard"]),
    ("hvdscale-data fetch ", sorted(DATA_SETS)), ("hvdscale-data fetch mn", ["mnist"])])
def test_what_is_typed_is_completed(typed, wanted):
    assert sorted(completed(typed)) == [("plain", word) for word in wanted]


@pytest.mark.parametrize("typed", [
    "hvdscale-report ru", "hvdscale-report runs/a.h5 --out ru", "hvdscale-report compare ru", "hvdscale-plan ru",
    "hvdscale-log ls ru", "hvdscale-log ls --watch ru", "hvdscale-log check ru", "hvdscale-log import ru",
    "hvdscale-log export ru", "hvdscale-tune ru", "hvdscale-branch --from ru", "hvdscale-branch --out ru",
    "hvdscale-scale --out ru", "hvdscale-train --data-dir ru", "hvdscale-train --config ru",
    "hvdscale-doctor --config ru"])
def test_where_a_file_is_due_the_shell_completes_files(typed):
    assert completed(typed) == [("file", "ru")]
