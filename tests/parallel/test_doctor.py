"""hvdscale-doctor as it is typed: alone and under a launcher, on a sound job and on faulty ones."""
import re
import sys

import pytest

from hvdscale.doctor.children import OtherRank
from hvdscale.doctor.finding import FAILED
from tests.conftest import launcher_command

MADE = "tests.single.made_faulty_jobs"
CHECKS = ["gradients", "losses", "random numbers", "batch-norm", "last batch", "shards", "examples", "ranks",
          "evaluation", "checkpoint", "weight decay", "learning rate", "stall"]


@pytest.fixture
def doctor(run, tmp_path):
    """Run the doctor on np workers (None: without a launcher); gives exit code, output, and verdicts by check."""
    def doctor(np, job, *options):
        launcher = [] if np is None else launcher_command("mpirun", np)
        done = run(*launcher, sys.executable, "-m", "hvdscale.cli.doctor", job, *options, check=False, timeout=120)
        assert list(tmp_path.iterdir()) == []               # neither log nor checkpoint
        assert "Traceback" not in done.stderr
        verdicts = dict(re.findall(r"^  (\S.{13})  (passed|FAILED|-)", done.stdout, re.M))
        return done.returncode, done.stdout, {check.strip(): verdict for check, verdict in verdicts.items()}
    return doctor


@pytest.mark.parametrize("np, job, options", [
    pytest.param(None, "digits/fc", ["--checkpoint", "kept", "--set", "threads=1"], marks=pytest.mark.slow),
    pytest.param(2, f"{MADE}:sound", ["--global-batch", "24"], marks=pytest.mark.slow)])    # README has one
def test_a_sound_job_is_found_sound(doctor, np, job, options):
    launcher_command("mpirun", 2)                           # the check of a stall starts one
    code, said, verdicts = doctor(np, job, *options)
    assert list(verdicts) == CHECKS
    assert code == 0 and "FAILED" not in said, said
    assert verdicts["gradients"] == verdicts["ranks"] == verdicts["stall"] == "passed"
    assert ("3 ways to cut a step of 46 examples: 2 workers" in said) == (np == 2)
    assert "rank 0 and rank 1" in " ".join(said.split()) or np == 2


CAUSE = "the rank, or what else differs between processes (time, process id"


@pytest.mark.parametrize("job, differs", [
    ("rank_in_build", "rank 1 built a model whose layers.0.weight differs from rank 0's"),
    ("rank_in_augmentation", "example 0 of train is another on rank 1 than on rank 0")])
@pytest.mark.slow
def test_a_rank_in_a_seed_is_found_by_comparing_the_ranks(doctor, job, differs):
    code, said, verdicts = doctor(2, f"{MADE}:{job}")
    said = " ".join(said.split())
    assert code == 1 and verdicts["ranks"] == "FAILED"
    assert differs in said and CAUSE in said


@pytest.mark.parametrize("job, differs", [
    ("rank_in_build", "the model's layers.0.weight, as built, is another on rank 1 than on rank 0"),
    pytest.param("rank_in_augmentation", "example 0 of train is another on rank 1 than on rank 0",
                 marks=pytest.mark.slow)])
def test_a_rank_in_a_seed_is_found_without_a_launcher(job, differs):
    found = OtherRank(f"{MADE}:{job}", [{}, {}]).finding()
    assert (found.verdict, found.differs) == (FAILED, differs) and CAUSE in found.cause
