"""The report of branches: a chapter with sentences, tables and figures, beside the ordinary pages."""
import json
import math

import pytest

import hvdscale
from hvdscale.analysis.branches import branched_of
from hvdscale.analysis.intervals import Estimate
from hvdscale.analysis.trials import read_trials
from hvdscale.errors import UsageError
from hvdscale.report.document import Shown
from hvdscale.report.drawing import render
from hvdscale.report.views.branches import describe_critical, parts_of_branches
from hvdscale.report.table import as_csv, as_text
from hvdscale.target import Target
from tests.factories.branches import Losses, branches
from tests.factories.logs import log, save, trial

TARGET = Target.parse("val/error<0.2")
B_CRIT = Estimate(90.0, 40.0, 200.0, 5)


def losses(critical):
    made = Losses(critical)
    return lambda factor, order: float(made.expected(factor)) + 0.02 * order + 1e-4 * (factor * order % 3)


@pytest.fixture(scope="module")
def made():
    return branches({10: losses(2.0), 100: losses(8.0), 400: losses(100.0)})


@pytest.fixture(scope="module")
def found(made):
    [found] = branched_of(read_trials(log(*made)))
    return found


def test_the_table_has_a_row_a_checkpoint_with_the_measured_critical_batch_beside(found):
    [table] = Shown(tuple(parts_of_branches(found, [(TARGET, B_CRIT)]))).tables
    assert [row.cells[0].value for row in table.rows] == [10, 100, 400]
    local = [row.cells[2] for row in table.rows]
    for cell, critical in zip(local, (2.0, 8.0)):
        truth = 16 * Losses(critical).truth(0.01)
        assert cell.low < truth < cell.high and cell.value == pytest.approx(truth, rel=0.1)
    assert math.isinf(local[2].value) and local[2].shown == "> 512"
    assert {row.cells[6].value for row in table.rows} == {90.0}
    assert all(len(row.trials) == 18 for row in table.rows)
    assert "> 512" in as_text(table) and as_csv(table).count("\n") == 4


@pytest.mark.parametrize("estimate, said", [
    (Estimate(57, 40, 80, 3), "57 (40-80)"), (Estimate(17, 0, 30, 3), "17 (< 30)"),
    (Estimate(math.inf, 100, math.inf, 3, 512), "at least 512 (> 100)"),
    (Estimate(math.inf, 512, math.inf, 3, 512), "at least 512"), (Estimate(57, math.nan, math.nan, 1), "57")])
def test_a_critical_batch_in_words(estimate, said):
    assert describe_critical(estimate) == said


def test_figures_can_be_drawn_with_all_that_stands_beside_and_of_a_single_checkpoint(found):
    for figure in Shown(tuple(parts_of_branches(found, [(TARGET, B_CRIT)]))).figures:
        svg = render(figure, "svg").decode()
        assert figure.title.splitlines()[0] in svg and figure.trials == found.keys
        assert ("B_crit of val/error&lt;0.2" in svg) == (figure.name == "branched-critical-batch")
    [single] = branched_of(read_trials(log(*branches({0: losses(2.0)}, orders=1))))
    view = Shown(tuple(parts_of_branches(single)))
    assert "interval" in view.tables[0].notes[-1]
    assert all(render(figure, "svg") for figure in view.figures) and as_text(view.details[0])


def test_branches_have_a_chapter_and_no_part_in_the_pages(made, tmp_path, worded):
    ordinary = save(log(trial(1, batch=16), trial(2, batch=16, seed=1)), tmp_path / "a.h5")
    beside = save(log(*made), tmp_path / "branches.h5")
    with hvdscale.read(beside) as runs:
        report = runs.report()
        assert "Branched critical batch" in str(report) and report.findings[0]["value"] == math.inf
    with hvdscale.read([ordinary]) as runs, hvdscale.read([ordinary, beside]) as both:
        alone, report = runs.report(), both.report()
        [chapter] = report.values()["chapters"]
        assert report.values()["workloads"] == alone.values()["workloads"]
        assert chapter["title"] == "Branched critical batch: made/net, nesterov, rule linear"
        json.dumps(report.values())
        wide = both.report(branch_tolerance="100%").tables["branched-critical-batch"].records()
        assert all(math.isinf(row["local_critical_batch"]) for row in wide)
        with worded.error(UsageError):
            both.report(branch_tolerance="x")
