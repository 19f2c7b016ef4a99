"""The figures of a paper: all that a made archive and logs of hvdscale itself have the data for."""
import re
from dataclasses import replace

import pytest

from hvdscale.analysis import studies as studies_module
from hvdscale.analysis.search import first_feasible
from hvdscale.analysis.curves import curve_of
from hvdscale.analysis.studies import SourceRows, studies_of
from hvdscale.analysis.trials import JobKey
from hvdscale.errors import UsageError
from hvdscale.formatting.numbers import counted
from hvdscale.log.reader import read_log
from hvdscale.log.schema import Status
from hvdscale.report.document import Shown
from hvdscale.report.drawing import render
from hvdscale.report.papers.figures import FIGURES, names_of
from hvdscale.report.papers.figures import figures as parts_of_figures
from hvdscale.report.subject import request_of
from tests.factories.archives import write_big_log
from tests.report.test_study_figures import TARGET, axes_of, study, sweep


def figures(studies, **asked):
    return Shown(tuple(parts_of_figures(studies, **asked)))


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Studies of a made archive of every published workload, with data sets of known size where a figure needs it."""
    path = tmp_path_factory.mktemp("archive") / "big.h5"
    write_big_log(str(path), studies=454, trials=454 * 8, evaluations=454 * 8 * 15)
    sizes = {"lm1b": 30_301_028, "solution_quality/mnist": 55_000, "solution_quality/fashion_mnist": 55_000}
    with read_log(str(path)) as log:
        yield [replace(one, workload=replace(one.workload, train_examples=sizes.get(one.workload.dataset, 0)))
               for one in studies_of([log])]


def test_every_figure_of_the_paper_comes_from_its_archive_or_is_named_and_can_be_drawn(archive):
    told = []
    found = figures(archive, tell=lambda what, long=False: told.append(what))
    sheets, curves = ([one for one in told if re.search(pattern, one)] for pattern in (
        r"^figure \S+ of the paper, \d+ of \d+$", r", curve \d+ of \d+ for the figures of the paper$"))
    assert len(sheets) == len(FIGURES) and sheets[0].endswith(f", 1 of {len(sheets)}") and curves
    numbers = [re.fullmatch(r"Figure (\w+)\. .*", figure.title.splitlines()[0])[1] for figure in found.figures]
    asked = [number for sheet in FIGURES for number in (
        [f"{sheet.number}{letter}" for letter, _ in zip("abcdef", sheet.panels)] if sheet.apart else [sheet.number])]
    named = [re.match(r"Figure (\w+)", said)[1] for said in found.summary if said.startswith("Figure ")]
    assert [number for number in asked if number in numbers] == numbers
    assert set(asked) == set(numbers) | set(named)
    assert {"1", "2a", "3d", "4a", "5a", "6a", "8", "10", "11a"} <= set(numbers)
    assert all("1811.03600, figure" in figure.source and figure.trials for figure in found.figures)
    assert len({figure.name for figure in found.figures}) == len(found.figures)
    by_number = dict(zip(numbers, found.figures))
    assert all(axes_of(by_number[number]) for number in ("3d", "8", "11a"))
    assert render(by_number["10"], "svg").startswith(b"<?xml")
    titles = [axes.get_title().splitlines() for axes in axes_of(by_number["1"])]
    goals = {panel.title: panel.lines[0].target for panel in FIGURES[0].panels}
    assert len(titles) > 3 and all(goals[name] == goal for name, goal in titles)


def test_workloads_that_an_archive_lacks_are_named_and_the_rest_is_shown(archive):
    some = [one for one in archive if (one.workload.dataset, one.workload.model) in (
        ("cifar_10", "resnet_8"), ("mnist", "simple_cnn_base"))]
    found = figures(some)
    assert found.figures[-1].title.startswith("Figure 11a")         # mnist serves there
    [first] = [said for said in found.summary if said.startswith("Figure 1:")]
    assert "imagenet/vgg_11/nesterov_momentum" in first and "cifar_10" not in first
    assert any(figure.title.startswith("Figure 4c") for figure in found.figures)
    counts = [int(one.feasible.sum()) for one in some if one.workload.dataset == "cifar_10"
              and one.workload.optimizer == "nesterov_momentum"]
    assert (f"cifar_10/resnet_8/nesterov_momentum: every batch is compared at {counted(min(counts), 'trial')}, where "
            "the paper takes 100.") in found.summary


def test_a_columns_rows_are_read_a_few_times_at_most_where_few_can_be_kept(archive, monkeypatch):
    counts = {}
    read = SourceRows.read
    monkeypatch.setattr(studies_module, "KEPT_BYTES", 40_000)
    monkeypatch.setattr(SourceRows, "read", lambda self, name: counts.update(
        {(id(self), name): counts.get((id(self), name), 0) + 1}) or read(self, name))
    for one in archive:
        one.evaluations.outcomes.clear()
    for kept in {id(one.evaluations._kept): one.evaluations._kept for one in archive}.values():
        kept.clear()
    figures([one for one in archive if one.workload.dataset in ("cifar_10", "imagenet")])
    assert counts and max(counts.values()) <= 8


def test_logs_of_no_workload_of_a_paper_give_no_figure_and_an_unknown_paper_is_refused_by_name():
    found = figures(sweep())
    assert found.figures == () and len(found.summary) == len(FIGURES)
    with pytest.raises(UsageError, match="goyal: .*shallue2019"):
        request_of(paper="goyal")


@pytest.mark.parametrize("dataset, model, optimizer, examples, name", [
    ("mnist", "simple_cnn_base", "nesterov_momentum", 0, "mnist/simple_cnn_base/nesterov_momentum"),
    ("mnist", "simple_cnn", "nesterov", 55_000, "mnist/simple_cnn_base/nesterov_momentum"),
    ("mnist", "simple_cnn", "nesterov", 55_000, "mnist_subsets/mnist_55000/simple_cnn_base/nesterov_momentum"),
    ("mnist", "simple_cnn", "nesterov", 6_875, "mnist_subsets/mnist_6875/simple_cnn_base/nesterov_momentum"),
    ("imagenet_half_images", "resnet_50", "nesterov", 0,
     "imagenet_subsets/imagenet_half_images/resnet_50/nesterov_momentum"),
    ("lm1b", "transformer", "nesterov", 0, "lm1b/transformer_base/nesterov_momentum"),
    ("fashion_mnist", "simple_cnn", "nesterov", 0, "solution_quality/fashion_mnist/simple_cnn_base/nesterov_momentum"),
    ("mnist", "fc_64_64_64", "sgd", 55_000, "mnist/fc_64_64_64/sgd")])
def test_logs_of_the_archive_and_of_hvdscale_itself_are_found_by_their_names(dataset, model, optimizer, examples, name):
    names = names_of(JobKey(dataset, model, "", optimizer, examples))
    assert name in names and (examples != 6_875 or names == (name,))       # a subset is not taken for the whole


def test_as_many_feasible_trials_count_as_the_paper_takes():
    trials = [{"met": 100, "status": Status.INFEASIBLE}, {"met": 90}, {"met": 80}, {"met": 10}]
    taken = first_feasible(study(8, trials), 2)
    assert taken.feasible.tolist() == [False, True, True, False] and taken.infeasible.tolist() == [True] + [False] * 3
    assert curve_of([taken], TARGET).points[0].steps.value == 80
