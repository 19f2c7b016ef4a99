"""The branches of a run: their batches, rates, lengths and settings."""
import json
from dataclasses import asdict, replace

import pytest

from hvdscale.errors import PlanError, UsageError
from hvdscale.plan.branches import (BranchRequest, Origin, branches_at, layers_of, length_of, metric_of,
                                    refuse_other_problem, rule_of, steps_at, tolerance_of)
from hvdscale.plan.plan import Problem
from hvdscale.plan.settings import Settings
from hvdscale.plan.settle import Place, settle
from tests.factories.plans import TRAIN, VAL, WORKLOAD

BASE = dict(lr=0.1, global_batch=16, base_batch=16, steps=1000, warmup_steps=100, warmup_start_factor=0.0,
            decay="linear", momentum=0.9, eval_every=100)
ASKED = BranchRequest(factors=(1, 2, 4), orders=2, evaluations=4)


def plan_of(*layers):
    return settle(Settings.build({}, *layers), WORKLOAD, TRAIN, VAL, Place())


def origin(step=500, **changes):
    plan = plan_of({**BASE, **changes})
    return Origin(Problem(**{name: getattr(plan, name) for name in Problem.__dataclass_fields__}), "id", step)


def branch_plans(asked=ASKED, at=None, **changes):
    at = at or origin(**changes)
    found = branches_at(asked, at, rule_of(asked, at.problem.optimizer), "train/error", "1%")
    return [(branch, plan_of(*layers_of(branch, [{**BASE, **changes}], asked.evaluations))) for branch in found]


def test_branches_have_their_batch_a_constant_rate_by_the_rule_and_all_the_same_examples():
    at = origin()
    rate = at.problem.schedule.lr_at(500)
    for branch, plan in branch_plans():
        assert plan.global_batch == 16 * branch.factor and plan.budget_steps == branch.steps
        assert plan.global_batch * plan.budget_steps == length_of(ASKED, 16)
        assert {plan.schedule.lr_at(step) for step in (0, 1, plan.budget_steps)} == {plan.peak_lr}
        assert plan.peak_lr == pytest.approx(rate * branch.factor) == branch.record["rate"]
        assert plan.budget_steps == ASKED.evaluations * plan.eval_every and plan.target is None


def test_the_orders_of_the_data_are_those_of_further_seeds_and_common_to_all_factors():
    seeds = {(branch.order, plan.seed) for branch, plan in branch_plans(seed=7)}
    assert seeds == {(1, 8), (2, 9)}


@pytest.mark.parametrize("optimizer, rule", [("sgd", "linear"), ("nesterov", "linear"), ("adam", "sqrt"),
                                             ("lamb", "sqrt"), ("torch.optim:RMSprop", "sqrt")])
def test_the_default_rule_is_linear_for_sgd_and_sqrt_for_others(optimizer, rule):
    assert rule_of(BranchRequest(), optimizer) == rule and rule_of(BranchRequest(rule="none"), optimizer) == "none"


def test_adams_rule_scales_the_betas_of_a_branch_too():
    asked = replace(ASKED, rule="adam_sqrt")
    changes = dict(optimizer="adam", momentum=None)
    base = {key: value for key, value in {**BASE, **changes}.items() if value is not None}
    plan = plan_of(base)
    at = Origin(Problem(**{name: getattr(plan, name) for name in Problem.__dataclass_fields__}), "id", 500)
    for branch in branches_at(asked, at, "adam_sqrt", "train/error", "1%"):
        found = plan_of(*layers_of(branch, [base], 4))
        assert found.beta1 == pytest.approx(1 - branch.factor * (1 - at.problem.beta1))
        assert found.peak_lr == pytest.approx(at.rate * branch.factor ** 0.5)


def test_betas_that_a_rule_has_scaled_are_those_of_the_run_at_the_checkpoint():
    base = dict(optimizer="adam", lr=0.1, global_batch=32, base_batch=16, steps=100, lr_rule="adam_sqrt", warmup="none")
    at = Origin(Problem(**{name: getattr(plan_of(base), name) for name in Problem.__dataclass_fields__}), "id", 50)
    for branch in branches_at(ASKED, at, "sqrt", "train/error", "1%"):
        assert plan_of(*layers_of(branch, [base], 4)).beta2 == pytest.approx(0.998)


def test_both_rates_of_muon_follow_the_rule_and_the_decay():
    base = dict(optimizer="muon", lr=0.02, adamw_lr=0.003, global_batch=16, base_batch=16, steps=100, warmup="none",
                decay="linear")
    at = Origin(Problem(**{name: getattr(plan_of(base), name) for name in Problem.__dataclass_fields__}), "id", 50)
    for branch in branches_at(ASKED, at, "sqrt", "train/error", "1%"):
        found, factor = plan_of(*layers_of(branch, [base], 4)), branch.factor ** 0.5 / 2
        assert (found.peak_lr, found.adamw_lr) == pytest.approx((0.02 * factor, 0.003 * factor))


def test_a_run_whose_batch_grows_branches_from_the_batch_that_it_has_there():
    schedule = {"batch_schedule": [[0, 16], [400, 32]]}
    base = {name: value for name, value in BASE.items() if name != "global_batch"} | schedule
    plan = plan_of(base)
    at = Origin(Problem(**{name: getattr(plan, name) for name in Problem.__dataclass_fields__}), "id", 500)
    assert at.batch == 32 and at.examples == 400 * 16 + 100 * 32
    for branch in branches_at(ASKED, at, "linear", "train/error", "1%"):
        found = plan_of(*layers_of(branch, [base], 4))
        assert found.batches.is_constant and found.global_batch == 32 * branch.factor
        assert found.peak_lr == pytest.approx(plan.schedule.lr_at(500) * branch.factor)


def test_a_cap_of_the_workloads_defaults_does_not_bind_a_branch_but_one_that_was_set_does():
    assert branch_plans()[2][1].lr_factor == 4
    assert branch_plans(max_lr_factor=3.0)[2][1].lr_factor == 3


@pytest.mark.parametrize("examples, length", [(None, 1024), (1, 256), (256, 256), (257, 512)])
def test_the_length_holds_whole_spaces_between_evaluations_of_every_batch(examples, length):
    assert length_of(replace(ASKED, examples=examples), 16) == length


def test_without_steps_there_are_branches_at_shares_of_the_budget():
    assert steps_at(BranchRequest(), 1000) == (125, 250, 500, 1000) and steps_at(BranchRequest(at=(3, 7)), 0) == (3, 7)
    with pytest.raises(PlanError, match="give --at"):
        steps_at(BranchRequest(), 0)


def test_a_rate_of_zero_is_refused_with_what_would_help(worded):
    with worded.error(PlanError):
        branch_plans(at=origin(step=0))


@pytest.mark.parametrize("asked, metrics, found", [
    (None, {"error": "min", "cross_entropy": "min"}, "train/cross_entropy"),
    (None, {"accuracy": "max", "nats": "min"}, "train/nats"), ("val/error", {"error": "min"}, "val/error")])
def test_the_metric_is_the_training_loss_unless_another_is_asked_for(asked, metrics, found):
    assert metric_of(BranchRequest(metric=asked), metrics) == found


@pytest.mark.parametrize("asked, metrics", [("error", {"error": "min"}), ("val/accuracy", {"accuracy": "max"}),
                                            (None, {"accuracy": "max"}), ("dev/error", {"error": "min"})])
def test_what_is_no_loss_is_refused(asked, metrics, worded):
    with worded.error(UsageError):
        metric_of(BranchRequest(metric=asked), metrics)


def test_language_models_have_the_published_tolerance():
    assert tolerance_of(BranchRequest(), {"cross_entropy": "min", "perplexity": "min"}, "1%") == "0.01"
    assert tolerance_of(BranchRequest(), {"error": "min"}, "1%") == "1%"
    assert tolerance_of(BranchRequest(tolerance="3%"), {"perplexity": "min"}, "1%") == "3%"


@pytest.mark.parametrize("rule, said", [
    ("cubic", "lr_rule = 'cubic' is none of"), ("tuned", "--rule tuned: branches follow a rule")])
def test_a_rule_that_is_none_is_refused(rule, said):
    with pytest.raises(UsageError, match=said):
        rule_of(BranchRequest(rule=rule), "sgd")


def test_a_branch_of_another_problem_is_refused():
    base = json.loads(json.dumps(asdict(origin().problem)))
    refuse_other_problem({**base, "global_batch": 64, "seed": 5, "peak_lr": 3.0}, base)
    with pytest.raises(PlanError, match="another problem: label_smoothing was 0.0, is now 0.1"):
        refuse_other_problem({**base, "label_smoothing": 0.1}, base)
