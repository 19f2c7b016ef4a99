"""Step times at worker counts that were not measured: the model, what logs tell of it, and what it says of the rest."""
from dataclasses import replace

import numpy as np
import pytest

from hvdscale.analysis.drawn import hull
from hvdscale.analysis.intervals import CONFIDENCE
from hvdscale.analysis.step_laws import FULL_RING, LAWS, LINEAR, PARTIAL_RING, RING, TREE, Parameters
from hvdscale.analysis.step_time import (ASSUMED, EXTRAPOLATED, FAR, INTERPOLATED, MEASURED, NEAR, Links, StepTimes,
                                         Timing, fit_steps, timings_of)
from hvdscale.analysis.trials import read_trials
from tests.conftest import but_slow
from tests.factories import timings as made_timings
from tests.factories.logs import log, trial
from tests.factories.timings import LOCAL, SHAPES, STRONG, WEAK, coverage

TRUE = Parameters(fixed=0.02, example=0.001, hop=2e-5, volume=8e-3, node_hop=1e-4, node_volume=3e-2, overlap=2.0,
                  sharpness=1.0, pause=3.0, pausing=0.02)
step_seconds = PARTIAL_RING.seconds


def timings(cells, true=TRUE, deviation=0.02, runs=3, random=None):
    """Timings of (workers, workers a node, examples a worker), with noise."""
    random = random or np.random.default_rng(3)
    return tuple(Timing(workers, per_node, workers * examples, 1,
                        float(step_seconds(true, workers, per_node, examples))
                        * np.exp(deviation * random.standard_normal(runs)), False, ())
                 for workers, per_node, examples in cells)


def logged(workers=1, batch=32, seconds=0.05, id=1, steps=100, **changes):
    """A trial whose steps all took ``seconds``."""
    return trial(id, (0, steps // 2, steps), seconds=seconds * np.array([0, steps // 2, steps]), workers=workers,
                 batch=batch, **changes)


def times_of(*trials, **more):
    return StepTimes.of(timings_of(read_trials(log(*trials))), draws=50, **more)


def ends(draws, confidence=0.95):
    return np.quantile(draws, ((1 - confidence) / 2, (1 + confidence) / 2))


def test_one_worker_waits_for_nobody():
    assert step_seconds(TRUE, 1, 8, 32) == pytest.approx(0.02 + 32 * 0.001)


def test_a_ring_takes_2w_minus_2_hops_and_moves_nearly_twice_the_bytes():
    alone = Parameters(0.0, 1e-9, 2e-5, 8e-3, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0)
    for workers in (2, 5, 8):
        assert step_seconds(alone, workers, 8, 1) == pytest.approx(
            2 * (workers - 1) * 2e-5 + 2 * (workers - 1) / workers * 8e-3, rel=1e-5)


def test_nodes_form_a_ring_of_their_own():
    inside, both = step_seconds(TRUE, 8, 8, 32), step_seconds(TRUE, 24, 8, 32)
    apart = Parameters(**{**vars(TRUE), "hop": TRUE.node_hop, "volume": TRUE.node_volume, "node_hop": TRUE.hop,
                          "node_volume": TRUE.volume})
    assert both > inside
    assert step_seconds(apart, 24, 3, 32) == pytest.approx(both)        # 3 and 8 change places


def test_the_overlap_goes_from_one_after_the_other_to_the_longer_of_the_two():
    def seconds(overlap):
        return step_seconds(Parameters(**{**vars(TRUE), "overlap": overlap}), 64, 8, 32)
    one_pass = step_seconds(TRUE, 1, 8, 32)
    allreduce = seconds(1.0) - one_pass
    assert max(one_pass, allreduce) < seconds(10.0) < seconds(2.0) < seconds(1.0)
    assert seconds(200.0) == pytest.approx(max(one_pass, allreduce), rel=1e-2)


def test_only_the_last_pass_of_a_step_overlaps_the_allreduce():
    one_pass = step_seconds(TRUE, 1, 8, 32)
    assert step_seconds(TRUE, 16, 8, 32, 4) == pytest.approx(3 * one_pass + step_seconds(TRUE, 16, 8, 32))


def test_a_tree_takes_a_logarithm_of_hops_and_moves_as_many_bytes_as_a_ring():
    alone = Parameters(0.0, 1e-9, 2e-5, 8e-3, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0)
    for workers in (2, 8, 64):
        assert TREE.seconds(alone, workers, 64, 1) == pytest.approx(
            2 * np.log2(workers) * 2e-5 + 2 * (workers - 1) / workers * 8e-3, rel=1e-5)


def test_linear_latency_is_a_hop_for_each_other_worker():
    assert [float(LINEAR.seconds(TRUE, workers, 8, 32) - 0.052) for workers in (1, 2, 8)] == pytest.approx(
        [0, 2e-5, 7 * 2e-5])


def test_pass_and_allreduce_add_up_unless_they_overlap():
    one_pass, both = step_seconds(TRUE, 1, 8, 32), RING.seconds(TRUE, 64, 8, 32)
    assert FULL_RING.seconds(TRUE, 64, 8, 32) == pytest.approx(max(one_pass, both - one_pass))
    assert both > step_seconds(TRUE, 64, 8, 32) > FULL_RING.seconds(TRUE, 64, 8, 32)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_the_true_law_is_never_refuted_and_precise_times_refute_others(law):
    alone = Parameters(**{**vars(TRUE), "hop": 5e-3, "volume": 0.02})
    cells = [(workers, 64, examples) for workers in (1, 2, 4, 8, 16, 32, 64) for examples in (4, 16, 64)]
    random = np.random.default_rng(1)
    timed = tuple(Timing(workers, per_node, workers * examples, 1,
                         law.seconds(alone, workers, per_node, examples) * np.exp(0.005 * random.standard_normal(3)),
                         False, ()) for workers, per_node, examples in cells)
    model = fit_steps(timed, draws=20)
    assert law in [found for found, _ in model.fitting]
    assert any(fit.refuted for fit in model.fits) and {fit.law for fit in model.fits} == set(LAWS)


def test_known_parameters_come_back_from_times_that_tell_them():
    cells = [(workers, 8, examples) for workers in (1, 2, 4, 8, 16, 64) for examples in (8, 16, 32, 64)]
    model = fit_steps(timings(cells, deviation=1e-4), draws=50)
    for name, within in (("fixed", 0.05), ("example", 0.05), ("node_volume", 0.1), ("overlap", 0.1)):
        middle, low, high = model.interval(name, 0.95)
        assert middle == pytest.approx(getattr(TRUE, name), rel=within) and high < 2 * low
    assert model.misses < 0.005


def test_one_local_batch_leaves_the_time_at_others_open():
    model = fit_steps(timings([(1, 8, 32), (2, 8, 32), (4, 8, 32), (8, 8, 32)]), draws=100)
    at_32 = step_seconds(TRUE, 1, 8, 32)
    low, high = ends(model.seconds(1, 8, 8))
    assert low < at_32 / 2.5 and high > 0.9 * at_32
    low, high = ends(model.seconds(1, 8, 32))
    assert high < 1.15 * low
    for name in ("fixed", "example", "hop", "volume"):
        _, low, high = model.interval(name, 0.95)
        assert high > 10 * low


def random_cluster(random):
    """A cluster as it may be: steps of 2 ms to 2 s, an allreduce of 1 % to three times a pass."""
    one_pass, fixed = np.exp(random.uniform(np.log(2e-3), np.log(2))), 1 / (1 + np.exp(-random.normal(0, 2)))
    volume, hop = one_pass * np.exp(random.uniform(np.log(0.01), np.log(3))), np.exp(random.uniform(-13.1, -8.5))
    return Parameters(one_pass * fixed, one_pass * (1 - fixed) / 32, hop / 2, volume * random.uniform(0.05, 0.25), hop,
                      volume, 1 + 9 * random.beta(1, 3), 1.0, 0.0, 0.0)


DESIGNS = {     # cells measured -> cells asked for
    "weak, to 4 nodes": ([(w, 8, 32) for w in (1, 2, 4, 8, 16, 32)], [(64, 8, 32), (256, 8, 32), (1024, 8, 32)]),
    "weak, 1 a node": ([(w, 1, 32) for w in (1, 2, 4)], [(8, 1, 32), (64, 1, 32), (1024, 1, 32)]),
    "weak, one node": ([(w, 8, 32) for w in (1, 2, 4, 8)], [(6, 8, 32), (8, 8, 8), (8, 8, 64)]),
    "strong": ([(w, 4, 128 // w) for w in (1, 2, 4, 8, 16)], [(32, 4, 4), (64, 4, 2), (16, 4, 32)]),
    "two local batches": ([(w, 8, b) for w in (1, 2, 4, 8, 16, 32) for b in (8, 32)],
                          [(64, 8, 32), (1024, 8, 32), (128, 8, 4)]),
}


def covered(design, clusters, draws):
    """Share of the step times asked for that lie in their 95 % interval, as a plan states it but for open ends."""
    cells, asked = DESIGNS[design]
    random, hits = np.random.default_rng(5), []
    for number in range(clusters):
        true = random_cluster(random)
        model = fit_steps(timings(cells, true, 0.03, random=random), draws=draws, seed=number)
        for cell in asked:
            low, high = hull(model.seconds(*cell), CONFIDENCE, len(model.fitting))
            hits.append(low <= step_seconds(true, *cell) <= high)
    return np.mean(hits)


def test_intervals_of_extrapolated_step_times_cover_what_they_claim():
    assert covered("weak, to 4 nodes", 12, 100) >= 0.86


@pytest.mark.slow
@pytest.mark.parametrize("design", DESIGNS)
def test_intervals_cover_in_every_design(design):
    assert covered(design, 150, 200) >= 0.9


@pytest.mark.parametrize("law", but_slow(made_timings.LAWS, ("tree", "linear", "overlap")))
def test_intervals_cover_whatever_law_the_step_time_follows(law):
    found = coverage(law, WEAK, 0.01, 10, asked=(64, 256))
    assert min(share for share, _ in found.values()) >= 0.9
    assert found[64][1] < 5 and found[256][1] < 20


def test_a_tree_known_from_two_batch_sizes_is_covered_at_16_times():
    [(share, width)] = coverage("tree", "two batches", 0.01, 10, asked=(256,)).values()
    assert share >= 0.9 and width < 20


@pytest.mark.parametrize("design", but_slow((LOCAL, STRONG), (STRONG,)))
def test_a_pass_that_is_flat_until_the_device_is_full_is_covered_beyond_the_batches_timed(design):
    found = coverage("ring", design, 0.01, 4, asked=(32, 64), shape=np.inf)
    assert min(share for share, _ in found.values()) == 1 and found[32][1] < 4


def test_beyond_the_largest_pass_that_was_timed_a_step_grows_at_most_in_proportion():
    timed = tuple(Timing(1, 1, examples, 1, 0.05 * np.exp([-0.01, 0.01]), False, ()) for examples in (8, 16, 32))
    low, high = ends(fit_steps(timed).seconds(1, 1, 320))
    assert 0.045 < low < 0.06 and 0.3 < high < 0.55


@pytest.mark.parametrize("pauses", but_slow((0.01, 0.05), (0.01,)))
def test_workers_that_pause_are_covered_at_4_and_16_times(pauses):
    found = coverage("ring", WEAK, 0.01, 5, asked=(64, 256), pauses=pauses)
    assert min(share for share, _ in found.values()) == 1 and found[64][1] < 3


def test_a_step_waits_for_pauses_until_some_worker_has_one_in_every_step():
    pausing = replace(RING, pauses=True)
    alone = Parameters(**{**vars(TRUE), "hop": 0.0, "volume": 0.0, "node_hop": 0.0, "node_volume": 0.0})
    for workers in (1, 8, 64, 4096):
        assert pausing.seconds(alone, workers, 8, 32) == pytest.approx(0.052 * (1 + 3 * (1 - 0.98 ** workers)))


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES.values(), ids=str)
@pytest.mark.parametrize("design", (LOCAL, STRONG))
def test_intervals_cover_every_shape_of_a_pass(design, shape):
    assert min(share for share, _ in coverage("ring", design, 0.01, 60, shape=shape).values()) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("given", (False, True))
@pytest.mark.parametrize("noise", (0.01, 0.1))
@pytest.mark.parametrize("design", made_timings.DESIGNS)
@pytest.mark.parametrize("law", made_timings.LAWS)
def test_intervals_cover_every_law_in_every_design(law, design, noise, given):
    assert min(share for share, _ in coverage(law, design, noise, 100, given=given).values()) >= 0.9


def reach_of(deviation, runs=3, **more):
    cells = [(workers, 8, examples) for workers in (1, 2, 4, 8, 16) for examples in (8, 32)]
    return fit_steps(timings(cells, deviation=deviation, runs=runs), draws=20, **more).reach


def test_the_laws_reach_4_times_the_workers_or_16_if_precise():
    assert (reach_of(0.01), reach_of(0.1), reach_of(0.01, runs=1)) == (FAR, NEAR, NEAR) == (16, 4, 4)
    assert reach_of(0.1, between=(TRUE.node_hop, TRUE.node_volume)) == FAR


def test_beyond_their_reach_step_times_are_open_by_workers_and_by_nodes():
    times = times_of(*(logged(w, 32 * w, float(step_seconds(TRUE, w, 4, 32)), w, local_workers=min(w, 4))
                       for w in (1, 2, 4, 8)))
    assert [times.at(workers, 4, 32 * workers).open for workers in (8, 16, 32, 64)] == [False, False, False, True]
    assert times.at(16, 1, 512).open and times.at(64, 4, 2048).mark == EXTRAPOLATED


def test_the_same_seed_gives_the_same_draws():
    cells = timings([(1, 8, 32), (2, 8, 32), (4, 8, 32)])
    one, same, other = (fit_steps(cells, draws=20, seed=seed).seconds(16, 8, 32) for seed in (0, 0, 1))
    assert (one == same).all() and (one != other).any()


def test_a_measured_configuration_is_as_measured_and_others_are_marked():
    times = times_of(*(logged(w, 32 * w, 0.05 + 0.001 * w, w, local_workers=min(w, 4)) for w in (1, 2, 8)))
    assert times.timings.per_node == 4
    measured = times.at(2, 4, 64)
    assert (measured.mark, measured.value) == (MEASURED, pytest.approx(0.052))
    assert [times.at(*where).mark for where in ((4, 4, 128), (16, 4, 512), (2, 4, 32), (8, 2, 256), (2, 1, 64))] == [
        INTERPOLATED, EXTRAPOLATED, EXTRAPOLATED, EXTRAPOLATED, INTERPOLATED]


def test_a_run_that_took_far_longer_is_in_no_timing():
    trials = [logged(w, 32 * w, 0.05 * (1 + 0.01 * n), 10 * w + n, seed=n) for w in (1, 2, 4) for n in range(3)]
    slow = logged(4, 128, 0.15, 99, seed=9)
    found = timings_of(read_trials(log(*trials, slow))).found
    assert [len(one.seconds) for one in found] == [3, 3, 3] and found[-1].value == pytest.approx(0.0505, rel=1e-3)


def test_layouts_of_one_worker_count_on_as_many_nodes_are_timed_apart():
    times = times_of(*(logged(4, 128, seconds, id, local_workers=fullest)
                       for id, (seconds, fullest) in enumerate(((0.06, 2), (0.09, 3)))), logged(1, 32, 0.05, 9))
    assert (times.at(4, 2, 128).value, times.at(4, 3, 128).value) == pytest.approx((0.06, 0.09))


def test_repeats_give_a_time_its_interval_and_single_runs_an_assumed_one():
    twice = times_of(*(logged(w, 32 * w, s, n) for n, (w, s) in enumerate([(1, .05), (1, .06), (2, .06), (2, .05)])))
    assert twice.timings.spread.freedom == 2
    low, high = ends(twice.at(1, 2, 32).draws)
    assert low < 0.05 and high > 0.06
    once = times_of(logged(1, 32, 0.05), logged(2, 64, 0.06, 2))
    assert not once.timings.spread.freedom
    assert np.log(once.at(1, 2, 32).draws).std() == pytest.approx(0.05, rel=0.3)


def test_links_that_no_log_has_timed_leave_a_lower_bound():
    times = times_of(*(logged(w, 32 * w, float(step_seconds(TRUE, w, 8, 32)), w) for w in (1, 2, 4, 8)))
    beyond = times.at(64, 8, 2048)
    assert beyond.mark == ASSUMED and beyond.value < step_seconds(TRUE, 64, 8, 32)
    assert times_of(logged()).at(2, 8, 64).mark == ASSUMED


def test_given_links_make_it_a_value():
    links = Links(bytes_per_second=10e9, latency_seconds=TRUE.node_hop, parameters=TRUE.node_volume * 10e9 / 4)
    cells = [logged(w, w * b, float(step_seconds(TRUE, w, 8, b)), 100 * w + b) for w in (1, 2, 4, 8) for b in (8, 32)]
    times = times_of(*cells, links=links)
    assert times.model.given and times.model.interval("node_volume", 0.95)[0] == pytest.approx(TRUE.node_volume)
    beyond = times.at(64, 8, 2048)
    assert beyond.mark == EXTRAPOLATED and beyond.value == pytest.approx(step_seconds(TRUE, 64, 8, 32), rel=0.1)


def test_given_links_stand_for_those_within_a_node_where_these_were_not_timed():
    times = times_of(logged(), links=Links(1e9, 1e-5, 1e6))
    assert times.at(4, 4, 128).mark == EXTRAPOLATED
    assert times.model.interval("volume", 0.95) == (4e-3,) * 3


def test_gradients_of_half_precision_have_half_the_bytes():
    [half] = timings_of(read_trials(log(logged(problem={"compression": "fp16", "precision": "fp32"})))).found
    machine = timings_of(read_trials(log(logged(problem={"compression": "fp16", "precision": "fp32"})))).machine
    assert Links(1e9, 1e-5, 1e6).seconds(machine) == (1e-5, 2e-3) and half.workers == 1


def test_crowded_times_are_left_out_if_others_have_two_worker_counts():
    trials = [logged(w, 32 * w, 0.05 * w, w, cores=2) for w in (1, 2, 4)]
    found = timings_of(read_trials(log(*trials)))
    assert [one.workers for one in found.found] == [1, 2] and [one.workers for one in found.crowded] == [4]
    few = timings_of(read_trials(log(trials[0], trials[2])))
    assert [(one.workers, one.crowded) for one in few.found] == [(1, False), (4, True)] and not few.crowded


def test_times_of_several_machines_are_not_mixed():
    slow = [logged(w, 32 * w, 0.5, w, problem={"precision": "fp32"}) for w in (1, 2)]
    fast = logged(4, 128, 0.01, 9, problem={"precision": "bf16"})
    found = timings_of(read_trials(log(*slow, fast)))
    assert {one.workers for one in found.found} == {1, 2} and [str(other) for other in found.others] == [
        "an unnamed device, bf16"]


def test_trials_without_a_time_or_of_several_worker_counts_are_no_timings():
    moved = logged(2, 64, id=2, worker_counts=(2, 4))
    untimed = logged(2, 64, np.nan, id=3)
    assert not timings_of(read_trials(log(moved, untimed))).found
