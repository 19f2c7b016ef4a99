"""Numbers as they are written: so many digits, whatever rounding makes of them."""
import pytest

from hvdscale.formatting.numbers import number


@pytest.mark.parametrize("value, text", [(0.99999, "1.00"), (0.9994, "0.999"), (9.996, "10.0"), (99.96, "100"),
                                         (1234.5, "1,230"), (0.5, "0.500"), (0, "0")])
def test_a_number_has_three_digits(value, text):
    assert number(value) == text
