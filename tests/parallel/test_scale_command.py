"""hvdscale-scale from its command line to the report's files, by a real launcher."""
import json
import sys

import pytest

from hvdscale.log.reader import read_log
from hvdscale.log.schema import Status
from tests.conftest import launcher_command

SCALE = (sys.executable, "-c", "from hvdscale.cli.scale import main; main()", "digits/fc", "--workers", "1,2",
         "--out", "out", "--set", "eval_every=10", "--set", "keep_going=true")


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_a_job_at_two_worker_counts_ends_in_a_report_and_keeps_its_logs(run, tmp_path, launcher):
    pytest.importorskip("sklearn")
    launcher_command(launcher, 2)                                               # skips where there is none
    done = run(*SCALE, "--launcher", launcher, "--steps", "40")
    for workers, batch in ((1, 16), (2, 32)):
        with read_log(tmp_path / f"out/w{workers}-r1.h5") as log:
            assert (log.trials["status"][0], log.trials["workers"][0]) == (Status.COMPLETE, workers)
            assert (log.trials["global_batch"][0], log.steps.rows) == (batch, 40)
            assert log.evaluations["step"].tolist() == [0, 10, 20, 30, 40]
        assert f"{batch} = {workers} worker" in (tmp_path / f"out/w{workers}-r1.out").read_text()
        assert done.stdout.count(f"[{workers}/2] {workers} worker") == 1
    assert done.stdout.count("COMPLETE: budget of 40 steps spent") == 2             # of rank 0 alone
    report = tmp_path / "out/report"
    assert "<html" in (report / "report.html").read_text()
    assert json.loads((report / "report.json").read_text())
    assert list((report / "tables").glob("*.csv")) and list((report / "figures").glob("*.svg"))

    other = run(*SCALE, "--launcher", launcher, "--steps", "41", check=False)
    assert (other.returncode, other.stdout) == (2, "")
    assert "out/w1-r1.h5 belongs to another series: steps was 40, is now 41. Choose" in other.stderr
