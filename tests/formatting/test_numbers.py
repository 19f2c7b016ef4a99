"""Numbers as they are written: so many digits, whatever rounding makes of them."""
import pytest

from hvdscale.formatting.numbers import duration, number


@pytest.mark.parametrize("value, text", [(0.99999, "1.00"), (0.9994, "0.999"), (9.996, "10.0"), (99.96, "100"),
                                         (1234.5, "1,230"), (0.5, "0.500"), (0, "0")])
def test_a_number_has_three_digits(value, text):
    assert number(value) == text


@pytest.mark.parametrize("seconds, shown, rough", [
    (0, "0 s", "0 s"), (0.5, "0.500 s", "0 s"), (90, "90.0 s", "90 s"), (100, "100 s", "100 s"),
    (600, "10.0 min", "10 min"), (7200, "2.00 h", "2 h"), (3 * 86400, "3.00 d", "3.0 d"), (9e5, "10.4 d", "10.4 d")])
def test_times_are_written_in_the_unit_that_reads_best(seconds, shown, rough):
    assert (duration(seconds), duration(seconds, rough=True)) == (shown, rough)
