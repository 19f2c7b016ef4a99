"""The guide to other formats: its commands on published data and between two sets of logs, as they are written."""
import shlex
import subprocess
import tarfile

from tests import guides
from tests.conftest import command_environment
from tests.exchange.benchmarks.test_mllog import submission, write
from tests.exchange.benchmarks.test_mlperf_rcp import point, rcp
from tests.factories.archives import write_archive
from tests.factories.logs import save, study

GUIDE = "hvdscale/exchange/README.rst"


def run_as_written(command, folder):
    assert command in [each.command for each in guides.typed(GUIDE)]
    done = subprocess.run(shlex.split(command), cwd=folder, capture_output=True, text=True, timeout=300,
                          env=command_environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_archive_becomes_a_log_and_the_figures_of_its_paper(tmp_path):
    write_archive(tmp_path / "archive", studies=4, trials=80, evaluations=1600)
    with tarfile.open(tmp_path / "batch_science_data.tar.bz2", "w:bz2") as tar:
        tar.add(tmp_path / "archive", "batch_science_data")
    run_as_written("hvdscale-log import batch_science_data.tar.bz2 archive.h5", tmp_path)
    run_as_written("hvdscale-report archive.h5 --paper shallue2019 --out paper", tmp_path)
    assert (tmp_path / "paper/report.html").exists() and list((tmp_path / "paper/figures").glob("*.png"))


def test_a_candidate_is_held_against_its_baseline(tmp_path):
    for name in ("baseline", "candidate"):
        (tmp_path / name).mkdir()
        for workers, made in study().items():
            save(made, tmp_path / name / f"w{workers}.h5")
    assert "no regression" in run_as_written("hvdscale-report compare baseline candidate --tolerance 10%", tmp_path)
    decide = "hvdscale-report compare baseline candidate --decide --ledger baseline.json"
    assert "alike" in run_as_written(decide, tmp_path)


def test_runs_of_a_benchmark_are_reported_beside_its_reference_points(tmp_path):
    write(tmp_path / "results/dgxh100_n16/bert", submission(), submission(seed=4))
    rcp(tmp_path / "rcps_bert.json", a=point(256, [2560, 5120], "bert"))
    run_as_written("hvdscale-log import results/dgxh100_n16/bert bert.h5 --workers 16x8", tmp_path)
    run_as_written("hvdscale-log import rcps_bert.json reference.h5", tmp_path)
    said = run_as_written("hvdscale-report bert.h5 reference.h5", tmp_path)
    assert said.count("bert/reference, lamb\n") == 1
