"""tools/bench_analysis runs, and pandas comes to the same tables."""
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.factories.archives import write_big_log

TOOL = Path(__file__).resolve().parents[2] / "tools" / "bench_analysis"


@pytest.mark.parametrize("ways", [1, 4])
def test_the_tables_are_timed_and_those_of_pandas_are_the_same(tmp_path, ways):
    if ways == 4 and importlib.util.find_spec("pandas") is None:
        pytest.skip("needs pandas")
    path = str(tmp_path / "log.h5")
    write_big_log(path, 15, 150, 6000)
    only = ["--only", "hvdscale"] if ways == 1 else []
    done = subprocess.run([sys.executable, TOOL, "--log", path, *only], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "150 trials, 6,000 evaluations" in done.stdout
    assert len(re.findall(r"^(hvdscale|hvdscale, and CSV|pandas, .*?) +\d+\.\d", done.stdout, re.MULTILINE)) == ways
