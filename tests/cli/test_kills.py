"""Commands that write, killed at random moments: the same command then gives what it would have, and nothing else."""
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import hvdscale
from hvdscale.log.check import check
from tests.conftest import command_environment
from tests.log.test_record import ABOUT

SCRIPT = """import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(200):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()
"""
RECORD = ("import hvdscale\n"
          f"with hvdscale.record('out.h5', overwrite=True, **{ABOUT}) as run:\n"
          "    for step in range(60000):\n        run.step(1.0)\n")
COMMANDS = {
    "export": ("hvdscale-log", "export", "in.h5", "out", "--as", "csv"),
    "archive": ("hvdscale-log", "export", "in.h5", "out", "--as", "archive"),
    "import": ("hvdscale-log", "import", "tables", "out.h5", "--overwrite"),
    "merge": ("hvdscale-log", "merge", "in.h5", "other.h5", "--out", "out.h5", "--overwrite"),
    "report": ("hvdscale-report", "in.h5", "--out", "out", "--format", "json,csv"),
    "record": (sys.executable, "record.py"),
    "train": ("hvdscale-train", "digits/fc", "--steps", "60", "--log-file", "out.h5", "--overwrite", "--save-model",
              "out.pt"),
    "scale script": ("hvdscale-scale", "script", "script.py", "--workers", "1", "--batch", "8", "--out", "out")}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with what the commands read."""
    folder = tmp_path_factory.mktemp("made")
    for name, steps in (("in", 100000), ("other", 10)):
        with hvdscale.record(folder / f"{name}.h5", **ABOUT) as log:
            for step in range(steps):
                log.step(1.0)
            with log.evaluation() as seen:
                seen["val/error"] = 0.5
    (folder / "record.py").write_text(RECORD)
    (folder / "script.py").write_text(SCRIPT)
    run("hvdscale-log", "export", "in.h5", "tables", "--as", "csv", cwd=folder, check=True)
    return folder


def run(*command, **how):
    return subprocess.run(command, env=command_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True, **how)


def content(path):
    """What a result says, without times and ids: a log's counted columns, a file's bytes, a folder's names."""
    if path.suffix == ".h5":
        with check(path) as log:
            return {(table.name, name): np.asarray(table[name]).tolist() for table in log.tables for name in table
                    if "seconds" not in name and "time" not in name and name not in ("plan", "source")}
    if path.is_dir():
        files = {one.relative_to(path).as_posix(): one for one in sorted(path.rglob("*")) if one.is_file()}
        return {name: one.read_bytes() if one.suffix == ".csv" else None for name, one in files.items()}
    return path.suffix


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_was_killed_is_carried_out_by_the_same_command_and_leaves_nothing(name, made, tmp_path):
    """HVDSCALE_KILLS times each, by KILL, TERM or HUP; the seeds are 0, 1, ..."""
    folder, tidy = tmp_path / "work", tmp_path / "scratch"
    tidy.mkdir()
    shutil.copytree(made, folder)
    before, environment = set(os.listdir(folder)), {**command_environment(), "TMPDIR": str(tidy)}
    started = time.monotonic()
    assert run(*COMMANDS[name], cwd=folder).returncode == 0
    whole = time.monotonic() - started
    results = sorted(set(os.listdir(folder)) - before)
    expected = {one: content(folder / one) for one in results}
    for seed in range(int(os.environ.get("HVDSCALE_KILLS", "13"))):
        for one in results:
            shutil.rmtree(folder / one) if (folder / one).is_dir() else (folder / one).unlink()
        draw = random.Random(seed)
        number = draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
        process = subprocess.Popen(COMMANDS[name], cwd=folder, env=environment, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, start_new_session=True)
        time.sleep(whole * draw.uniform(0.1, 1.0))
        process.send_signal(number)
        process.wait(60)
        if name in ("export", "archive") and (folder / "out").exists():             # it had ended
            shutil.rmtree(folder / "out")
        if number != signal.SIGKILL:
            assert not [one for one in os.listdir(folder) if one.endswith(".tmp")], (seed, number)
        done = subprocess.run(COMMANDS[name], cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, (seed, done.stderr)
        assert sorted(set(os.listdir(folder)) - before) == results, (seed, number)
        assert {one: content(folder / one) for one in results} == expected, (seed, number)
        assert not [one for one in os.listdir(tidy) if "hvdscale" in one], (seed, number)
