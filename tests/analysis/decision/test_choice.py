"""A decision: its best option, expected loss and chances, and what a measurement is worth."""
import numpy as np
import pytest

from hvdscale.analysis.decision.draws import Decision


def decision(*log_seconds, workers=None, paid=None):
    count = len(log_seconds)
    steps = np.array(log_seconds, float).T
    return Decision(tuple((one, 32 * one, 1) for one in workers or 2 ** np.arange(count)), steps, np.zeros_like(steps),
                    np.log(paid or np.ones(count)), 0.95)


def test_loss_and_chances_are_those_of_the_draws():
    made = decision([0, 0, 0, 0], [-1, 1, 1, 1], [np.log(1.1)] * 4)
    assert made.expected(np.inf) == pytest.approx([0, 0.5, np.log(1.1)])
    assert made.loss(0) == pytest.approx(np.expm1(0.25))
    assert (made.chance(0, 0.05), made.chance(2, 0.2), made.chance(2, 0.05)) == (0.75, 0.75, 0)


def test_costs_weigh_times_by_what_a_second_costs():
    made = decision([0] * 3, [-0.5] * 3, paid=[1, 2])
    assert [int(made.expected(weight).argmin()) for weight in (np.inf, 0, 1)] == [1, 0, 1]


def test_the_fastest_workers_have_an_end_on_each_side():
    random = np.random.default_rng(0)
    made = decision(*(random.normal(0.1 * at, 0.01, 1000) for at in (3, 1, 0, 5)))
    assert made.fastest_workers == (4, 4)
    wide = decision(*(random.normal(0, 1, 1000) for _ in range(4)))
    assert wide.fastest_workers == (1, 8)


def test_a_measurement_is_worth_what_it_decides():
    random = np.random.default_rng(1)
    unknown = random.normal(0, 1, 1000)
    made = decision(np.zeros(1000), unknown)
    before, known = made.loss(0), made.loss_after([(unknown, 0.01)])
    assert known < 0.1 * before < made.loss_after([(unknown, 1.0)]) < before
    assert made.loss_after([(random.normal(0, 1, 1000), 0.1)]) == pytest.approx(before, rel=0.35)
