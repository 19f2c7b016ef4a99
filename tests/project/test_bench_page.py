"""tools/bench knows every benchmark, and its page has a place for each."""
import sys

import pytest

from tests.conftest import ROOT
from tests.project.test_lines import load_tool

TOOLS = ROOT / "tools"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    yield load_tool("bench")
    sys.modules.pop("benchmarks", None)


def test_every_benchmark_is_run_and_has_its_place_on_the_page(bench):
    run = {word for runs in bench.RUNS.values() for words in runs for word in words if word.startswith("bench_")}
    assert run == {path.name for path in TOOLS.iterdir() if path.name.startswith("bench_")} - {"bench_archive"}
    page = bench.PAGE.read_text()
    for name in bench.RUNS:
        assert page.count(f".. tables of {name}\n") == page.count(f".. end of {name}\n") == 1


def test_new_tables_replace_those_of_their_benchmark_alone(bench):
    page = "a\n.. tables of x\n\nold\n\n.. end of x\nb\n.. tables of y\n\nkept\n\n.. end of y\n"
    assert bench.replace(page, "x", "new") == page.replace("old", "new")
    assert bench.replace(bench.replace(page, "x", "new"), "x", "old") == page


def test_a_table_says_how_it_was_made_and_what_missed_its_limit(bench):
    values = {"hvdscale": [2e-3, 1e-3, 3e-3], "peer": [1e-3, 1e-3, 1e-3]}
    case = {"name": "a step", "ours": "hvdscale", "peer": "peer", "values": values, "unit": "ms", "limit": 1.5,
            "ratio": 2.0}
    lines = bench.section(("mpirun", "bench_step"), {"title": "A step", "machine": "m", "cases": [case]}).splitlines()
    assert lines[0] == "A step. ``mpirun tools/bench_step``, m."
    assert lines[5].split() == "a step 2 ms 1 ms 2.00 1.00 - 3.00 1.5 missed peer".split()
