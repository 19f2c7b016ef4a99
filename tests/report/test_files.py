"""Names of a report's files: what they tell, and that they are the same in every report."""
import csv
import itertools
import json

import pytest

from hvdscale.analysis.trials import JobKey
from hvdscale.report.document import LONGEST_FILE, section_name
from hvdscale.report.pages import make
from hvdscale.report.views.curves import family_figures
from hvdscale.target import Target
from tests.factories.logs import log, save, trial
from tests.report.test_study_figures import NET, TARGET, curve_of, replace, sweep
from tests.analysis.test_reference import measured
from tests.factories.shown import beside_published

LONG = "a_data_set_with_a_long_name", "a_model_with_an_even_longer_name_than_that_of_the_data_set"
TARGETS = ("val/error<0.01", "val/error<0.3", "val/error<=0.3", "val/error>0.3", "val/error>=0.3", "val/error<-0.3",
           "val/top_5_error<0.3", "test/error<0.3")


def files(folder, targets, *trials, **rest):
    """{file name: its rows} of the tables of a report on trials."""
    path = save(log(*trials, **rest), f"{folder}.h5")
    make([path], list(map(Target.parse, targets)), folder, formats=("csv",), echo=lambda text: None)
    found = {}
    for place in (folder / "tables").iterdir():
        with open(place, newline="") as file:
            found[place.name] = list(csv.DictReader(file))
    return found


def made(number, **rest):
    return trial(number, (0, 100, 200), (0.9, 0.2, 0.005), **{"dataset": LONG[0], "model": LONG[1], **rest})


def test_a_file_does_not_depend_on_other_targets_in_the_report(tmp_path):
    both = files(tmp_path / "both", ("val/error<0.3", "val/error<0.01"), made(1), made(2, seed=1))
    for at, target in enumerate(("val/error<0.01", "val/error<0.3")):
        alone = files(tmp_path / str(at), (target,), made(1), made(2, seed=1))
        assert alone and alone.items() <= {name: [
            {key: value.replace("both.h5", f"{at}.h5") for key, value in row.items()} for row in rows]
            for name, rows in both.items()}.items()
        assert all(row["target"] == target for rows in alone.values() for row in rows)
    without = files(tmp_path / "without", (), made(1, target=None))
    assert without and all(row["target"] == "" for rows in without.values() for row in rows)


def test_a_file_has_the_same_name_whatever_other_workloads_are_in_the_report(tmp_path):
    differ = [{}, {"train_examples": 9}, {"model_args": {"width": 2}}, {"model_args": {"width": 4}},
              {"optimizer": "adam"}]
    alone = [set(files(tmp_path / str(at), ("val/error<0.3",), made(1, **one))) for at, one in enumerate(differ)]
    together = files(tmp_path / "all", ("val/error<0.3",), *(made(at, **one) for at, one in enumerate(differ, 1)))
    assert set(together) == set.union(*alone) and len(together) == sum(map(len, alone))


def test_a_long_name_keeps_its_target_and_tells_apart_what_was_cut():
    workloads = [JobKey(LONG[0], LONG[1] + tail, "", "nesterov_momentum", 50000) for tail in ("", "_a", "_b")]
    names = [section_name(workload, Target.parse("val/error<0.01")) for workload in workloads]
    assert len(set(names)) == len(names)
    assert all(name.startswith("a-data-set") and name.endswith("-val-error-below-0.01") for name in names)


def test_targets_that_differ_have_names_that_differ():
    names = {section_name(NET, Target.parse(text)) for text in TARGETS}
    assert len(names) == len(TARGETS)
    assert {name.removeprefix("made-net-nesterov-1000-examples-") for name in names} >= {
        "val-error-below-0.3", "val-error-at-most-0.3", "val-error-at-least-0.3", "val-error-below-minus-0.3"}


def test_names_of_files_are_no_longer_than_file_systems_take(tmp_path):
    metric = "val/" + "a_metric_with_a_name_of_many_words_" * 5
    searched = [trial(at, peak_lr=0.1 * at, plan=json.dumps({"archive": {"path": "made"}})) for at in (1, 2, 3)]
    found = files(tmp_path / "long", (f"{metric}<0.3",), *searched, metric=metric)
    assert len(found) > 1 and max(map(len, found)) <= LONGEST_FILE + len(".csv")


def test_family_figures_keep_their_names_beside_other_families():
    curves = [curve_of(sweep(replace(NET, dataset=data, optimizer=name)), TARGET)
              for data, name in itertools.product("ab", ("sgd", "adam"))]
    alone = {figure.name for figure in family_figures(curves[:2])}
    assert alone < {figure.name for figure in family_figures(curves)}


@pytest.mark.parametrize("kind", ["tables", "figures"])
def test_what_is_beside_a_publication_has_the_same_name_whatever_else_is(kind):
    mnist, fashion = measured({64: 1300, 256: 470}), measured({64: 1300, 256: 470}, dataset="fashion_mnist",
                                                              target="val/error<0.1")
    both = {one.name for one in getattr(beside_published([mnist, fashion], "shallue2019"), kind)}
    for curve in (mnist, fashion):
        alone = getattr(beside_published([curve], "shallue2019"), kind)
        assert alone and {one.name for one in alone} < both
        assert kind == "figures" or {one.target for one in alone} == {curve.target}
