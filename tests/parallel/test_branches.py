"""hvdscale-branch on several workers: the branches of one worker, to rounding; killed, it goes on."""
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from hvdscale.log.reader import read_log
from tests.conftest import command_environment, launcher_command

RUN = ["digits/fc", "--precision", "fp64", "--global-batch", "12", "--base-batch", "12", "--set", "threads=1",
       "--set", "noise_every=0"]
ASKED = ["--factors", "1,2,4", "--orders", "1", "--branch-examples", "192", "--evaluations", "4"]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A folder with checkpoints of a run on one worker."""
    folder = tmp_path_factory.mktemp("base")
    options = ["--steps", "40", "--checkpoint", "ck", "--log", "w.h5", "--target", "none"]
    subprocess.run([sys.executable, "-m", "hvdscale.cli.train", *RUN, *options], cwd=folder, env=command_environment(),
                   check=True, stdin=subprocess.DEVNULL, capture_output=True)
    return folder


def branched(base, np_, out):
    launched = launcher_command("mpirun", np_) if np_ > 1 else []
    command = [*launched, sys.executable, "-m", "hvdscale.cli.branch", "--from", "ck", "--at", "40", "--out", out,
               *ASKED]
    done = subprocess.run(command, cwd=base, env=command_environment(), capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("next: hvdscale-report") == 1, done.stdout
    return base / out


@pytest.mark.parametrize("np_", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_branches_are_the_same_at_any_number_of_workers(base, np_):
    one = base / "w1"
    one = one if one.exists() else branched(base, 1, "w1")
    several = branched(base, np_, f"w{np_}")
    with read_log(one / "branches.h5") as log, read_log(several / "branches.h5") as other:
        assert other.trials["workers"].tolist() == [np_] * 3
        assert other.trials["global_batch"].tolist() == [12, 24, 48]
        for table, columns in (("steps", ("trial", "step", "loss", "lr")),
                               ("evaluations", ("step", "examples", "train/cross_entropy", "val/error"))):
            for name in columns:
                np.testing.assert_allclose(getattr(other, table)[name], getattr(log, table)[name], rtol=1e-10,
                                           err_msg=name)


def test_a_killed_command_goes_on_and_repeats_no_branch_that_has_ended(base):
    command = [sys.executable, "-m", "hvdscale.cli.branch", "--from", "ck", "--at", "40", "--out", "killed",
               "--factors", "1,2,4", "--orders", "1", "--branch-examples", "24000"]
    process = subprocess.Popen(command, cwd=base, env=command_environment(), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.startswith("[1/3]"):
            break
    time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    done = subprocess.run(command, cwd=base, env=command_environment(), capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=300)
    assert done.returncode == 0 and "[1/3]" not in done.stdout and "[3/3]" in done.stdout, done.stdout + done.stderr
