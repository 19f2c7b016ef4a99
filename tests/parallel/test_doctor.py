"""hvdscale-doctor as it is typed: alone and under a launcher, on a sound job and on faulty ones."""
import re
import sys

import pytest
import torch

from hvdscale.doctor.finding import JOB, Verdict
from hvdscale.doctor.probe_step import make_sample
from hvdscale.doctor.ranks import digest, environment, same_when_played, simulated
from hvdscale.training.prepare import prepare
from hvdscale.workers.group import SingleWorker
from tests import guides
from tests.conftest import launcher_command
from tests.factories import ddp_scripts

MADE = "tests.factories.faulty_jobs"
RANK, WORKERS = (JOB.checks["ranks"]["causes"][cause]["cause"] for cause in ("rank", "workers"))
CHECKS = ["gradients", "losses", "random numbers", "rounding", "batch-norm", "padding", "examples", "ranks",
          "evaluation", "checkpoint", "weight decay"]


@pytest.fixture
def doctor(run, tmp_path):
    """Run the doctor on np workers (None: without a launcher); gives exit code, output, and verdicts by check."""
    def doctor(np, job, *options):
        launcher = [] if np is None else launcher_command("mpirun", np)
        done = run(*launcher, sys.executable, "-m", "hvdscale.cli.doctor", job, *options, check=False)
        assert list(tmp_path.iterdir()) == []               # neither log nor checkpoint
        assert "Traceback" not in done.stderr
        verdicts = dict(re.findall(r"^  (\S.{13})  (passed|warned|FAILED|-)", done.stdout, re.M))
        return done.returncode, done.stdout, {check.strip(): verdict for check, verdict in verdicts.items()}
    return doctor


@pytest.mark.parametrize("np, job, options", [
    pytest.param(None, "digits/fc", ["--checkpoint", "kept", "--set", "threads=1"], marks=pytest.mark.slow),
    pytest.param(2, f"{MADE}:sound", ["--global-batch", "24"], marks=pytest.mark.slow)])    # README has one
def test_a_sound_job_is_found_sound(doctor, np, job, options):
    code, said, verdicts = doctor(np, job, *options)
    assert list(verdicts) == CHECKS
    assert code == 0 and "FAILED" not in said, said
    assert verdicts["gradients"] == verdicts["ranks"] == "passed"
    assert "rank 0 and rank 1" in " ".join(said.split()) or np == 2


@pytest.mark.parametrize("job, differs, cause", [
    ("read_by_mpirun", "example 0 of train is not the same on rank 1 as on rank 0", RANK),
    ("loss_by_mpirun", "under the same seed is not the same on rank 1 as on rank 0", RANK),
    ("loss_by_process", "under the same seed is not the same on rank 1 as on rank 0", RANK)])
@pytest.mark.slow
def test_a_rank_in_a_seed_is_found_by_comparing_the_ranks(doctor, job, differs, cause):
    code, said, verdicts = doctor(2, f"{MADE}:{job}")
    said = " ".join(said.split())
    assert code == 1 and verdicts["ranks"] == "FAILED"
    assert differs in said and cause in said
    if job.startswith("loss"):          # and no other check blames it on the examples of a pass
        assert "FAILED: gradients" in said and "see the check 'ranks' first" in said
        assert "mixes the examples" not in said and "group_by_group=always" not in said


def alone(job):
    """What the processes that play several ranks find of the job, beside this one."""
    asked = f"{MADE}:{job}", [{}, {"threads": 1}]
    with simulated(*asked, 46) as played:
        sample = make_sample(prepare(*asked, SingleWorker()), 46)
        return same_when_played(played, sample, digest(sample))


@pytest.mark.slow
@pytest.mark.parametrize("job, differs, cause", [
    ("build_by_RANK", "the model's layers.5.bias, as built, is not the same on rank 1 as on rank 0", RANK),
    ("loss_by_process", "under the same seed is not the same on rank 1 as on rank 0", RANK),
    ("loss_by_SLURM_PROCID", "under the same seed is not the same on rank 1 as on rank 0", RANK),
    ("read_by_RANK", "example 0 of train is not the same on rank 1 as on rank 0", RANK),
    ("load_by_import", "example 0 of train is not the same on rank 1 as on rank 0", RANK),
    ("loss_by_host", "under the same seed is not the same on rank 1 as on rank 0", RANK),
    ("measure_by_LOCAL_RANK", "by the same model is not the same on rank 1 as on rank 0", RANK)])
def test_a_rank_in_a_seed_is_found_without_a_launcher(job, differs, cause):
    found = alone(job)
    assert (found.verdict, found.cause) == (Verdict.FAILED, cause) and found.differs.endswith(differs)


@pytest.mark.slow                   # README's is one
def test_a_sound_job_is_the_same_on_both_ranks_that_are_played():
    found = alone("sound")
    assert found.verdict == Verdict.PASSED and "only a launch runs code that communicates" in found.looked_at


@pytest.mark.parametrize("job, differs, cause", [
    ("loss_by_horovod", "on rank 1 as on rank 0", RANK), ("loss_by_torch", "on rank 1 as on rank 0", RANK),
    ("loss_by_workers", "on two workers as on one", WORKERS)])
@pytest.mark.slow
def test_a_doctor_alone_finds_a_loss_that_uses_rank_or_size(doctor, job, differs, cause):
    code, said, verdicts = doctor(None, f"{MADE}:{job}", "--set", "threads=1")
    said = " ".join(said.split())
    assert code == 1 and [check for check, verdict in verdicts.items() if verdict == "FAILED"] == ["ranks"]
    assert f"under the same seed is not the same {differs}" in said and cause in said


PLAYED = """
import os, platform, socket
from hvdscale.doctor.ranks import on_host, play
host = socket.gethostname()
play(1, 2)
import horovod.torch as hvd
import torch.distributed as dist
hvd.init()
print(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.is_initialized())
print(dist.is_initialized(), dist.get_rank(), dist.get_world_size())
dist.init_process_group("gloo")
print(dist.is_initialized())
on_host("another")
print({socket.gethostname(), platform.node(), os.uname().nodename})
"""


def test_a_process_that_plays_a_rank_is_told_it_wherever_it_asks(run):
    pytest.importorskip("horovod")
    assert run(sys.executable, "-c", PLAYED).stdout.splitlines() == ["1 2 1 True", "False 1 2", "True", "{'another'}"]


def test_a_played_rank_has_only_its_launchers_variables(monkeypatch):
    monkeypatch.setenv("OMPI_MCA_orte_hnp_uri", "of this launch")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    told = environment(1, 2)
    assert {told[name] for name in ("OMPI_COMM_WORLD_RANK", "RANK", "LOCAL_RANK", "SLURM_PROCID")} == {"1"}
    assert told["WORLD_SIZE"] == "2" and "OMPI_MCA_orte_hnp_uri" not in told


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_a_script_is_examined_under_its_own_launcher(run, tmp_path, launcher):
    (tmp_path / "train.py").write_text(ddp_scripts.script("padded_evaluation"))
    done = run(*launcher_command(launcher, 2), sys.executable, "-m", "hvdscale.cli.doctor", "script", "train.py",
               "--batch", "16", "--", "--batch", "{local}", check=False)
    assert done.returncode == 1 and re.findall(r"^FAILED: (\w+)$", done.stdout, re.M) == ["evaluation"], done.stderr
    assert "1 example of 43 counted twice (2.3%)" in done.stdout


PAIRS = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from hvdscale.workload import Data, Split, Workload

{}
        metrics = {{"distance": "min"}}
        dataset, model = "made_up", "pairs"
        defaults = dict(lr=0.1, base_batch=32, target="val/distance<0.001")

        def load(self, data_dir):
            torch.manual_seed(0)
            first, second = torch.randn(2, 256, 8)
            return Data(Split(first[:192], second[:192]), Split(first[192:], second[192:]))

        def build(self):
            return nn.Linear(8, 4)

        def measure(self, model, batch):
            first, second = map(model, batch)
            return {{"distance": ((first - second).square().sum(), len(first))}}
    workload = Contrastive()
"""


@pytest.mark.slow
def test_the_guides_loss_over_the_global_batch_is_exact_and_the_doctor_says_so(run, tmp_path):
    code = re.search(r"^Losses over the global batch\n[^$]*?::\n\n((?:    .*\n|\n)+)", guides.read(
        "hvdscale/workloads/README.rst"), re.M)[1]
    (tmp_path / "pairs.py").write_text(re.sub("^    ", "", PAIRS.format(code), flags=re.M))
    torchrun = launcher_command("torchrun", 2)
    for workers, launcher in ((1, []), (2, torchrun)):
        run(*launcher, sys.executable, "-m", "hvdscale.cli.train", "pairs:workload", "--global-batch", "32", "--steps",
            "10", "--set", "precision=fp64", "--set", "transport=torch", "--save-model", f"w{workers}.pt",
            "--log-file", f"w{workers}.h5")
    one, two = (torch.load(tmp_path / f"w{workers}.pt") for workers in (1, 2))
    torch.testing.assert_close(two, one, rtol=1e-12, atol=1e-12)
    done = run(*torchrun, sys.executable, "-m", "hvdscale.cli.doctor", "pairs:workload", "--global-batch", "32",
               "--steps", "10", check=False)
    assert done.returncode == 1 and re.search(r"Error: pairs.py:\d+: Contrastive.loss calls all_gather; ", done.stderr)
