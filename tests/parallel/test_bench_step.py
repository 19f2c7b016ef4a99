"""tools/bench_step runs, and prints how long a step takes against that of torch's own loop."""
import re
import sys

import pytest

from tests.conftest import ROOT, launcher_command


@pytest.mark.parametrize("np", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_step_is_timed_against_torchs_own(run, np):
    workloads = ["digits/fc", "fashion_mnist/fc_32"]
    launcher = launcher_command("mpirun", np) if np > 1 else []
    done = run(*launcher, sys.executable, ROOT / "tools/bench_step", *workloads, "--blocks", "1", "--steps", "2",
               "--device", "cpu", "--local-batch", "16")
    assert f"{np} worker{'s' * (np > 1)} on cpu, 16 examples each" in done.stdout
    for workload in workloads:
        [ours, theirs, ratio] = re.search(rf"^{workload} +([\d.]+) +([\d.]+) +([\d.]+) ", done.stdout, re.M).groups()
        half = 0.005                            # each is printed to two places
        least, most = (float(ours) - half) / (float(theirs) + half), (float(ours) + half) / (float(theirs) - half)
        assert least - half <= float(ratio) <= most + half


@pytest.mark.slow
def test_the_cost_of_measuring_the_noise_scale_is_printed(run):
    done = run(sys.executable, ROOT / "tools/bench_step", "digits/fc", "--noise", "--blocks", "1", "--steps", "2")
    [ratio, adds] = re.search(r"^digits/fc +[\d.]+ +[\d.]+ +([\d.]+) .* (-?[\d.]+)%$", done.stdout, re.M).groups()
    assert float(adds) == pytest.approx(float(ratio) - 1, abs=0.02)         # every hundredth step
