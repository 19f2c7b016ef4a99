"""Runs that took far longer than others of their setting, and the times without them."""
from functools import partial

import numpy as np
import pytest

from hvdscale.analysis.report_data import analyse
from hvdscale.analysis.slow_runs import slow_runs
from hvdscale.analysis.trials import read_trials
from tests.factories import curves
from tests.factories.logs import log, trial
from tests.factories.slow_runs import coverage


def test_a_slow_run_is_found_among_two_and_said_how_slow_it_was():
    samples = [[1.0, 1.02], [2.0, 2.02], [3.0, 9.0], [0.5, 0.51]]
    assert [ratios.tolist() for ratios in slow_runs(samples)] == [[1, 1], [1, 1], [1, pytest.approx(3)], [1, 1]]


def test_times_that_scatter_everywhere_have_no_slow_run():
    random = np.random.default_rng(2)
    found = [ratios for _ in range(200) for ratios in slow_runs(np.exp(0.3 * random.standard_normal((6, 3))))]
    assert np.mean(np.array(found) > 1) < 0.005


def test_one_pair_of_runs_does_not_say_which_of_them_was_slow():
    assert [ratios.tolist() for ratios in slow_runs([[1.0, 3.0]])] == [[1, 1]]


def test_untimed_runs_are_never_slow_and_single_runs_neither():
    samples = [[np.nan, 1.0, 1.01], [np.nan], [], [5.0], [1.0, 1.02, 0.99], [1.0, 1.01, 4.0]]
    assert [int((ratios > 1).sum()) for ratios in slow_runs(samples)] == [0, 0, 0, 0, 0, 1]


def test_typical_times_are_covered_where_one_run_in_ten_takes_three_times_as_long():
    held, width, found = coverage(8, 3, 0.03, 60)
    assert held >= 0.9 and width < 1.2 and found > 0.75
    assert coverage(8, 3, 0.03, 60, search=False)[1] > 2


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
