"""Laws over the cells of several workloads, of made-up logs and of the published measurements where they are."""
import csv
from collections import defaultdict

import numpy as np
import pytest

from hvdscale.analysis.critical_batch_fit import fit_critical_batch
from hvdscale.analysis.intervals import Estimate
from hvdscale.analysis.reference import Reference
from hvdscale.analysis.report_data import analyse
from hvdscale.analysis.size.laws import SizeLaws, basin_of
from hvdscale.analysis.size.sizes import PowerLaw, SizePoint, parse_size, sizes_of
from hvdscale.analysis.studies import studies_of
from hvdscale.analysis.trials import read_trials
from tests.conftest import ROOT
from tests.factories.size_grids import grids, runs_to_target
from tests.analysis.size.test_sizes import PATTERN

DATA = ROOT.parent / "shared" / "data" / "laws"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the published measurements are not here")


def holds(estimate, truth):
    return estimate.low <= truth <= estimate.high


def laws(logs):
    return SizeLaws(analyse([one for log in logs for one in read_trials(log)]), studies_of(logs), sizes_of([PATTERN]))


def test_laws_of_steps_hold_the_truth():
    found = laws(runs_to_target())
    assert set(found.quantities) == {"overhead", "steps", "b_crit", "s_min"}
    for key, truth in (("overhead", 0.5), ("b_crit", 0.5), ("s_min", 0.0), ("steps", 0.0)):
        assert holds(found.quantities[key].exponents["parameters"], truth), key


def test_laws_at_a_budget_hold_the_truth():
    found = laws(grids())
    batch, rate = (found.quantities[key].exponents["parameters"] for key in ("best_batch", "best_rate"))
    assert holds(batch, 0.5) and holds(rate, -0.3)
    assert batch.high - batch.low < 0.3


def test_a_flat_bowl_has_a_wide_interval_and_no_bowl_none():
    random = np.random.default_rng(2)
    batches, rates = (one.ravel() for one in np.meshgrid(2.0 ** np.arange(10), 2.0 ** np.arange(10)))
    bowl = (np.log2(batches) - 4.2) ** 2 + (np.log2(rates) - 5.1) ** 2
    deep, flat = (basin_of(batches, rates, depth * bowl + 0.01 * random.standard_normal(100))[0]
                  for depth in (0.1, 0.001))
    assert holds(deep, 2 ** 4.2) and holds(flat, 2 ** 4.2)
    assert deep.high < 1.5 * deep.low and flat.high > 3 * flat.low
    assert basin_of(batches, rates, -bowl) is None
    assert basin_of(batches[:9], rates[:9], bowl[:9]) is None


def test_a_lopsided_bowl_has_a_wider_interval_than_one_that_is_alike_on_both_sides():
    batches, rates = (one.ravel() for one in np.meshgrid(2.0 ** np.arange(10), 2.0 ** np.arange(10)))
    x, y = np.log2(batches) - 4.2, np.log2(rates) - 5.1
    noise = 0.002 * np.random.default_rng(1).standard_normal(100)
    even, lopsided = (basin_of(batches, rates, 0.01 * (side + y ** 2) + noise)[0]
                      for side in (x ** 2, np.where(x > 0, x ** 2, 0.4 * x ** 2)))
    assert holds(even, 2 ** 4.2) and holds(lopsided, 2 ** 4.2)
    assert np.log(lopsided.high / lopsided.low) > np.log(even.high / even.low)


@pytest.fixture(scope="module")
def zhang():
    """The published curves by their number of parameters."""
    return {parse_size(curve.models[0]): curve for curve in Reference("zhang2024").curves}


def test_the_published_batches_of_a_fifth_more_examples_lie_inside_and_so_does_their_power(zhang):
    points = [SizePoint((size,), fit_critical_batch(curve.batches, [
        Estimate(steps, np.nan, np.nan, 1) for steps in curve.steps]).overhead) for size, curve in zhang.items()]
    assert all(holds(one.estimate, batch) for one, batch in zip(points, (752, 985, 1365, 1890, 2610)))
    assert holds(PowerLaw(["parameters"], points).exponents["parameters"], 0.47)


@needs_data
def test_the_published_curves_are_the_numbers_of_the_notebook(zhang):
    with open(DATA / "steps_to_loss_2410_21676.csv") as file:
        rows = [(parse_size(row["model"]), float(row["target_loss"]), float(row["global_batch"]), float(row["steps"]))
                for row in csv.DictReader(file)]
    assert len(rows) == 45 and rows == [
        (size, curve.target.value, batch, steps) for size, curve in zhang.items()
        for batch, steps in zip(curve.batches, curve.steps)]


@needs_data
def test_the_best_batch_of_the_grid_grows_about_as_the_root_of_tokens():
    grid = defaultdict(list)
    with open(DATA / "lr_batch_grid.csv") as file:
        for row in csv.DictReader(file):
            grid[float(row["tokens"]), float(row["parameters"])].append(
                [float(row[name]) for name in ("global_batch", "lr", "smooth_loss")])
    bowls = {sizes: basin_of(*np.array(trials).T) for sizes, trials in grid.items()}
    law = PowerLaw(["tokens"], [SizePoint(sizes[:1], batch) for sizes, (batch, _) in bowls.items()])
    assert holds(law.exponents["tokens"], 0.5) and 0.4 < law.exponents["tokens"].value < 0.65
    rate = PowerLaw(["tokens", "parameters"], [SizePoint(sizes, rate) for sizes, (_, rate) in bowls.items()])
    assert holds(rate.exponents["tokens"], 0.307) and holds(rate.exponents["parameters"], -0.713)    # arXiv 2503.04715
