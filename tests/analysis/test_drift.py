"""Times that drift with the order of the runs: found from repeats, and the pace of the last run."""
from types import SimpleNamespace

import numpy as np
import pytest

from hvdscale.analysis.drift import drift_of

BACK = (0, 1, 2, 2, 1, 0, 0, 1, 2)          # there and back and there
UP = (0, 0, 0, 1, 1, 1, 2, 2, 2)            # the repeats of a setting one after another
SECONDS = np.array([0.01, 0.006, 0.004])    # an example, of each setting


def cells(order, drift, noise=0.0, random=np.random.default_rng(3)):
    """Runs in this order of their settings, each ``drift`` slower than the one before."""
    found = [[] for _ in SECONDS]
    for place, at in enumerate(order):
        seconds = SECONDS[at] * np.exp(drift * place + noise * random.standard_normal())
        found[at].append(SimpleNamespace(examples_per_second=1 / seconds, trial=SimpleNamespace(started=float(place))))
    return [SimpleNamespace(runs=runs) for runs in found]


@pytest.mark.parametrize("order", [BACK, UP])
def test_a_drift_without_noise_is_found_exactly_with_the_pace_of_the_last_run(order):
    drift = drift_of(cells(order, 0.02))
    assert drift.runs == 9 and drift.a_run.value == pytest.approx(np.exp(0.02))
    assert [warm.value for warm in drift.warm] == pytest.approx(SECONDS * np.exp(0.02 * 8))


def test_too_few_repeats_too_small_a_drift_and_unknown_starts_say_nothing():
    assert drift_of(cells((0, 1, 2, 2, 1, 0), 0.02)) is None            # two degrees of freedom
    assert drift_of(cells(BACK, 0.001)) is None
    unknown = cells(BACK, 0.02)
    for run in (run for cell in unknown for run in cell.runs):
        run.trial.started = np.nan
    assert drift_of(unknown) is None and drift_of([]) is None


def test_intervals_hold_the_drift_and_the_last_pace_and_none_is_named_without_one():
    random = np.random.default_rng(11)
    held, warm, named = [], [], []
    for _ in range(400):
        found = drift_of(cells(BACK, 0.02, 0.01, random))
        if found is not None:
            held.append(found.a_run.low <= np.exp(0.02) <= found.a_run.high)
            warm += [one.low <= true <= one.high for one, true in zip(found.warm, SECONDS * np.exp(0.02 * 8))]
        named.append(drift_of(cells(BACK, 0.0, 0.01, random)) is not None)
    assert len(held) > 350 and np.mean(held) >= 0.92 and np.mean(warm) >= 0.92
    assert np.mean(named) <= 0.08
