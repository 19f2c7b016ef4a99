"""Runs that took far longer than others of their setting, the times without them, and times that drift."""
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from hvdscale.analysis.report_data import analyse, stand_out
from hvdscale.analysis.timings import drift_of, slow_runs, timings_of
from hvdscale.analysis.trials import read_trials
from hvdscale.report.subject import Subject
from hvdscale.report.views.trials import irregular
from tests.factories import curves
from tests.factories.logs import log, trial
from tests.factories.timings import ORDERS, hours_held, slowed_held, typical_held

BACK = (0, 1, 2, 2, 1, 0, 0, 1, 2)          # there and back and there
UP = (0, 0, 0, 1, 1, 1, 2, 2, 2)            # the repeats of a setting one after another
SECONDS = np.array([0.01, 0.006, 0.004])    # an example, of each setting


@pytest.mark.parametrize("samples, slow", [
    ([[1.0, 1.02], [2.0, 2.02], [3.0, 9.0], [0.5, 0.51]], [3]), ([[1.0, 3.0]], []),
    ([[np.nan, 1.0, 1.01], [np.nan], [], [5.0], [1.0, 1.02, 0.99], [1.0, 1.01, 4.0]], [4 / np.sqrt(1.01)])])
def test_a_slow_run_is_found_beside_another_and_untimed_single_and_paired_ones_are_not(samples, slow):
    assert [one for ratios in slow_runs(samples) for one in ratios if one != 1] == pytest.approx(slow)


def test_times_that_scatter_everywhere_have_no_slow_run():
    random = np.random.default_rng(2)
    found = [ratios for _ in range(200) for ratios in slow_runs(np.exp(0.3 * random.standard_normal((6, 3))))]
    assert np.mean(np.array(found) > 1) < 0.005


def test_typical_times_are_covered_where_one_run_in_ten_takes_three_times_as_long():
    held, width, found = typical_held(8, 3, 0.03, 60)
    assert held >= 0.9 and width < 1.2 and found > 0.75
    assert typical_held(8, 3, 0.03, 60, search=False)[1] > 2


def test_steps_are_those_of_typical_seeds_and_name_the_others():
    lengths = {16: (800, 820, 790), 32: (400, 2000, 410), 64: (200, 205, 195), 128: (100, 102, 101)}
    trials = [trial(16 * batch + seed, steps=(0, last - 5, last), error=(0.9, 0.5, 0.1), batch=batch, seed=seed)
              for batch, found in lengths.items() for seed, last in enumerate(found)]
    [group] = analyse(read_trials(log(*trials)))
    cells = {cell.global_batch: cell for cell in group.sections[0].cells}
    assert list(cells[32].apart.values()) == [pytest.approx(2000 / np.sqrt(400 * 410))]
    assert [key[0] for key in cells[32].apart] == [1] and not cells[16].apart
    assert cells[32].steps.value == pytest.approx(np.sqrt(400 * 410)) and cells[32].met == 3
    assert cells[32].steps.high < 500 and cells[32].seconds.value == pytest.approx(0.01 * cells[32].steps.value)
    assert group.sections[0].batches.points[1].steps == cells[32].steps


def test_one_seed_in_ten_that_needs_five_times_the_steps_keeps_intervals_honest_and_narrow():
    found = curves.coverage(partial(curves.repeated, seeds=5, slow=0.1), 40)["steps"]
    assert found.share > 0.93 and found.ratio < 1.5


def cells(order, drift, noise=0.0, random=np.random.default_rng(3), hours=0.0, jump=0.0):
    """Runs in this order of their settings, each ``drift`` slower than the one before; ``hours``: of each repeat;
    ``jump``: of all behind the fifth."""
    found, hour = [[] for _ in SECONDS], hours * random.standard_normal(3)
    for place, at in enumerate(order):
        seconds = SECONDS[at] * np.exp(drift * place + noise * random.standard_normal() + hour[len(found[at])]
                                       + jump * (place > 4))
        found[at].append(SimpleNamespace(examples_per_second=1 / seconds, trial=SimpleNamespace(started=float(place))))
    return [SimpleNamespace(runs=runs) for runs in found]


@pytest.mark.parametrize("order", [BACK, UP])
def test_a_drift_without_noise_is_found_exactly_with_the_pace_of_the_last_run(order):
    a_run, warm = drift_of(cells(order, 0.02))
    assert a_run.runs == 9 and a_run.value == pytest.approx(np.exp(0.02))
    assert [one.value for one in warm] == pytest.approx(SECONDS * np.exp(0.02 * 8))


def test_too_few_repeats_too_small_a_drift_and_unknown_starts_say_nothing():
    assert drift_of(cells((0, 1, 2, 2, 1, 0), 0.02)) is None            # two degrees of freedom
    assert drift_of(cells(BACK, 0.001)) is None
    assert drift_of(cells(BACK, 0.0, jump=0.2)) is None
    unknown = cells(BACK, 0.02)
    for run in (run for cell in unknown for run in cell.runs):
        run.trial.started = np.nan
    assert drift_of(unknown) is None and drift_of([]) is None


def test_intervals_hold_the_drift_and_the_last_pace_and_none_is_named_without_one():
    random = np.random.default_rng(11)
    held, warm, named, hours = [], [], [], []
    for _ in range(400):
        found = drift_of(cells(BACK, 0.02, 0.01, random))
        if found is not None:
            a_run, last = found
            held.append(a_run.low <= np.exp(0.02) <= a_run.high)
            warm += [one.low <= true <= one.high for one, true in zip(last, SECONDS * np.exp(0.02 * 8))]
        named.append(drift_of(cells(BACK, 0.0, 0.01, random)) is not None)
        hours += [drift_of(cells(order, 0.0, 0.01, random, 0.1)) is not None for order in (BACK, (0, 1, 2) * 3)]
    assert len(held) > 300 and np.mean(held) >= 0.92 and np.mean(warm) >= 0.92
    assert np.mean(named) <= 0.08 and np.mean(hours) <= 0.05


@pytest.mark.parametrize("hours", [(0.1, -0.1, 0.05), (0.0, 0.0, 0.0)])
def test_times_that_differ_between_repeats_of_a_series_are_said_and_widen_intervals_but_not_ratios(hours):
    random, differ = np.random.default_rng(1), any(hours)
    trials = [trial(10 * w + at, seconds=np.array([0, 1, 2]) * np.exp(hour + 0.005 * random.standard_normal()),
                    workers=w, batch=32 * w, seed=at) for w in (1, 2, 4, 8) for at, hour in enumerate(hours)]
    [section] = analyse(read_trials(log(*trials)))[0].sections
    assert [one.kind for one in irregular(Subject(**vars(section)))] == ["repeats"] * differ
    assert bool(timings_of(section.trials).spread.of_repeats) == differ
    speed, system = section.cells[0].examples_per_second, section.series[0].points[-1].system_efficiency
    assert (speed.high > 1.3 * speed.low) == differ and system.high < 1.05 * system.low


@pytest.mark.parametrize("order", ORDERS)
def test_intervals_of_times_hold_the_hours_that_repeats_share_or_that_each_setting_had_alone(order):
    assert hours_held(order, 3, 100)[0] >= 0.9


@pytest.mark.parametrize("order, in_a_row", [(UP, True), (BACK, False)])
def test_repeats_that_ran_in_a_row_are_told_by_their_starts(order, in_a_row):
    made = log(*[trial(at, workers=2 ** where, batch=32 * 2 ** where, seed=at, error=(0.9, 0.5 - (at == 9) / 2, 0.1))
                 for at, where in enumerate(order, 1)])
    assert not timings_of(read_trials(made)).in_a_row                   # all started at once
    made.restarts["time"] = 1e9 + 1800 * np.arange(9.0)
    assert timings_of(read_trials(made)).in_a_row == in_a_row
    [section] = analyse(read_trials(made))[0].sections
    system = section.series[0].points[-1].system_efficiency
    assert (system.high > 1.3 * system.low) == in_a_row and not stand_out(section.cells, "steps")


@pytest.mark.parametrize("slow, longs", [(0.15, 0), (0.15, 1), (0.0, 1)])
def test_times_of_first_steps_hold_what_a_job_slows_down_by(slow, longs):
    held, ratio = slowed_held(slow, longs, 5)
    assert held >= 0.9 and ratio < 1.5
