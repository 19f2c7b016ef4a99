"""What commands print is as wide as the terminal, COLUMNS or --width say; numbers and names stay whole."""
import re

import pytest
from click.testing import CliRunner

from hvdscale.cli import compare, log, plan, report
from tests.conftest import ROOT
from tests.factories.logs import log as log_of, save, trial

LOG = str(ROOT / "tools/readme/mnist.h5")
SHORT = "tools/readme/mnist.h5"
COMMANDS = {
    "report": (report.main, [SHORT, "--full"]), "compare": (compare.main, [SHORT, SHORT]),
    "plan": (plan.main, [SHORT, "--workers", "1-1024", "--price", "2.5"]), "show": (log.main, ["show", SHORT]),
    "ls": (log.main, ["ls", SHORT]),
    "show one": (log.main, ["show", SHORT, "--trial", "1", "--steps"])}


@pytest.fixture
def printed(monkeypatch):
    """What a command prints at this width, set by COLUMNS or by --width; None: where there is no terminal."""
    monkeypatch.chdir(ROOT)

    def printed(name, columns, typed=False):
        main, words = COMMANDS[name]
        monkeypatch.setenv("COLUMNS", "" if columns is None or typed else str(columns))
        done = CliRunner().invoke(main, [*words, *(["--width", str(columns)] if typed else [])])
        assert done.exit_code == 0, done.output
        return done.output
    return printed


@pytest.mark.parametrize("name", COMMANDS)
def test_no_line_is_wider_than_the_terminal_and_no_number_is_lost(printed, name):
    whole = printed(name, 160)
    narrow = {columns: printed(name, columns) for columns in (60, 100)}
    numbers = {word for word in re.findall(r"\d[\d,.]*\d", whole) if "." in word or "," in word}
    for columns, text in narrow.items():
        assert max(map(len, text.splitlines())) <= columns
        assert len(text.splitlines()) >= len(whole.splitlines())
        missing = numbers - set(re.findall(r"\d[\d,.]*\d", text))
        assert not missing or name in ("report", "plan"), missing           # which leave out columns that follow
    assert printed(name, 60, typed=True) == narrow[60]


def test_a_report_without_a_target_says_so_within_the_width(tmp_path, monkeypatch, worded):
    monkeypatch.setenv("COLUMNS", "100")            # which --width changes
    save(log_of(trial(target=None)), tmp_path / "w.h5")
    said = CliRunner().invoke(report.main, [str(tmp_path / "w.h5"), "--width", "60"]).output
    worded(" ".join(said.split()), about="The logs")
    assert max(map(len, said.splitlines())) <= 60


def test_where_there_is_no_terminal_the_report_keeps_its_usual_width(printed):
    assert printed("report", None) == printed("report", 100) != printed("report", 101)


def test_without_a_terminal_a_line_of_a_log_or_a_plan_stays_whole(printed, here):
    assert max(map(len, printed("show one", None).splitlines())) > 160
    words = ["digits/fc", "--dry-run", "--epochs", "30", "--set", "threads=1"]
    whole, narrow = (here("hvdscale-train", *words, COLUMNS=columns).stdout for columns in ("", "60"))
    assert whole.split() == narrow.split() and max(map(len, whole.splitlines())) > 60
    assert max(map(len, narrow.splitlines())) <= 60
