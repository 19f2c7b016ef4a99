"""What is said of problems that differ, and what follows from the batch."""
import json
from types import SimpleNamespace

import pytest

from hvdscale.report.views.cells import problems_of_points
from tests.factories.plans import settled


def points(*workers, gpu="", **typed):
    """The points of a scaling study at these worker counts, each with its plan's problem."""
    plans = [settled(count, **typed) for count in workers]
    return [SimpleNamespace(workers=plan.workers, cell=SimpleNamespace(
        global_batch=plan.global_batch, runs=[SimpleNamespace(trial=SimpleNamespace(gpu=gpu))],
        setting=json.dumps({"problem": plan.as_record({})["problem"], "eval_every": 1}))) for plan in plans]


@pytest.mark.parametrize("workers, typed", [
    ((1, 2, 4), {"optimizer": "adam", "lr_rule": "adam_sqrt"}),
    ((1, 2, 16), {"optimizer": "adam", "lr_rule": "adam_sqrt:beta2"}),
    ((1, 2, 4), {"optimizer": "adam", "beta1_half_life": 90, "beta2_half_life": 3e3}),
    ((1, 3), {"momentum_half_life": 90}), ((1, 4), {"optimizer": "adamw", "decay_timescale": 9, "lr_rule": "sqrt"})])
def test_what_is_scaled_or_has_one_time_scale_in_examples_follows_from_the_batch(workers, typed):
    assert problems_of_points(points(*workers, **typed)) == []


def test_betas_that_differ_beside_another_rule_and_gpus_are_said():
    said = problems_of_points([*points(1, optimizer="adam"), *points(2, optimizer="adam", beta2=0.99)])
    said += problems_of_points([*points(1, gpu="A100"), *points(2, gpu="H100")])
    assert said == ["beta2 is 0.999 at 1 worker, 0.99 at 2", "device is A100 at 1 worker, H100 at 2"]
