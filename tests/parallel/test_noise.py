"""The noise scale's columns in the log of a real job, against gradients of each rank's examples by plain torch."""
import numpy as np
import pytest
from click.testing import CliRunner

from hvdscale.analysis.noise import read_noise, unbiased_pair
from hvdscale.cli.report import main as report
from hvdscale.log.reader import read_log
from tests.conftest import launcher_command
from tests.parallel import toy
from tests.update.test_gradient_norms import by_hand, together

STEPS, EVERY, BATCH = 12, 3, 22


@pytest.mark.parametrize("np_, launcher", [(2, "mpirun"), pytest.param(3, "gloo", marks=pytest.mark.slow)])
def test_the_log_has_the_square_norms_of_every_ranks_own_gradient(run, tmp_path, np_, launcher):
    run(*launcher_command(launcher, np_), "python", "-m", "tests.parallel.toy_command", "toy/net", "--global-batch",
        BATCH, "--accumulate", 2, "--steps", STEPS, "--eval-every", 0, "--precision", "fp64", "--log-file",
        "w.h5", "--set", f"noise_every={EVERY}", "--set", "bucket_mib=1e-4")
    log = read_log(tmp_path / "w.h5")
    steps = log.steps
    measured = np.flatnonzero(np.isfinite(steps["local_sqnorm"]))
    assert steps["step"][measured].tolist() == list(range(1, STEPS + 1, EVERY))
    ranks = [toy.settled(np_, precision="fp64", global_batch=BATCH, accumulate=2).passes(BATCH, r) for r in range(np_)]
    shares = [(parts[0].start, parts[-1].stop) for parts in ranks]
    _, before, plan, model = together(1, STEPS, global_batch=BATCH, accumulate=2, noise_every=0)
    expected = np.array([by_hand(plan, model, before[step], step, shares) for step in range(0, STEPS, EVERY)])
    got = np.stack([steps[name][measured] for name in ("local_sqnorm", "reduced_sqnorm")], axis=1)
    np.testing.assert_allclose(got, expected, rtol=1e-8)
    assert (steps["local_examples"][measured] == BATCH / np_).all()
    noise = read_noise(log)[0]
    grad_sqnorm, cov_trace = unbiased_pair(*expected.T, BATCH / np_, BATCH)
    np.testing.assert_allclose([noise.grad_sqnorm, noise.cov_trace], [grad_sqnorm + cov_trace / toy.TRAIN, cov_trace],
                               rtol=1e-6)


def test_an_unmeasurable_job_says_so_once_and_not_in_the_report(here, tmp_path, monkeypatch):
    monkeypatch.setattr("hvdscale.training.prepare.find", lambda name: toy.WORKLOAD)
    done = here("hvdscale-train", "toy/net", "--global-batch", 4, "--steps", 10, "--eval-every", 0, "--set",
                "noise_every=1", "--set", "model_args.norm='ours'", "--log", "w.h5")
    assert done.stdout.count("the gradient noise scale is not measured") == 1
    assert "local_sqnorm" not in read_log(tmp_path / "w.h5").steps.columns
    assert "noise scale" not in CliRunner().invoke(report, [str(tmp_path / "w.h5")]).output
