"""hvdscale-branch on several workers: the branches of one worker, to rounding."""
import sys

import numpy as np
import pytest

from hvdscale.log.reader import read_log
from tests.conftest import launcher_command

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
