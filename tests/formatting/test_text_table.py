"""Text tables: columns in line, and no wider than asked as far as it takes."""
import pytest

from hvdscale.formatting.text_table import GrowingTable, Heading, aligned, lines_within, narrowed

ROWS = [["1,130\n1,090-1,160", "1.00", "1.00"], ["1,810\n1,760-1,870", "1.83\n0.66-1.25", "1.47\n1.06-2.01"]]
FULL = """\
   examples       step       time
 per second    speedup    speedup
---------------------------------
      1,130       1.00       1.00
1,090-1,160
      1,810       1.83       1.47
1,760-1,870  0.66-1.25  1.06-2.01"""
SPLIT = """\
  examples     step
per second  speedup      T
--------------------------
     1,130     1.00   1.00
    1,090-
     1,160
     1,810     1.83   1.47
    1,760-    0.66-  1.06-
     1,870     1.25   2.01"""
PARTS = """\
   examples       step
 per second    speedup
----------------------
      1,130       1.00
1,090-1,160
      1,810       1.83
1,760-1,870  0.66-1.25

   examples
 per second          T
----------------------
      1,130       1.00
1,090-1,160
      1,810       1.47
1,760-1,870  1.06-2.01"""
ONE_LINE = """\
         examples            step            time
       per second         speedup         speedup
-------------------------------------------------
1,130 1,090-1,160  1.00            1.00
1,810 1,760-1,870  1.83 0.66-1.25  1.47 1.06-2.01"""
WITHOUT_SPARE = """\
         examples            time
       per second         speedup
---------------------------------
1,130 1,090-1,160  1.00
1,810 1,760-1,870  1.47 1.06-2.01"""


def test_columns_are_as_wide_as_their_longest_entry_of_one_line_or_several_and_there_may_be_no_rows():
    assert aligned([("study", "trials"), ("mnist", "100"), ("a", "2")], left=(0,)) == [
        "study  trials", "mnist     100", "a           2"]
    assert aligned([("one\ntwo", "1"), ("", "22")], left=(0, 1)) == ["one  1", "two", "     22"]
    assert aligned([]) == []
    assert narrowed([Heading("loss")], [], 80) == (True, ["loss", "----"])


@pytest.mark.parametrize("width, expected", [(33, FULL), (26, SPLIT), (25, PARTS), (10, PARTS)],
                         ids=["as it is", "intervals split", "in parts", "as far as it takes"])
def test_a_wide_table_is_narrowed_step_by_step(width, expected):
    headings = Heading("examples per second"), Heading("step speedup"), Heading("time speedup", "T")
    assert narrowed(headings, ROWS, width) == (expected is not PARTS, expected.splitlines())


def test_columns_that_do_not_fit_go_under_the_others_behind_the_first():
    rows = [("W", "ms", "data", "share"), ("128", "27.9", "0.164", "31%")]
    assert aligned(rows, left=(0,), width=16) == [
        "W      ms   data", "128  27.9  0.164", "", "W    share", "128    31%"]
    assert aligned(rows, left=(0,), width=3) == [
        "W      ms", "128  27.9", "", "W     data", "128  0.164", "", "W    share", "128    31%"]
    assert aligned(rows) == aligned(rows, width=23) == ["  W    ms   data  share", "128  27.9  0.164    31%"]


def test_intervals_follow_values_if_there_is_room_else_columns_go():
    headings = [Heading("examples per second"), Heading("step speedup", spare=True), Heading("time speedup", short="T")]
    assert lines_within(52, headings, ROWS) == ONE_LINE.splitlines()
    assert lines_within(40, headings, ROWS) == WITHOUT_SPARE.splitlines()
    assert max(map(len, lines_within(20, headings, ROWS))) <= 20


def test_a_growing_table_shows_blocks_in_time_and_its_columns_never_become_narrower():
    now, shown = [0.0], []
    table = GrowingTable(("log", "best", "study"), shown.append, lambda: now[0])
    table.add([("a", "0.1", "")])
    assert shown == []
    now[0] = 1.0
    table.add([("longer", "0.2", "")])
    table.add([("b", "0.3", "")])
    assert shown == ["log     best\na       0.1\nlonger  0.2"]
    table.flush()
    assert shown[1:] == ["b       0.3"]
    table.add([("c", "0.4", "draw 1")])
    table.flush()
    table.flush()
    assert shown[2:] == ["log     best  study\nc       0.4   draw 1"]


def test_a_row_of_a_growing_table_goes_on_in_indented_lines_where_it_is_too_wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    shown = []
    table = GrowingTable(("log", "best", "steps", "size", "study"), shown.append, lambda: 0, width=22)
    table.add([("runs/a.h5", "0.1", "1,234", "1.2 MiB", ""), ("b.h5", "0.2", "9", "", "")])
    table.flush()
    table.add([("c.h5", "0.3", "12", "1 KiB", "draw 3: " + "momentum 0.9, " * 6)])
    table.flush()
    assert shown == [
        "log        best\n    steps  size\nruns/a.h5  0.1\n    1,234  1.2 MiB\nb.h5       0.2\n    9",
        "log        best\n    steps  size\n    study\nc.h5       0.3\n    12     1 KiB\n"
        "    draw 3: momentum 0.9, momentum 0.9, momentum 0.9,\n    momentum 0.9, momentum 0.9, momentum 0.9,"]
