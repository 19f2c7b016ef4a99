"""A tolerance as a user writes it."""
import pytest

from hvdscale.analysis.defaults import Tolerance
from hvdscale.errors import UsageError


@pytest.mark.parametrize("text, amount, relative", [("0.01", 0.01, False), ("1%", 0.01, True), ("2.5%", 0.025, True)])
def test_a_tolerance_is_a_loss_or_a_share_of_one(text, amount, relative):
    tolerance = Tolerance.parse(text)
    assert tolerance == Tolerance(amount, relative) and str(tolerance) == text
    assert tolerance.at(4.0) == (4 * amount if relative else amount)


@pytest.mark.parametrize("text", ["0", "-1", "much", "nan", "inf", ""])
def test_what_is_no_tolerance_is_refused(text):
    with pytest.raises(UsageError, match=f"--tolerance {text!r}: is a loss above 0"):
        Tolerance.parse(text, "--tolerance")
