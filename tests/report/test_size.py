"""Laws over size in a report: what it says, its tables and its figure."""
import pytest

from hvdscale.errors import UsageError
from hvdscale.report.drawing import render
from hvdscale.report.subject import request_of
from hvdscale.report.pages import document_of_logs
from hvdscale.target import Target
from tests.analysis.size.test_sizes import PATTERN
from tests.factories.size_grids import grids, runs_to_target

TARGET = Target.parse("val/error<0.2")


def chapter(logs, targets=(TARGET,), **asked):
    document = document_of_logs(logs, targets, asked=request_of(sizes=[PATTERN], **asked))
    return next(one for one in document.chapters if one.title == "Laws over size")


def test_a_report_has_laws_over_size_in_a_figure_and_what_a_rule_costs_in_steps(worded):
    found = chapter(runs_to_target(), laws="batch = 64")
    power = next(cell for cell in found.tables[0].rows[2].cells if cell.low is not None)
    assert power.low <= 0.5 <= power.high
    [figure] = found.figures
    assert figure.panels == 4 and b"extrapolated" in render(figure, "svg")
    worded(found.findings[-1].said, about="times the")
    assert "costs at most" in found.findings[-1].said
    assert [column.key for column in found.tables[-1].columns][-2:] == ["steps", "examples"]


@pytest.mark.parametrize("count, match", [(2, "2 cells with an interval are too few"),
                                          (1, "1 cell with an interval is")])
def test_too_few_sizes_have_no_law(count, match):
    models = dict(list({"gpt_10M": 1e7, "gpt_20M": 2e7}.items())[:count])
    assert match in chapter(runs_to_target(models=models)).findings[0].said


def test_a_size_that_no_log_has_and_a_rule_without_sizes_are_errors():
    asked = request_of(sizes="depth")
    with pytest.raises(UsageError, match="--size depth"):
        document_of_logs(runs_to_target(), [TARGET], asked=asked)
    with pytest.raises(UsageError, match="needs the sizes"):
        request_of(laws="batch = 64")


def test_a_rule_from_elsewhere_has_its_cost_in_words_and_a_table(worded):
    found = chapter(grids(), (), laws=["batch = 0.0404 * parameters^0.5", "rate = parameters"])
    worded(found.findings[2].said, about="costs at")
    assert "% (" in found.findings[2].said
    worded(found.findings[3].said, about="Outside the")
    assert "unknown" in found.findings[3].said
    first, second = (table for table in found.tables if table.name.startswith("size-rule"))
    assert [row.cells[-1].low is not None for row in first.rows] == [True] * 4
    assert {row.cells[-1].shown for row in second.rows} == {"outside"}
