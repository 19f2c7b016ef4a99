"""MLPerf's reference convergence points, in."""
import json
import math
import os

import numpy as np
import pytest

from hvdscale.analysis.steps import RunToTarget
from hvdscale.analysis.trials import read_trials
from hvdscale.exchange.benchmarks.mlperf_rcp import TARGET, import_rcp, read_points
from hvdscale.log.check import check
from hvdscale.log.reader import read_log
from hvdscale.log.schema import UNKNOWN_SEED, Status
from hvdscale.target import Target
from tests.exchange.test_tables_and_rcp import call, invoke, taken
from tests.wording import answered


def point(batch, values, benchmark="resnet", key="Epochs to converge", **hyperparameters):
    return {"Benchmark": benchmark, "BS": batch, "Creator": "someone", "Hyperparams": {
        "opt_base_learning_rate": 0.5, "optimizer": "lars", **hyperparameters}, key: values}


def rcp(path, **points):
    path.write_text(json.dumps(points))
    return path


def test_reference_points_become_trials_that_meet_their_target(tmp_path, worded):
    rcp(tmp_path / "rcp.json", a=point(1000, [40, 41, 41], opt_momentum=0.9), b=point(64, [30, 30]))
    done = invoke("import", tmp_path / "rcp.json", tmp_path / "log.h5")
    assert done.exit_code == 0 and done.stdout.startswith(f"{tmp_path}/log.h5: 5 trials under the target {TARGET}, ")
    worded(done.stderr)
    with check(tmp_path / "log.h5") as log:
        runs = [RunToTarget(trial, Target.parse(TARGET)) for trial in read_trials(log)]
        epoch = 1281167
        steps = {1000: [40, 41, 41], 64: [30, 30]}
        assert [run.steps for run in runs] == [-(-epochs * epoch // batch) for batch in (64, 1000)
                                               for epochs in steps[batch]]
        for run in runs:        # between the evaluation one epoch before and the one that meets
            batch = run.trial.global_batch
            assert run.steps - run.steps_before == -(-epoch // batch)
            assert run.trial.status == Status.COMPLETE and run.trial.target == TARGET
        assert log.trials["metaparameters/momentum"][2] == 0.9 and set(log.trials["optimizer"]) == {"lars"}
        assert {trial.setting for trial in read_trials(log)[:2]} == {read_trials(log)[0].setting}
        assert log.trials["seed"].tolist() == [UNKNOWN_SEED] * 5
        assert log.trials["source_trial"].tolist() == [0, 1, 0, 1, 2]


@pytest.mark.parametrize("points, unit, batch, steps, before", [
    (dict(a=point(256, [25600, 51200], "bert")), "examples", 256, [100, 200], [0, 100]),
    (dict(a=point(256, [2560, 5120], "flux", "samples to converge")), "examples", 256, [10, 20], [0, 10]),
    (dict(a=point(2, [1000, 1250], "sd")), "steps", 2, [1000, 1250], [750, 1000]),
    (dict(a=point(100, [2048000, 2457600], "gpt3")), "tokens", 100, [10, 12], [8, 10]),
    (dict(a=point(1281167, [0.85, 0.9, 0.95])), "epochs", 1281167, [1, 1, 1], [0, 0, 0]),
    (dict(a=point(32, [96000] * 3, "bert")), "examples", 32, [3000] * 3, [math.nan] * 3),    # unknown spacing
    (dict(a=point(32, [96000] * 3, "bert"), b=point(64, [128000, 134400], "bert")), "examples", 32, [3000] * 3,
     [2800] * 3),
    (dict(a=point(4, [800 * k for k in range(101, 120)] + [96003], "bert")), "examples", 4,
     [200 * k for k in range(101, 120)] + [24001], [200 * k for k in range(100, 119)] + [23801]),      # one slip
])
def test_units_and_spacings_of_reference_points(points, unit, batch, steps, before, tmp_path):
    rcp(tmp_path / "rcp.json", **points)
    assert {found.benchmark.unit for found in read_points(str(tmp_path / "rcp.json"))} == {unit}
    import_rcp(tmp_path / "rcp.json", tmp_path / "log.h5")
    trials = read_trials(read_log(tmp_path / "log.h5"))
    runs = [RunToTarget(trial, Target.parse(TARGET)) for trial in trials if trial.global_batch == batch]
    assert [run.steps for run in runs] == steps
    np.testing.assert_equal([run.steps_before for run in runs], before)


def test_epochs_of_unknown_length_must_be_told(tmp_path):
    rcp(tmp_path / "rcp.json", a=point(64, [3, 4], "other"))
    code, said = call("import", tmp_path / "rcp.json", tmp_path / "log.h5")
    assert code == 2 and "other counts epochs" in said and "--set-size" in said
    assert os.listdir(tmp_path) == ["rcp.json"]
    log, _ = taken(tmp_path / "rcp.json", tmp_path / "log.h5", "--train-examples", "640")
    assert log.evaluations["step"].tolist() == [20, 30, 30, 40]
    assert call("import", tmp_path / "rcp.json", tmp_path / "log.h5", "--unit", "steps", "--overwrite")[0] == 0


def test_wrong_reference_points_and_those_of_mixed_units_are_named(golden, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def said(text, *words):
        (tmp_path / "rcp.json").write_text(text)
        code, said = call("import", "rcp.json", "log.h5", *words)
        assert code == 1 and os.listdir() == ["rcp.json"]
        return said.strip()
    golden("reference_points", answered("reference_points", lambda call: eval(call, {**globals(), "said": said})))


@pytest.mark.parametrize("benchmark, batch, values, dataset, examples", [
    ("unet3d", 56, [336_000], "unet3d", 336_000), ("gnn", 16_384, [0.8], "rgat", 75_684_465),
    ("ssd", 256, [4], "retinanet", 4_681_204), ("cosmoflow", 64, [17], "cosmoflow", 17 * 524_288),
    ("oc20", 256, [18], "oc20", 36_000_000), ("qwen35_397b_grpo", 256, [4608], "qwen35_397b_grpo", 4608)])
def test_sizes_and_units_of_benchmarks_are_known(benchmark, batch, values, dataset, examples, tmp_path):
    import_rcp(rcp(tmp_path / "rcp.json", a=point(batch, values, benchmark)), tmp_path / "log.h5")
    log = read_log(tmp_path / "log.h5")
    [trial] = read_trials(log)
    assert trial.workload.dataset == dataset and trial.last_step == -(-examples // batch)
    assert abs(log.evaluations["examples"][-1] - examples) <= 1


@pytest.mark.parametrize("values, outlier", [
    ([40, 41, 451], "451"), ([40, 4, 41, 42], "4"), ([1280, 2000, 4040], None), ([40, 44], None)])
def test_a_value_far_from_the_others_of_its_point_is_named(values, outlier, tmp_path):
    done = invoke("import", rcp(tmp_path / "rcp.json", a=point(64, values)), tmp_path / "log.h5")
    assert done.exit_code == 0 and ("note: " in done.stderr) == bool(outlier)
    assert not outlier or f"rcp.json: a: {outlier} is far from the other values" in done.stderr
