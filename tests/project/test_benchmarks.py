"""The benchmarks under tools/ run, and each shows every case against its peer, as a table and as JSON."""
import json
import math
import re
import subprocess
import sys

from tests.conftest import ROOT, command_environment


def cases_of(folder, tool, *options, launcher=()):
    """The cases that a benchmark shows with --quick, in its JSON and in its table alike."""
    path = folder / "cases.json"
    done = subprocess.run([*launcher, sys.executable, str(ROOT / "tools" / tool), "--quick", "--json", str(path),
                           *options], capture_output=True, text=True, cwd=folder, env=command_environment(),
                          timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    cases = json.loads(path.read_text())["cases"]
    assert cases
    for case in cases:
        assert math.isfinite(case["ratio"]) and case["ratio"] > 0, case["name"]
        assert re.search(rf"^{re.escape(case['name'])}  .* {re.escape(case['peer'])}$", done.stdout, re.M), case["name"]
    return {case["name"]: case for case in cases}


def test_the_log_is_timed_against_csv_and_h5py(tmp_path):
    cases = cases_of(tmp_path, "bench_log")
    assert [case["peer"] for case in cases.values()] == ["no log", "csv.writer", "CSV", "h5py"]
