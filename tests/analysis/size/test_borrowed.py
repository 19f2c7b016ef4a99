"""Rules from elsewhere: how they are read, and what they cost in the cells that were measured."""
import numpy as np
import pytest

from hvdscale.analysis.size.laws import BorrowedLaw, costs_of, excess_at
from hvdscale.errors import UsageError
from tests.analysis.size.test_laws import laws
from tests.factories.size_grids import grids, runs_to_target


@pytest.mark.parametrize("text, of, at", [
    ("batch = 8.7e-3 * tokens^0.383", "batch", 8.7e-3 * 1e9 ** 0.383), ("rate=2/tokens ** .5", "rate", 2 * 1e9 ** -0.5),
    ("batch = tokens ^ (-1/3) * 2^3 * parameters", "batch", 1e9 ** (-1 / 3) * 8 * 1e7), ("batch = 512", "batch", 512),
    ("rate = 1.79 * parameters^-0.713 * tokens^0.307", "rate", 1.79 * 1e7 ** -0.713 * 1e9 ** 0.307)])
def test_a_rule_is_read(text, of, at):
    rule = BorrowedLaw.parse(text)
    assert rule.of == of and rule.at({"tokens": 1e9, "parameters": 1e7}) == pytest.approx(at)


@pytest.mark.parametrize("text, match", [
    ("", "begins with"), ("steps = 3", "begins with"), ("batch = ", "it ends where"), ("batch = 3 +", "joins numbers"),
    ("batch = 3 * __import__('os')", "'os'"), ("batch = 3 tokens", "'tokens' where"), ("batch = 0", "above 0"),
    ("batch = tokens^x", "'^x' is no power"), ("batch = tokens^(1/0)", "divides by 0"),
    ("batch = tokens^(1/2", "brackets"), ("batch = 9^999999", "finite"), ("batch = 1e999", "finite"),
    ("batch = tokens^1e999", "finite")])
def test_what_is_no_rule_is_refused_and_says_why(text, match):
    with pytest.raises(UsageError, match="--law") as error:
        BorrowedLaw.parse(text)
    assert match in str(error.value) and "such as" in str(error.value)


def test_the_true_rule_costs_nothing_and_a_wrong_one_what_it_costs():
    found = laws(grids())
    for text, rises in (("batch = 0.0101 * parameters^0.5", 0.0), ("batch = 0.0404 * parameters^0.5", 0.03)):
        for one in costs_of(BorrowedLaw.parse(text), found):
            share = rises / (2.5 * (one.cell.cell.sizes[0] / 1e7) ** -0.05)     # at the best rate for that batch
            assert one.loss.low <= share <= one.loss.high and not one.outside
    [*_, far] = costs_of(BorrowedLaw.parse("batch = parameters"), found)
    assert far.outside and far.loss is None


def test_steps_of_a_rule_are_those_of_the_curve():
    found = laws(runs_to_target())
    for one in costs_of(BorrowedLaw.parse("batch = 64"), found):
        b_crit = 64 * (one.cell.cell.sizes[0] / 1e7) ** 0.5
        assert one.steps.low * 0.98 <= 1 + b_crit / 64 <= one.steps.high * 1.02
        assert one.examples.low * 0.98 <= 1 + 64 / b_crit <= one.examples.high * 1.02


def test_a_rule_in_a_size_that_cells_do_not_have_is_an_error(worded):
    with worded.error(UsageError):
        costs_of(BorrowedLaw.parse("batch = tokens"), laws(runs_to_target(seeds=2)))


def test_the_cost_between_two_values_reaches_over_both():
    values = 2.0 ** np.arange(8)
    lowest = 2 + 0.1 * (np.log2(values) - 3) ** 2
    found = excess_at(values, lowest, 2 ** 5.5)
    assert found.low <= 0.1 * 2.5 ** 2 / 2 <= found.high
    assert found.low <= 0.1 * 4 / 2 * 1.01 and found.high >= 0.1 * 9 / 2 * 0.99
    assert np.isnan(excess_at(values[:4], lowest[:4], 3.0).low)
