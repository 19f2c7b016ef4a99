"""tools/bench_step runs, and shows how long a step takes against those of its peers."""
import json
import statistics
import sys

import pytest

from tests.conftest import ROOT, launcher_command

PEERS = {1: ["a plain torch loop", "the same, fused SGD"],
         2: ["torch DDP over Gloo", "Horovod's optimizer", "a bare loop"]}


def timed(run, tmp_path, *options, launcher=()):
    """What the tool printed, and its cases."""
    done = run(*launcher, sys.executable, ROOT / "tools/bench_step", *options, "--blocks", "2", "--steps", "2",
               "--json", tmp_path / "steps.json")
    return done.stdout, json.loads((tmp_path / "steps.json").read_text())["cases"]


@pytest.mark.parametrize("np", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_step_is_timed_against_torchs_own(run, tmp_path, np):
    workloads = ["digits/fc", "fashion_mnist/fc_32"]
    launcher = launcher_command("mpirun", np) if np > 1 else []
    printed, cases = timed(run, tmp_path, *workloads, "--device", "cpu", "--local-batch", "16", launcher=launcher)
    assert f"16 examples a worker, {np} worker{'s' * (np > 1)} on cpu" in printed
    assert [(case["name"], case["peer"]) for case in cases] == [
        (name, peer) for name in workloads for peer in PEERS[np]]
    for case in cases:
        ours, theirs = case["values"]["hvdscale"], case["values"][case["peer"]]
        assert len(ours) == len(theirs) == 2 and min(*ours, *theirs) > 0
        assert case["ratio"] == pytest.approx(statistics.median(a / b for a, b in zip(ours, theirs)))
        assert f"{case['ratio']:.2f}" in printed


@pytest.mark.slow
def test_the_cost_of_measuring_the_noise_scale_is_shown(run, tmp_path):
    _, [case] = timed(run, tmp_path, "digits/fc", "--noise")
    assert case["peer"] == "hvdscale without the noise scale" and case["ratio"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("np", [1, 2])
def test_the_cost_of_watching_is_shown(run, tmp_path, np):
    launcher = launcher_command("torchrun", np) if np > 1 else []
    _, cases = timed(run, tmp_path, "digits/fc", "--watched", "--transport", "torch", launcher=launcher)
    assert [(case["ours"], case["peer"]) for case in cases] == [("watched", "not watched"), ("timed", "not watched")]
    assert all(case["ratio"] > 0 and {len(values) for values in case["values"].values()} == {2} for case in cases)
