"""The plan of workers: the optimum of a known curve and cluster is found, costs are of whole nodes, limits are kept."""
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from hvdscale.analysis.decision.draws import quantiles
from hvdscale.analysis.report_data import analyse
from hvdscale.analysis.step_time import ASSUMED, EXTRAPOLATED, INTERPOLATED, MEASURED, RING, Links, Parameters
from hvdscale.analysis.steps import Estimate
from hvdscale.analysis.steps_curve import PREDICTED, StepsCurve, StepsPoint, noise_draws
from hvdscale.analysis.trials import read_trials
from hvdscale.analysis.worker_plan import (APART, AT_ONCE, LINKS, NO_STEPS, NO_TIMES, NOT_MET, ONE_RUN, RATES,
                                           TIMED_ONCE, UNPLACED, NoPlan, Request, WorkerPlan, plans_of)
from hvdscale.report.plan.words import verdict
from hvdscale.target import Target
from hvdscale.report.plan.words import describe_no_plan
from tests.factories.advice import advise, deadlines_kept, plan_of_runs
from tests.factories.logs import Status, log, trial

S_MIN, B_CRIT = 2000.0, 600.0
TRUE = Parameters(fixed=0.02, example=0.001, hop=2e-5, volume=8e-3, node_hop=2e-3, node_volume=3e-2, overlap=1.5,
                  sharpness=1.0, pause=0.0, pausing=0.0)
PER_NODE = 4
step_seconds = RING.seconds
COUNTS = (1, 2, 4, 8, 16, 32, 64)


def steps_at(batch):
    return S_MIN * (1 + B_CRIT / batch)


def seconds_at(workers, local_batch=32, per_node=PER_NODE):
    return float(step_seconds(TRUE, workers, per_node, local_batch))


def time_at(workers, local_batch=32):
    """T by the closed form."""
    return steps_at(workers * local_batch) * seconds_at(workers, local_batch)


def run(workers, local_batch=32, seed=0, random=None, spread=0.0, **changes):
    """A trial on the known cluster, to the known curve's steps."""
    random = random or np.random.default_rng([workers, local_batch, seed])
    batch = workers * local_batch
    every = round(steps_at(batch)) // 100
    steps = round(steps_at(batch) * np.exp(spread * random.standard_normal()) / every) * every
    seconds = seconds_at(workers, local_batch) * np.exp(spread / 2 * random.standard_normal())
    return trial(1000 * workers + 10 * local_batch + seed, (0, steps - every, steps), (0.9, 0.5, 0.1),
                 (0, (steps - every) * seconds, steps * seconds), workers=workers, batch=batch, seed=seed,
                 eval_every=every, train_examples=10 ** 6, **{"local_workers": min(workers, PER_NODE), **changes})


def plans(*trials, workers=COUNTS, more=None, targets=(), **request):
    [group] = analyse(read_trials(log(*trials)), targets)
    return plans_of(group, Request(tuple(workers), **request), **(more or {}))


def under(found, **changes):
    """A plan's own draws under another request."""
    return WorkerPlan(found.curves, found.times, replace(found.request, **changes), found.workload, found.target)


def plan(*trials, **request):
    [found] = plans(*trials, **request)
    return found


@pytest.fixture(scope="module")
def measured():
    return plan(*(run(workers) for workers in COUNTS), local_batch=32, price=2.0)


def test_what_was_measured_at_a_worker_count_wins_over_the_steps_of_another_setting():
    few, many = run(2, 64), run(4, 32, peak_lr=0.4, seed=1)
    many.step, many.seconds = 2 * many.step, 2 * many.seconds
    by_workers = {option.workers: option for option in plan(few, many, workers=(2, 4), global_batch=128).options}
    assert by_workers[4].seconds.value == pytest.approx(2 * time_at(4), rel=0.02)
    assert by_workers[2].steps.value == pytest.approx(by_workers[4].steps.value / 2, rel=0.02)


def test_fastest_cheapest_and_knee_of_a_series_are_closed_forms(measured):
    cost = {workers: workers * time_at(workers) * 2.0 / 3600 for workers in COUNTS}
    assert measured.fastest.workers == min(COUNTS, key=time_at) == 32
    assert measured.cheapest.workers == min(COUNTS, key=cost.get)
    assert measured.knee.workers == min(COUNTS, key=lambda workers: cost[workers] * time_at(workers))
    for option in measured.options:
        assert option.mark == MEASURED and option.extrapolated_share == 0
        assert option.seconds.value == pytest.approx(time_at(option.workers), rel=0.01)
        assert option.cost.value == pytest.approx(cost[option.workers], rel=0.01)
        assert option.statistical_efficiency.value * option.system_efficiency.value == pytest.approx(
            measured.options[0].seconds.value / option.seconds.value / option.workers, rel=1e-12)
    knees = [under(measured, knee=knee).knee.workers for knee in (0.01, 0.5, 1, 2, 5, 100)]
    assert knees == sorted(knees) and (knees[0], knees[-1]) == (measured.cheapest.workers, measured.fastest.workers)


def test_the_front_has_every_option_that_no_other_beats(measured):
    options = [(option.seconds.value, option.cost.value) for option in measured.options]
    expected = [option.workers for option, own in zip(measured.options, options)
                if not any(other[0] <= own[0] and other[1] <= own[1] and other != own for other in options)]
    assert sorted(option.workers for option in measured.front) == expected
    assert [measured.front[0], measured.front[-1]] == [measured.cheapest, measured.fastest]


def test_worker_counts_that_were_not_run_are_found_as_if_they_had_been():
    trials = [run(workers, local, seed, spread=0.02) for workers in (1, 2, 4, 8, 64) for local in (16, 32)
              for seed in range(2)]
    found = plan(*trials, local_batch=32)
    by_workers = {option.workers: option for option in found.options}
    assert {by_workers[16].step_time.mark, by_workers[32].step_time.mark} == {INTERPOLATED}
    for workers in (16, 32):
        option = by_workers[workers]
        assert option.seconds.low < time_at(workers) < option.seconds.high
        assert option.seconds.value == pytest.approx(time_at(workers), rel=0.15)
    assert found.fastest.workers in (16, 32, 64)


def test_intervals_beyond_what_was_run_hold_the_truth_and_their_source():
    trials = [run(workers, local, seed, spread=0.02) for workers in (1, 2, 4, 8, 16) for local in (16, 32)
              for seed in range(2)]
    found = plan(*trials, local_batch=32, workers=(4, 64, 1024))
    for option in found.options:
        assert option.seconds.low < time_at(option.workers) < option.seconds.high
    widths = [option.seconds.high / option.seconds.low for option in found.options]
    assert widths == sorted(widths) and np.isfinite(widths).all()
    near, far = found.options[0], found.options[-1]
    assert (near.mark, far.mark, far.steps.mark) == (MEASURED, EXTRAPOLATED, EXTRAPOLATED)
    assert near.extrapolated_share == 0 and far.extrapolated_share > 0.9
    assert far.seconds.high / far.seconds.low > 3 * near.seconds.high / near.seconds.low


def noisy(workers, seed, local_batch=32):
    """Perfect scaling but for the spread between seeds, a step of half a second."""
    random = np.random.default_rng([workers, seed])
    batch = workers * local_batch
    steps = round(1e6 / batch * np.exp(0.1 * random.standard_normal()))
    return trial(100 * workers + seed, (0, steps), (0.9, 0.1), (0, 0.5 * steps), workers=workers, batch=batch,
                 seed=seed, eval_every=1, local_workers=min(workers, 8), train_examples=10 ** 6)


def test_steps_that_may_fall_on_or_not_leave_the_fastest_open():
    found = plan(*(noisy(workers, seed) for workers in (1, 2, 4, 8) for seed in range(2)), local_batch=32,
                 workers=(1, 8, 16, 512), per_node=1024)
    few, many = found.decision.fastest_workers
    assert few >= 8 and many == 512
    [low], [perfect] = ({round(option.steps.interval(0.95)[at] * option.global_batch / 1e6, 1)
                         for option in found.options[-1:]} for at in (1, 0))
    assert perfect < 1.7 and low > 5


@pytest.mark.parametrize("point, missed", [
    (StepsPoint(64, Estimate(1000.0, 700.0, 1200.0, 3)), 0),
    (StepsPoint(64, Estimate(1000.0, 700.0, np.inf, 4), seeds=4, met=3), 0.25),
    (StepsPoint(64, Estimate(1000.0, 700.0, 1200.0, 9), seeds=3, met=1, searched=True), 2 / 3)])
def test_the_draws_of_a_batch_have_its_interval_and_are_inf_for_the_share_of_seeds_that_missed(point, missed):
    draws = StepsCurve([point]).at(64).draws
    assert np.isinf(draws).mean() == pytest.approx(missed, abs=0.02)
    if point.searched:
        assert np.median(draws[np.isfinite(draws)]) == pytest.approx(1000, rel=0.01)
    elif not missed:
        assert quantiles(draws, 0.95) == pytest.approx((700, 1200), rel=0.02)


def test_steps_of_a_target_met_at_once_are_0_in_every_draw():
    assert not StepsCurve([StepsPoint(64, Estimate(0.0, 0.0, 0.0, 2))]).at(64).draws.any()


def test_batches_beyond_a_missed_one_are_not_planned_but_gaps_bridged():
    unmet = Estimate(np.inf, 500.0, np.inf, 3, 500.0)
    points = [StepsPoint(64, Estimate(1000.0, 900.0, 1100.0, 3)), StepsPoint(128, unmet),
              StepsPoint(256, Estimate(400.0, 380.0, 420.0, 3)), StepsPoint(1024, unmet)]
    found = StepsCurve(points)
    assert [found.at(batch).value for batch in (128, 300, 1024, 4096)] == [np.inf] * 4
    assert np.isfinite([found.at(batch).value for batch in (32, 64, 100, 200, 256)]).all()


PRICED = {"per_node": 8, "price": 32.0}


@pytest.mark.parametrize("workers, nodes, more", [(1, 1, PRICED), (8, 1, PRICED), (9, 2, PRICED), (64, 8, PRICED),
                                                  (64, 64, {})])
def test_nodes_are_paid_whole_and_without_nodes_workers_singly_in_hours(workers, nodes, more):
    [option] = plan(run(1), run(8), workers=[workers], local_batch=32, **more).options
    price = nodes / 3600 * more.get("price", 1.0)
    assert option.nodes == nodes and option.cost.value == pytest.approx(price * option.seconds.value)
    assert option.cost.high == pytest.approx(price * option.seconds.high, nan_ok=True)


def test_deadline_and_budget_hold_with_the_chance_of_the_draws(measured):
    deadline = time_at(16) * 1.05
    within = under(measured, deadline=deadline)
    assert {option.workers for option in within.within()} == {w for w in COUNTS if time_at(w) <= deadline}
    for option in within.options:
        assert within.chance_within(option) == np.mean(option.seconds_draws <= deadline)
    budget = 4 * time_at(4) * 2.0 / 3600 * 1.05
    both = under(measured, deadline=deadline, budget=budget)
    assert not both.within()
    assert {option.workers for option in under(measured, budget=budget).within()} >= {1, 2, 4}


def test_a_deadline_said_to_be_kept_is_kept_by_a_run_not_by_the_mean_alone():
    run_keeps, mean_keeps = deadlines_kept(3, 0.15, 6)
    assert run_keeps >= 0.95 <= mean_keeps
    repeated = plan_of_runs(3, 0.15, np.random.default_rng(1))
    mean = repeated.options[0].seconds.value
    assert under(repeated, deadline=1.05 * mean).chance_within(repeated.options[0]) < 0.8


def test_without_a_batch_each_worker_count_has_the_one_with_the_least_time():
    trials = [run(workers, local) for workers in (1, 4, 16) for local in (4, 8, 16, 32, 64)]
    found = plan(*trials, workers=(1, 4, 16))
    for option in found.options:
        best = min((4, 8, 16, 32, 64), key=lambda local: time_at(option.workers, local))
        assert option.local_batch == best and option.mark == MEASURED


def test_a_larger_batch_is_chosen_only_if_it_likely_takes_fewer_steps():
    once = [run(1, 64, seed) for seed in range(2)]
    found = plan(*once, workers=(1,))                       # nothing tells of smaller batches but priors
    assert [(option.global_batch, option.mark) for option in found.options] == [(64, MEASURED)]
    assert found.fastest is found.cheapest is found.knee
    weak = [run(workers, seed=seed) for workers in (1, 2, 4, 8) for seed in range(2)]
    assert plan(*weak, workers=(16,), per_node=16).options[0].global_batch == 512


def test_a_fixed_batch_is_shared_out_over_the_workers():
    found = plan(*(run(workers, 64 // workers) for workers in (1, 2, 4)), workers=(1, 2, 4, 64, 128), global_batch=64)
    assert {option.global_batch for option in found.options} == {64}
    assert [option.local_batch for option in found.options] == [64, 32, 16, 1]
    assert found.left_out == ((128, "batch 64 has fewer examples than workers"),)
    assert len({option.steps.value for option in found.options}) == 1


def test_memory_bounds_the_local_batch_and_accumulation_lifts_the_bound():
    trials = [run(workers, 32) for workers in (1, 2, 4, 8, 16)]
    assert all(option.local_batch <= 32 and option.passes == 1 for option in plan(*trials).options)
    tight = plan(*trials, workers=(1, 16), max_local_batch=8)
    assert [option.local_batch for option in tight.options] == [8, 8]
    [few] = plan(*trials, workers=(1,), global_batch=128, accumulate=True).options
    assert (few.local_batch, few.passes) == (32, 4)
    one_pass = TRUE.fixed + 32 * TRUE.example
    assert few.step_time.value == pytest.approx(4 * one_pass, rel=0.05)
    refused = plan(*trials, workers=(1,), global_batch=128)
    assert not refused.options and "--accumulate" in refused.left_out[0][1]


def test_a_batch_is_no_larger_than_the_training_set():
    found = plan(run(1), run(4), workers=(4, 2 * 10 ** 6))
    assert [option.workers for option in found.options] == [4]
    assert found.left_out == ((2 * 10 ** 6, "more workers than the 1,000,000 training examples allow"),)
    found = plan(run(1), run(4), workers=(4, 10 ** 5), local_batch=32)
    assert found.left_out == ((10 ** 5, "batch 3,200,000 is larger than the 1,000,000 training examples"),)


def test_links_that_were_not_timed_are_assumed_to_be_like_others_unless_they_are_given():
    trials, links = [run(workers) for workers in (1, 2, 4)], Links(1e9, TRUE.node_hop, TRUE.node_volume * 1e9 / 4)
    found, given = (plan(*trials, local_batch=32, more={"links": one}) for one in (None, links))
    assert [option.step_time.mark == ASSUMED for option in found.options] == [False] * 3 + [True] * 4
    assert LINKS in found.assumed and LINKS not in given.assumed + plan(*trials, workers=(1, 2), local_batch=32).assumed
    assert given.times.model.given == pytest.approx({"node_hop": TRUE.node_hop, "node_volume": TRUE.node_volume})
    for option, told in zip(found.options[3:], given.options[3:]):
        assert option.mark == ASSUMED and option.seconds.low < time_at(option.workers) < option.seconds.high
        low, high = quantiles(told.step_time.draws, 0.95)
        assert told.step_time.mark == EXTRAPOLATED and low < seconds_at(told.workers) < high


def test_a_measured_time_is_the_reports_whatever_other_trials_took():
    slow = trial(9, (0, 300, 600, 900), (0.9, 0.8, 0.7, 0.1), (0, 9, 18, 27.0), seed=9, peak_lr=0.5)
    best = [trial(seed, (0, 100, 200), (0.9, 0.5, 0.1), (0, 1.1 + 0.1 * seed, 2 + 0.2 * seed), seed=seed)
            for seed in (1, 2)]
    [group] = analyse(read_trials(log(slow, *best)))
    [section] = group.sections
    [found] = plans_of(group, Request((1,)))
    [cell], [option] = section.cells, found.options
    assert option.step_time.value == pytest.approx(cell.step_seconds.value) and option.step_time.value < 0.015
    assert (option.seconds.value, option.seconds.low, option.seconds.high) == pytest.approx(
        (cell.seconds.value, cell.seconds.low, cell.seconds.high))
    assert option.trials == tuple(run.trial.key for run in cell.runs)


def test_a_batch_that_a_seed_did_not_meet_takes_as_many_runs_more():
    met = [run(workers, seed=seed) for workers in (1, 2) for seed in range(3)]
    all_met = plan(*met, workers=(1, 2), local_batch=32)
    met[-1].error[-1] = 0.9
    found = plan(*met, workers=(1, 2), local_batch=32)
    assert found.options[-1].steps.point.unmet == pytest.approx(1 / 3)
    more = [float(np.exp(np.diff(one.decision.scores(np.inf).mean(0))[0])) for one in (found, all_met)]
    assert more[0] / more[1] == pytest.approx(1.5, rel=0.05)


def test_what_chances_assume_is_named():
    pairs = [run(workers, 64 // workers, seed) for workers in (1, 2) for seed in range(2)]
    assert plan(*pairs, workers=(1, 2, 4), global_batch=64, per_node=4).assumed == ()
    assert plan(run(1), run(2), workers=(1, 2), local_batch=32).assumed == (ONE_RUN, TIMED_ONCE)
    assert PREDICTED in plan(probe(1), probe(4), workers=(1, 4), local_batch=32).assumed
    assert RATES in plan(run(1), run(2), workers=(1, 2, 4), local_batch=32).assumed
    local = run(2, target=None, problem={"local_steps": {"replicas": 2, "sync_every": 16}})
    assert APART in plan(local, workers=(1, 2), global_batch=64).assumed


def test_workers_of_logs_that_do_not_place_them_fill_the_nodes_of_the_plan():
    pairs = [run(workers, 64 // workers, seed, local_workers=0) for workers in (1, 2) for seed in range(2)]
    found = plan(*pairs, workers=(1, 2, 4), global_batch=64, per_node=1)
    assert [option.step_time.mark for option in found.options][:2] == [MEASURED] * 2 and UNPLACED in found.assumed


def test_the_fastest_of_what_was_measured_well_is_sure(measured):
    decision, fastest = measured.decision, measured.fastest
    assert decision.chance(fastest.at, 0.2) > 0.9 and decision.loss(fastest.at) < 0.1
    chances = [decision.chance(option.at, 0.2) for option in measured.options]
    assert max(chances) == chances[COUNTS.index(fastest.workers)] and chances[0] < 0.05
    few, many = decision.fastest_workers
    assert few <= min(COUNTS, key=time_at) <= many
    assert measured.surest == 0.95 and under(measured, confidence=0.9999).surest == 1 - 3 / 400     # of 400 draws


def probe(workers, noise=B_CRIT, steps=50, batch=None, **changes):
    """A run for throughput alone, its gradient noise measured in every step; ``noise`` None: not at all."""
    batch = batch or 32 * workers
    sqnorms = [(1 + noise / 8, 1 + noise / batch, 8.0)] * steps if noise else None
    return trial(workers, (), (), (), workers=workers, batch=batch, target=None, eval_every=0,
                 step_seconds=np.full(steps, seconds_at(workers, batch // workers)), sqnorms=sqnorms,
                 local_workers=min(workers, PER_NODE), train_examples=10 ** 6, **changes)


def test_a_probe_with_a_noise_scale_predicts_relative_times():
    found = plan(*(probe(workers) for workers in (1, 4, 16, 64)), workers=(1, 4, 16, 64), local_batch=32)
    assert found.relative and found.noise.value == pytest.approx(B_CRIT)
    assert {option.steps.mark for option in found.options} == {PREDICTED}
    assert found.options[0].seconds.value == 1
    for option in found.options:
        truth = time_at(option.workers) / time_at(1)
        assert option.seconds.value == pytest.approx(truth, rel=0.05)
        assert option.seconds.low <= truth * 1.001 and option.seconds.high >= truth / 1.001


def test_steps_known_at_one_batch_make_the_prediction_absolute():
    known = StepsPoint(32, Estimate(*[steps_at(32)] * 3, 1))
    found = plan(*(probe(workers) for workers in (1, 4)), workers=(1, 4), local_batch=32, more={"given": known})
    assert not found.relative
    assert [option.seconds.value for option in found.options] == pytest.approx([time_at(1), time_at(4)], rel=0.05)


def test_the_noise_scale_stands_for_b_crit_only_where_there_is_no_fit():
    def fitted(section):
        return (StepsPoint(32, Estimate(1000.0, 900.0, 1100.0, 3)),), np.tile([1e5, 100.0, 1.0], (30, 1))
    target = Target.parse("val/error<0.2")
    [group] = analyse(read_trials(log(run(1), run(4), probe(2))), [target])
    request = Request((1, 16), local_batch=32)
    [from_fit] = plans_of(group, request, steps=fitted)
    [from_noise] = plans_of(group, request, noise_scale=600.0)
    assert from_noise.noise.value == 600 and not from_noise.relative
    assert (from_fit.options[-1].steps.mark, from_noise.options[-1].steps.mark) == (EXTRAPOLATED, PREDICTED)
    assert from_fit.curve.critical.value == 100 and from_fit.noise is None


def test_one_batch_compares_times_without_any_steps():
    found = plan(*(probe(workers, None, batch=64) for workers in (1, 2, 4)), workers=(1, 2, 4), global_batch=64)
    assert found.relative and [option.seconds.value for option in found.options] == pytest.approx(
        [seconds_at(workers, 64 // workers) / seconds_at(1, 64) for workers in (1, 2, 4)])


def test_the_noise_scale_is_taken_for_b_crit_within_a_factor_4():
    assert quantiles(noise_draws(600.0, 600.0, 600.0, draws=20000), 0.95) == pytest.approx((150, 2400), rel=0.1)
    low, high = quantiles(noise_draws(600.0, 100.0, np.inf, draws=20000), 0.95)
    assert low < 100 and high > 2400


def test_what_cannot_be_planned_says_why():
    assert plan(probe(1, None), probe(2, None)).why == NO_STEPS
    assert plan(trial(1, seconds=(np.nan,) * 3)).why == NO_TIMES
    assert plan(trial(1, error=(0.1, 0.1, 0.1)), trial(2, batch=64)).why == AT_ONCE
    unmet = plan(trial(1, error=(0.9, 0.5, 0.4)), targets=[Target.parse("val/error<0.1")])
    assert isinstance(unmet, NoPlan) and (unmet.why, unmet.best) == (NOT_MET, 0.4)
    seldom = plan(*[trial(seed, error=(0.9, 0.5, error), seed=seed) for seed, error in ((1, 0.1), (2, 0.3), (3, 0.3))])
    assert "at batch 32, by 1 of 3 seeds" in describe_no_plan(seldom)


def test_each_target_has_its_plan_and_the_times_are_shared():
    trials = [trial(w, (0, 100, 200), (0.9, 0.15, 0.05), workers=w, batch=32 * w, target=None) for w in (1, 2)]
    targets = [Target.parse("val/error<0.2"), Target.parse("val/error<0.1")]
    loose, strict = plans(*trials, targets=targets, workers=(1, 2))
    assert loose.options[0].seconds.value < strict.options[0].seconds.value
    assert loose.times.model is strict.times.model
    loose.times.cells = strict.times.cells
    again = WorkerPlan(strict.curves, loose.times, loose.request, SimpleNamespace(train_examples=0))
    assert [option.seconds for option in again.options] == [option.seconds for option in strict.options]


# made jobs whose best worker count and batch are known; tools/coverage has more

@pytest.mark.parametrize("name, most", [("1-8, 3 seeds", 1.4), ("1-2, 3 seeds", 1.4), ("one node of 8 timed", 1.25)])
def test_what_is_called_the_fastest_is_near_the_best(name, most):
    said, rules = advise(name, 5, seed=1)
    assert np.exp(np.mean([one["loss"] for one in said])) <= most
    assert np.mean([one["loss"] for one in said]) < np.mean([one["best measured"] for one in rules])
    assert np.mean([one["held"] for one in said]) > 0.85 and all(one["ends"] for one in said)


def test_runs_that_diverged_or_did_not_meet_are_said_and_count(worded):
    made = [run(workers, seed=seed) for workers in COUNTS[:4] for seed in range(2)]
    made[1].row["status"], made[6].error[-1], made[7].error[-1] = Status.INFEASIBLE, 0.5, 0.5
    [found] = plans(*made, workers=COUNTS[:4])
    said = " ".join(verdict(found))
    assert [point.unmet for point in found.curve.points] == [0.5, 0, 0, 1]
    worded(said, about="Of the")
    worded(said, about="Fastest of")
