"""Numbers as they are written: so many digits, whatever rounding makes of them."""
import math

import pytest

from hvdscale.formatting.numbers import number, percent, ratio, span, whole


@pytest.mark.parametrize("write, shown", [
    (number, {0: "0", 1: "1.00", 12: "12.0", 0.01234: "0.0123", 0.5: "0.500", 1.2: "1.20", 3141.59: "3,140",
              99999: "100,000", 0.99999: "1.00", 0.9994: "0.999", 9.996: "10.0", 99.96: "100", 123456: "123k",
              4.56e6: "4.56M", 7.1e9: "7.10G", 5.87e-6: "5.87e-06", math.nan: "n/a", math.inf: "inf"}),
    (whole, {7: "7", 431.4: "431", 12346: "12,350", 2.5e6: "2.500M"}),
    (ratio, {0.00612: "0.0061", 0.876: "0.88", 9.994: "9.99", 12.34: "12.3", 123.4: "123", 7.6e-4: "0.00076",
             1.2e-7: "1.2e-07"}),
    (percent, {0.974: "97%", 0.0281: "2.8%", 0.00085: "0.085%", 0: "0%", 1: "100%"})])
def test_a_number_is_rounded_to_what_is_known_of_its_kind(write, shown):
    assert {value: write(value) for value in shown} == shown


@pytest.mark.parametrize("low, high, shown", [
    (1, 2, "1.00-2.00"), (1.04, 7.77, "1.0-7.8"), (3898, 3902, "3,898-3,902"), (3901, 3901, "3,900-3,900"),
    (21498, 93212, "21k-93k"), (57600, 62400, "57.6k-62.4k"), (1, math.inf, "> 1.00"), (0, 2, "< 2.00"),
    (math.nan, math.nan, "")])
def test_an_interval_has_no_more_digits_than_its_width_calls_for(low, high, shown):
    assert span(low, high) == shown
