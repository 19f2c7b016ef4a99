"""Numbers out of text by the block: each as float() reads it, and what repr() would write otherwise is told."""
import csv
import io
import random

import numpy as np
import pytest

from hvdscale.exchange import decimals
from hvdscale.exchange.decimals import Block, CellsError

ODD = ["1", "0", "1.", "-1.5", "1e5", "1e-05", "nan", "NaN", "", "inf", "-inf", ".5", "00.5", "1.50", "1.5", "0.0",
       "-0.0", "12345678.5", "123456789.5", "0.00001", "0.0001", "1_0", "abc", "1.2.3", "9007199254740993.0", "+1.0",
       " 1.0", "0.1234567890123456789", "1e400", "5e-324", "100000000000000000000.0", "0.30000000000000004", "2.675",
       "..", "."]


def number(text):
    """As float() reads it; NaN for text that is none, has underscores or is beyond float64."""
    try:
        return float(text) if "_" not in text and text != "1e400" else np.nan
    except ValueError:
        return np.nan


def check(texts):
    """Values and oddities of a column, by float() and repr()."""
    block = Block("".join(f"{row},{text}\n" for row, text in enumerate(texts)).encode(), 2)
    wanted = np.array([number(text) for text in texts])
    np.testing.assert_array_equal(block.floats(1).view(np.int64)[wanted == wanted],
                                  wanted.view(np.int64)[wanted == wanted])
    np.testing.assert_array_equal(np.isnan(block.floats(1)), np.isnan(wanted))
    usual = ["" if value != value else repr(value) for value in wanted.tolist()]
    assert block.unusual(1) == {row: text for row, text in enumerate(texts) if text != usual[row]}
    np.testing.assert_array_equal(block.counts(0)[0], np.arange(len(texts)))


@pytest.mark.parametrize("wide", [True, False])
def test_any_cell_is_read_as_float_reads_it(wide, monkeypatch):
    if not wide:
        monkeypatch.setattr(decimals, "WIDE", None)         # as on machines without the x87
    check(ODD)


@pytest.mark.parametrize("wide", [True, False])
def test_random_digits_are_read_as_float_reads_them(wide, monkeypatch):
    if not wide:
        monkeypatch.setattr(decimals, "WIDE", None)
    draw = random.Random(1)

    def digits(most):
        return "".join(draw.choice("0123456789") for _ in range(draw.randint(0, most)))
    check([digits(9) + draw.choice(["", ".", ".", "."]) + draw.choice(["", "000", "00000"]) + digits(18)
           for _ in range(30_000)])


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e3, 1e7, 1e12])
def test_what_repr_writes_is_usual(scale):
    random_ = np.random.default_rng(2)
    values = random_.random(10_000)
    values[5000:8000] = values[5000:8000].astype(np.float32)
    values[8000:] = values[8000:].round(6)
    texts = list(map(repr, (values * scale).tolist()))
    check(texts)
    block = Block(("\n".join(texts) + "\n").encode(), 1)
    assert not block.unusual(0)


def test_a_decimal_between_two_numbers_goes_to_the_even_one():
    check(["1.00000000000000011102230246251565", "0.5000000000000000555", "9007199254740993.0", "4503599627370497.5",
           "0.1000000000000000055", "1.0000000000000002", "1.0000000000000001", "0.10000000000000001"])


def test_counts_are_exact_integers():
    values, odd = Block(b"1\n007\n1e3\n12345678901234567\n123456789012\n-4\n\nx\n100.0\n99999999999999999999\n"
                        b"9007199254740993.0\n9007199254740992.5\n1e999999999\n", 1).counts(0)
    assert values.tolist() == [1, 7, 1000, 12345678901234567, 123456789012, -4, -1, -1, 100, -1, 9007199254740993, -1,
                               -1]
    assert odd == {1: "007", 2: "1e3", 6: "", 7: "x", 8: "100.0", 9: "99999999999999999999", 10: "9007199254740993.0",
                   11: "9007199254740992.5", 12: "1e999999999"}


@pytest.mark.parametrize("text, line, cells", [
    ("1,2\n3\n4,5\n", 1, 1), ("1,2\n3,4,5\n4,5\n", 1, 3), ("1\n2,3\n", 0, 1), ("1,2\n3,4\n5\n", 2, 1),
    ("1,2,3\n4\n", 0, 3), ("1,2\n\n3,4\n", 1, 1)])
def test_a_line_of_other_length_is_told(text, line, cells):
    assert len(list(csv.reader(io.StringIO(text)))[line]) in (cells, 0)
    with pytest.raises(CellsError, match=f"has {cells} cells where the header has 2") as raised:
        Block(text.encode(), 2)
    assert raised.value.line == line


def test_no_lines_are_no_rows():
    block = Block(b"", 3)
    assert block.rows == 0 and len(block.floats(1)) == 0 and block.unusual(1) == {} and len(block.counts(0)[0]) == 0
