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


@pytest.fixture
def base(here, tmp_path):
    """A folder with checkpoints of a run on one worker."""
    here("hvdscale-train", *RUN, "--steps", "40", "--checkpoint", "ck", "--log", "w.h5", "--target", "none")
    return tmp_path


@pytest.mark.parametrize("np_", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_branches_are_the_same_at_any_number_of_workers(base, here, run, np_):
    asked = ["--from", "ck", "--at", "40", *ASKED, "--out"]
    here("hvdscale-branch", *asked, "w1")
    done = run(*launcher_command("mpirun", np_), sys.executable, "-m", "hvdscale.cli.branch", *asked, "several")
    assert done.stdout.count("next: hvdscale-report") == 1, done.stdout
    one, several = base / "w1", base / "several"
    with read_log(one / "branches.h5") as log, read_log(several / "branches.h5") as other:
        assert other.trials["workers"].tolist() == [np_] * 3
        assert other.trials["global_batch"].tolist() == [12, 24, 48]
        for table, columns in (("steps", ("trial", "step", "loss", "lr")),
                               ("evaluations", ("step", "examples", "train/cross_entropy", "val/error"))):
            for name in columns:
                np.testing.assert_allclose(getattr(other, table)[name], getattr(log, table)[name], rtol=1e-10,
                                           err_msg=name)


@pytest.mark.slow
def test_a_killed_command_goes_on_and_repeats_no_branch_that_has_ended(base, here):
    words = ["--from", "ck", "--at", "40", "--out", "killed", "--factors", "1,2,4", "--orders", "1",
             "--branch-examples", "12000"]
    command = [sys.executable, "-m", "hvdscale.cli.branch", *words]
    process = subprocess.Popen(command, cwd=base, env=command_environment(), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.startswith("[1/3]"):
            break
    time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    done = here("hvdscale-branch", *words)
    assert "[1/3]" not in done.stdout and "[3/3]" in done.stdout, done.stdout + done.stderr
