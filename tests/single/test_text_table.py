"""Text tables: columns in line, and no wider than asked as far as it takes."""
import pytest

from hvdscale.formatting.text_table import Heading, TextTable, aligned

ROWS = [["1,130\n1,090-1,160", "1.00", "1.00"], ["1,810\n1,760-1,870", "1.83\n0.66-1.25", "1.47\n1.06-2.01"]]
FULL = """\
   examples       step       time
 per second    speedup    speedup
---------------------------------
      1,130       1.00       1.00
1,090-1,160
      1,810       1.83       1.47
1,760-1,870  0.66-1.25  1.06-2.01"""
SHORT_AND_LEFT_OUT = """\
   examples       step
 per second    speedup     T
----------------------------
      1,130       1.00  1.00
1,090-1,160
      1,810       1.83  1.47
1,760-1,870  0.66-1.25"""
SPLIT = """\
  examples     step
per second  speedup     T
-------------------------
     1,130     1.00  1.00
    1,090-
     1,160
     1,810     1.83  1.47
    1,760-    0.66-
     1,870     1.25"""


def test_columns_are_as_wide_as_their_longest_entry():
    assert aligned([("study", "trials"), ("mnist", "100"), ("a", "2")], left=(0,)) == [
        "study  trials", "mnist     100", "a           2"]


def test_an_entry_may_have_several_lines_and_no_line_ends_in_blanks():
    assert aligned([("one\ntwo", "1"), ("", "22")], left=(0, 1)) == ["one  1", "two", "     22"]


def test_a_table_may_have_no_rows():
    assert aligned([]) == []
    assert TextTable([Heading("loss")], []).lines() == ["loss", "----"]


@pytest.mark.parametrize("width, expected, dropped", [
    (33, FULL, []), (32, SHORT_AND_LEFT_OUT, ["time speedup"]), (25, SPLIT, ["time speedup"]),
    (10, SPLIT, ["time speedup"])], ids=["as it is", "intervals left out", "intervals split", "as far as it takes"])
def test_a_wide_table_is_narrowed_step_by_step(width, expected, dropped):
    table = TextTable([Heading("examples per second"), Heading("step speedup"),
                       Heading("time speedup", short="T", scaled=True)], ROWS)
    table.narrow(width)
    assert "\n".join(table.lines()) == expected
    assert [heading.title for heading in table.dropped] == dropped
    assert table.width == max(map(len, table.lines()))
