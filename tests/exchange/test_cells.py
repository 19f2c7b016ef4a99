"""Numbers out of text: each as float() reads it, and none where float() finds none."""
import random
from contextlib import nullcontext

import numpy as np
import pytest

from hvdscale.exchange.csv_file import CONVERTERS, CsvText, integer_of, is_missing
from hvdscale.exchange.files import WrongFile, number_of

READABLE = ["1", "0", "1.", "-1.5", "1e5", "1e-05", "nan", "NaN", "", "-nan", ".5", "00.5", "1.50", "-0.0",
            "12345678.5", "0.00001", "9007199254740993.0", "+1.0", " 1.0", "0.1234567890123456789", "5e-324",
            "1e-400", "2.675", "100000000000000000000.0", "0.30000000000000004",
            # halfway between two numbers, or close to it
            "1.00000000000000011102230246251565", "0.5000000000000000555", "4503599627370497.5",
            "0.1000000000000000055"]
NO_NUMBERS = ["1_0", "abc", "1.2.3", "..", ".", "1e400", "0x10", "1,5", "1 5", "\u22125", "null", '"1"']


def numbers(lines):
    """Those of a table with two columns."""
    return CsvText(f"a,b\n{lines}".encode(), "a.csv").numbers()


def check(texts):
    """Both columns of a table of these texts and their reverse are what float() makes of each."""
    rows = list(zip(texts, reversed(texts)))
    found = numbers("".join(",".join(row) + "\n" for row in rows))
    wanted = np.array([[float(text or "nan") for text in row] for row in rows])
    there = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(found), ~there)
    np.testing.assert_array_equal(found[there].view(np.int64), wanted[there].view(np.int64))


def test_any_number_is_read_as_float_reads_it():
    check(READABLE)
    draw = random.Random(1)

    def digits(most):
        return "".join(draw.choice("0123456789") for _ in range(draw.randint(0, most)))
    check(["1" + digits(9) + draw.choice(["", ".", ".", "."]) + draw.choice(["", "000", "00000"]) + digits(18)
           for _ in range(30_000)])


@pytest.mark.parametrize("lines", [
    *(f"1,2\n3,{text}\n" for text in NO_NUMBERS), "1,2\n3\n4,5\n", "1,2\n3,4,5\n", "1\n2,3\n", "\n\n",
    "1,2\n\n3,4\n", "1,2,3\n4,5,6\n"])
def test_a_cell_without_a_number_or_a_line_of_other_length_is_left_to_who_names_it(lines):
    assert numbers(lines) is None


def test_no_lines_are_no_rows():
    assert numbers("").shape == (0, 2)


def test_infinity_is_a_number_what_is_beyond_float64_is_none_and_a_gap_is_empty_or_nan(worded):
    assert number_of("inf") == np.inf and number_of("-Infinity") == -np.inf
    with worded.error(WrongFile):
        CONVERTERS["float"]("1e400", "val/error")
    assert all(map(is_missing, ["", " ", "nan", "NaN", "-nan"])) and not any(map(is_missing, ["0", "no", "inf"]))


@pytest.mark.parametrize("text, value", [
    ("007", 7), ("1e3", 1000), ("-4", -4), ("100.0", 100), ("9007199254740993.0", 9007199254740993),
    ("99999999999999999999", 99999999999999999999),
    *dict.fromkeys(("", "x", "1.5", "9007199254740992.5", "1e999999999", "nan", "1_0"), ValueError).items()])
def test_integers_are_exact_and_what_is_none_is_an_error(text, value):
    with pytest.raises(ValueError) if value is ValueError else nullcontext():
        assert integer_of(text) == value
