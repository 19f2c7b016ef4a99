"""The code does not grow: no room has more lines than tools/lines.toml says; and what one question crosses."""
import re
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

import pytest

from tests.conftest import ROOT


def load_tool(name):
    loader = SourceFileLoader(name, str(ROOT / "tools" / name))
    module = module_from_spec(spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tool():
    return load_tool("lines")


def test_no_room_has_more_lines_than_its_entry_in_the_table(tool):
    assert not tool.grown(tool.count_lines(), *tool.read_table())


def test_lines_are_counted_by_room(tool, tmp_path):
    for name, lines in (("hvdscale/errors.py", 2), ("hvdscale/log/a.py", 3), ("hvdscale/log/inner/b.py", 4),
                        ("tests/log/test_a.py", 5)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x\n" * lines)
    assert tool.count_lines(tmp_path) == {"hvdscale": 2, "hvdscale/log": 7, "tests/log": 5}


def test_a_room_with_a_line_more_is_named_unless_it_is_allowed(tool):
    assert tool.grown({"a": 5, "b": 3, "new": 1}, {"a": 4, "b": 3}, {}) == [
        "a has 5 lines, and may have 4", "new has 1 lines, and may have 0"]
    assert tool.grown({"a": 5}, {"a": 4}, {"a": 1}) == []


def test_the_table_only_falls(tool):
    allowance = '[allowance]\n"a" = 2     # a reason\n'
    text = f'# why\n[most]\n"a" = 4\n"b" = 3\n"gone" = 1\n{allowance}'
    assert tool.lower(text, {"a": 6, "b": 1}) == f'# why\n[most]\n"a" = 4\n"b" = 1\n{allowance}'


def test_the_trace_of_a_report_counts_functions_by_file():
    done = subprocess.run([sys.executable, ROOT / "tools/trace_report", "--functions"], capture_output=True, text=True)
    *_, last = done.stdout.splitlines()
    functions, files = map(int, re.fullmatch(r"(\d+) functions in (\d+) files", last).groups())
    counts = re.findall(r"^ *(\d+)  [\w/]+\.py$", done.stdout, re.M)
    assert len(counts) == files and sum(map(int, counts)) == functions > files > 10
