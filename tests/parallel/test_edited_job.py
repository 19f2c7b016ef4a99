"""An edited job on two workers, by a real launcher: one message of all ranks, and no mixed series."""
import sys

import pytest

from tests.conftest import launcher_command
from tests.factories.edited_jobs import write_job

TRAIN = (sys.executable, "-m", "hvdscale.cli.train", "job:workload", "--checkpoint", "kept", "--resume", "auto",
         "--log", "w.h5", "--set", "threads=1")
SCALE = (sys.executable, "-c", "from hvdscale.cli.scale import main; main()", "job:workload", "--workers", "1,2",
         "--out", "out")


@pytest.mark.slow
def test_two_workers_refuse_to_resume_an_edited_job_with_one_message(run, here, tmp_path):
    """The job is that of one worker, which is sooner begun; accepting the edit is one worker's, too."""
    whole = (*TRAIN[3:], "--global-batch", "16")
    write_job(tmp_path)
    here("hvdscale-train", *whole)
    write_job(tmp_path, ("ReLU", "Tanh"))
    done = run(*launcher_command("mpirun", 2), *TRAIN[:3], *whole, check=False)
    assert done.returncode == 2 and done.stderr.count("of another job: job.py differs; model: (1): ReLU()") == 1
    done = here("hvdscale-train", *whole, "--steps", "10", "--accept-changes")
    assert "note: accepted: job.py differs" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_a_series_of_an_edited_job_is_run_again_or_refused(run, tmp_path, launcher):
    launcher_command(launcher, 2)                                               # skips where there is none
    write_job(tmp_path)
    run(*SCALE, "--launcher", launcher)
    assert "2 of 2 runs are already finished" in run(*SCALE, "--launcher", launcher).stdout
    write_job(tmp_path, ("lr=0.05", "lr=0.2"))
    (tmp_path / "out/w1-r1.h5").unlink()
    done = run(*SCALE, "--launcher", launcher, check=False)
    assert done.returncode == 2
    assert "w2-r1.h5 is of another job: job.py differs; defaults: lr 0.05 -> 0.2" in done.stderr
    done = run(*SCALE, "--launcher", launcher, "--accept-changes")
    assert "count as one workload although" in " ".join(done.stdout.split())
    done = run(*SCALE, "--launcher", launcher, "--overwrite")
    assert "[2/2]" in done.stdout and "although" not in done.stdout
