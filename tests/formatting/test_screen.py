"""Lines as wide as the terminal: words stay whole, and where there is none a fixed width holds."""
import os

import pytest

from hvdscale.formatting.screen import terminal_width, wrap

TEXT = "steps fall from 1,090-1,160 to runs/well-tuned/w8-r1.h5 as workers double " * 3


@pytest.fixture
def columns(monkeypatch):
    """Set COLUMNS, or the width of stdout's terminal; None: there is none."""
    def columns(typed, terminal):
        def size(descriptor):
            if terminal is None:
                raise OSError
            return os.terminal_size((terminal, 24))
        monkeypatch.setattr(os, "get_terminal_size", size)
        monkeypatch.delenv("COLUMNS", raising=False)
        if typed is not None:
            monkeypatch.setenv("COLUMNS", typed)
    return columns


@pytest.mark.parametrize("typed, terminal, width", [
    (None, 80, 80), (None, 20, 60), (None, 500, 160), ("72", 80, 72), ("72", None, 72), ("many", 80, 80),
    (None, None, None), ("0", None, None), ("", None, None)])
def test_a_line_is_as_wide_as_columns_or_the_terminal_within_bounds(columns, typed, terminal, width):
    columns(typed, terminal)
    assert terminal_width() == width


@pytest.mark.parametrize("width", [60, 80, 100])
def test_words_and_numbers_stay_whole_under_the_start_of_their_item(columns, width):
    columns(str(width), None)
    lines = wrap(TEXT, "- ").splitlines()
    assert len(lines) > 1 and max(map(len, lines)) <= width
    assert lines[0].startswith("- s") and all(line[:2] == "  " and line[2] != " " for line in lines[1:])
    assert " ".join(line[2:] for line in lines).split() == TEXT.split()
    long = "runs/" + "x" * width + ".h5"
    assert wrap(f"no log: {long}").splitlines() == ["no log:", long]


def test_without_a_terminal_a_line_may_stay_whole(columns):
    columns(None, None)
    assert wrap(TEXT, "  log  ", whole=True) == f"  log  {TEXT}".rstrip()
    assert len(wrap(TEXT).splitlines()) > 1
    columns(None, 80)
    assert len(wrap(TEXT, "  log  ", whole=True).splitlines()) > 1
