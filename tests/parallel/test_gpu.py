"""Jobs on a GPU: what a CPU finds, the same bits again, NCCL. Skipped where torch sees no GPU."""
import json
import re
import sys
import warnings

import numpy as np
import pytest
import torch

import hvdscale
from hvdscale.log.reader import read_log
from tests.conftest import ROOT, lacks, launcher_command

GPU = "cuda"
TRAIN = (sys.executable, "-m", "hvdscale.cli.train")
NCCL = ("import horovod.torch as hvd, torch; hvd.init(); torch.cuda.set_device(hvd.local_rank()); "
        "print(hvd.nccl_built() and hvd.allreduce(torch.ones(3, device='cuda'), op=hvd.Sum).tolist())")


@pytest.fixture(autouse=True)
def gpu():
    if GPU == "cuda" and not torch.cuda.is_available():
        lacks("gpu", "torch sees no GPU")


@pytest.fixture
def trained(run, tmp_path):
    """Losses and parameters of a job of 20 steps, by the name that its files have."""
    def trained(name, *options, workers=0, workload="digits/cnn", device=GPU):
        launcher = launcher_command("horovodrun", workers) if workers else []
        run(*launcher, *TRAIN, workload, "--steps", 20, "--global-batch", 64, "--target", "none", "--eval-every", 10,
            "--device", device, "--log-file", f"{name}.h5", "--save-model", f"{name}.pt", *options)
        with read_log(tmp_path / f"{name}.h5") as log:
            loss = log.steps["loss"]
        return loss, torch.load(tmp_path / f"{name}.pt", weights_only=True, map_location="cpu")
    return trained


def assert_close(one, other, rtol):
    """rtol: of the largest value; 0 for the same bits."""
    assert np.allclose(one[0], other[0], rtol=rtol, atol=0)
    for name, values in one[1].items():
        assert (values - other[1][name]).abs().max() <= rtol * values.abs().max(), name


@pytest.mark.parametrize("workload", ["digits/fc", "digits/cnn"])
@pytest.mark.parametrize("precision, rtol", [("fp64", 1e-10), ("fp32", 1e-4), ("tf32", 3e-2), ("bf16", 0.2)])
def test_a_gpu_finds_what_a_cpu_finds(trained, workload, precision, rtol):
    on_cpu = trained("on_cpu", "--precision", precision, workload=workload, device="cpu")
    assert_close(on_cpu, trained("on_gpu", "--precision", precision, workload=workload), rtol)


def test_a_deterministic_run_is_the_same_to_the_last_bit_and_goes_on_so(trained):
    whole = trained("whole", "--deterministic")
    assert_close(whole, trained("again", "--deterministic"), 0)
    kept = ["--deterministic", "--checkpoint", "kept", "--resume", "auto"]
    trained("parts", *kept, "--steps", 7)
    assert_close(whole, trained("parts", *kept), 0)


def test_the_doctors_comparison_of_bits_uses_kernels_that_repeat_them(run):
    for _ in range(4):
        said = run(sys.executable, "-m", "hvdscale.cli.doctor", "digits/cnn", "--device", GPU).stdout
        assert re.search(r"^ +checkpoint +passed ", said, re.M), said


def test_no_step_waits_for_the_loss_that_is_recorded(tmp_path):
    losses = [torch.tensor(float(i), device=GPU) for i in range(50)]
    with hvdscale.record(tmp_path / "w.h5", dataset="d", model="m", optimizer="sgd", global_batch=8, lr=0.1,
                         metrics={"val/error": "min"}, flush_seconds=1000) as run:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")                         # torch's, that this is a prototype
            torch.cuda.set_sync_debug_mode("error")
        try:
            for loss in losses:
                run.step(loss)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    with read_log(tmp_path / "w.h5") as log:
        assert log.steps["loss"].tolist() == list(range(50))


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_nccl_joins_the_workers_of_one_host(run, trained, workers):
    if torch.cuda.device_count() < workers:
        lacks("gpus", f"needs {workers} GPUs")
    said = run(*launcher_command("horovodrun", workers), sys.executable, "-c", NCCL).stdout
    assert re.findall(r"True|False|\[.*\]", said) == [f"[{workers}.0, {workers}.0, {workers}.0]"] * workers
    assert_close(trained("alone"), trained("joined", workers=workers), 1e-4)


def test_a_step_on_the_gpu_is_timed_against_torchs_own(run):
    done = run(sys.executable, ROOT / "tools/bench_step", "--device", GPU, "--blocks", 1, "--steps", 2, "digits/cnn")
    assert "1 worker on cuda" in done.stdout
    assert re.search(r"^digits/cnn +[\d.]+ ms +[\d.]+ ms +[\d.]+ ", done.stdout, re.M)


TIMED = """
import os, time, torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
torch.distributed.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = DistributedDataParallel(nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(8)]).cuda())
optimizer = torch.optim.SGD(model.parameters(), 0.01)
times = []
for inputs, in DataLoader(TensorDataset(torch.ones(8192, 2048)), 128):
    model(inputs.cuda()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    times.append(time.perf_counter())
    if len(times) == 38:
        torch.cuda.synchronize()
        print("own", (time.perf_counter() - times[9]) / 28, flush=True)
"""


def test_an_unmodified_script_is_timed_by_events_as_it_times_itself(run, tmp_path):
    (tmp_path / "train.py").write_text(TIMED)
    said = run(sys.executable, "-m", "hvdscale.cli.scale", "script", "train.py", "--workers", "1", "--updates", "30",
               "--out", "out", timeout=200).stdout
    own = float(re.search(r"^own (.*)", (tmp_path / "out/w1-r1.out").read_text(), re.M)[1])
    with read_log(tmp_path / "out/w1-r1.h5") as log:
        assert log.steps["step_seconds"].mean() == pytest.approx(own, rel=0.1) and log.restarts["device"][0] != "cpu"
        assert json.loads(log.trials["plan"][0])["measured"]["parameters"] == 8 * 2048 * 2049
    assert "seconds per" in said
