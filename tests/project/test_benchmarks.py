"""The benchmarks under tools/ run, and each shows every case against its peer, as a table and as JSON."""
import importlib.util
import json
import math
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT, command_environment, launcher_command
from tests.factories.archives import write_big_log

SMALL = "mnist/fc_32"


def cases_of(folder, tool, *options, launcher=()):
    """The cases that a benchmark shows with --quick, in its JSON and in its table alike."""
    path = folder / "cases.json"
    done = subprocess.run([*launcher, sys.executable, str(ROOT / "tools" / tool), "--quick", "--json", str(path),
                           *options], capture_output=True, text=True, cwd=folder, env=command_environment(),
                          timeout=300)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    cases = json.loads(path.read_text())["cases"]
    assert cases
    for case in cases:
        assert math.isfinite(case["ratio"]) and case["ratio"] > 0, case["name"]
        assert re.search(rf"^{re.escape(case['name'])}  .* {re.escape(case['peer'])}$", done.stdout, re.M), case["name"]
    return cases


def test_the_log_is_timed_against_csv_and_h5py(tmp_path):
    cases = cases_of(tmp_path, "bench_log")
    peers = ["no log", *["csv.writer"] * 3, "CSV", "h5py", *["h5py, one core"] * 2, *["peer"] * 4]
    assert [case["peer"] for case in cases] == peers


@pytest.mark.parametrize("ways", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_the_tables_are_timed_and_those_of_pandas_are_the_same(tmp_path, ways):
    if ways == 4:
        needs_pandas()
    path = str(tmp_path / "log.h5")
    write_big_log(path, 15, 150, 6000)
    only = ["--only", "hvdscale"] if ways == 1 else []
    done = subprocess.run([sys.executable, ROOT / "tools/bench_report", "--log", path, *only], capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "150 trials, 6,000 evaluations" in done.stdout
    assert len(re.findall(r"^(hvdscale|hvdscale, and CSV|pandas, .*?) +\d+\.\d s", done.stdout, re.MULTILINE)) == ways


@pytest.mark.slow
def test_the_tables_and_the_page_of_a_report_are_timed_against_pandas(tmp_path):
    needs_pandas()
    cases = cases_of(tmp_path, "bench_report")
    assert {case["peer"] for case in cases} == {"pandas, as published", "pandas, sorted once"}
    assert {case["name"].partition(",")[0] for case in cases} == {"tables", "page"}


def test_the_page_of_a_report_is_timed_without_pandas(tmp_path):
    done = subprocess.run([sys.executable, ROOT / "tools/bench_report", "--quick", "--part", "page", "--only",
                           "hvdscale"], capture_output=True, text=True)
    assert re.search(r"^page of .*: 30 trials, .*\nhvdscale +\d+\.\d s", done.stdout, re.M), done.stdout + done.stderr


def test_a_sweep_is_timed_against_its_steps_alone_and_among_many_trials(tmp_path):
    cases = cases_of(tmp_path, "bench_sweep")
    assert [case["peer"] for case in cases] == ["its steps alone", "its steps alone", "a plain loop",
                                                "10 in the folder", "10 in the folder", "10, shared"]


def test_the_memory_of_a_worker_is_held_against_a_plain_loop(tmp_path):
    [case] = cases_of(tmp_path, "bench_memory", "--workers", "1", "--", SMALL)
    assert case["peer"] == "a plain torch loop" and case["unit"] == "MiB"
    assert all(peak > 2**27 for peaks in case["values"].values() for peak in peaks)         # torch alone takes more


@pytest.mark.slow
def test_the_start_of_many_workers_is_held_against_a_horovod_script(tmp_path):
    pytest.importorskip("horovod.torch")
    [case] = cases_of(tmp_path, "bench_start", "--workers", "4")
    assert case["name"] == "first step, 4 workers, mpirun" and case["peer"] == "a bare Horovod script"


@pytest.mark.parametrize("np", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_epoch_is_timed_against_a_horovod_script(tmp_path, np):
    pytest.importorskip("horovod.torch")
    launcher = launcher_command("mpirun", np) if np > 1 else []
    cases = cases_of(tmp_path, "bench_epoch", SMALL, launcher=launcher)
    assert [case["peer"] for case in cases] == ["Horovod script", "bare passes"]


@pytest.mark.parametrize("np", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_time_to_a_target_is_held_against_a_horovod_script(tmp_path, np):
    pytest.importorskip("horovod.torch")
    launcher = launcher_command("mpirun", np) if np > 1 else []
    cases = cases_of(tmp_path, "bench_target", SMALL, launcher=launcher)
    assert [(case["peer"], case["unit"]) for case in cases] == [("Horovod script", "s"), ("Horovod script", "steps")]


def needs_pandas():
    if importlib.util.find_spec("pandas") is None:
        pytest.skip("needs pandas")


def test_what_waits_for_a_gpu_runs_with_the_cpu_standing_in(tmp_path):
    command = [sys.executable, str(ROOT / "tools/gpu"), "--device", "cpu", "--seconds", "400", "--out", str(tmp_path)]
    environment = {**command_environment(), "PYTHONWARNINGS": "default"}        # torch's, of a script like others'
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500)
    states = {part["name"]: part["state"] for part in json.loads((tmp_path / "gpu.json").read_text())["parts"]}
    assert done.returncode == 0 and set(states.values()) == {"passed", "left out"}, done.stdout + done.stderr
    assert states["steps, bf16"] == states["hvdscale-scale script"] == "passed" and states["search"] == "left out"
    assert "\nhvdscale-scale script\n----" in (tmp_path / "gpu.rst").read_text()
