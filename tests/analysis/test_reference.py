"""Published curves: the files that hold them, and how near measured ones come to them."""
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from hvdscale.analysis import published as box
from hvdscale.analysis.critical_batch_fit import HYPERBOLA, fit_critical_batch
from hvdscale.analysis.curves import BatchEstimate, CurvePoint, curve_of
from hvdscale.analysis.reference import Fidelity, NoMatch, Reference, against, ordering_of
from hvdscale.analysis.report_data import analyse
from hvdscale.analysis.steps import Estimate
from hvdscale.analysis.studies import studies_of
from hvdscale.analysis.trials import JobKey, read_trials
from hvdscale.errors import UsageError
from hvdscale.report.drawing import render
from hvdscale.report.table import as_csv, as_text
from hvdscale.target import Target
from tests.factories.logs import log, trial
from tests.factories.shown import beside_published
from tests.factories.studies import drawn, studied

MARKS = {"read", "dig", "fit", "mem"}


def measured(steps, dataset="mnist", model="simple_cnn", optimizer="nesterov", target="val/error<0.01", size=55000,
             b_crit=None, perfect=None, width=1.2, runs=3, b_crit_ends=None):
    """A curve as analysis.curves makes it, as far as it is held against published ones; steps: {batch: steps}, inf and
    (inf, last step) not met."""
    def point(batch, value):
        value, beyond = value if isinstance(value, tuple) else (value, math.nan)
        ends = (value / width, value * width) if math.isfinite(value) else (beyond, math.inf)
        return SimpleNamespace(global_batch=batch, steps=Estimate(value, *ends, runs, beyond), keys=())
    fit = None
    if b_crit is not None:
        fit = SimpleNamespace(b_crit=Estimate(b_crit, *(b_crit_ends or (b_crit / 2, b_crit * 2)), 1))
    return SimpleNamespace(
        workload=JobKey(dataset, model, "", optimizer, size), target=Target.parse(target), confidence=0.95,
        points=tuple(point(*pair) for pair in steps.items()),
        regimes=SimpleNamespace(fit=fit, perfect_until=BatchEstimate(perfect), maximum_useful=BatchEstimate(None)))


def mnist():
    return Reference("shallue2019").curves[0]


def published_steps():
    return dict(zip(map(int, mnist().batches), mnist().steps))


@pytest.mark.parametrize("name", box.names())
def test_every_publication_says_where_its_numbers_are_from(name):
    record, reference = box.read(name), Reference(name)
    assert record["mark"] in MARKS and reference.source and reference.obtained and reference.title
    assert reference.curves or reference.jobs


@pytest.mark.parametrize("published", [curve for name in box.names() for curve in Reference(name).curves],
                         ids=lambda curve: curve.label)
def test_the_published_hyperbolas_are_fits_of_the_published_points(published):
    estimates = [Estimate(steps, steps, steps, 1) for steps in published.steps]
    found = fit_critical_batch(published.batches.tolist(), estimates, shapes=[HYPERBOLA])
    assert found.b_crit.value == pytest.approx(published.b_crit, rel=0.07)
    assert found.s_min.value == pytest.approx(published.s_min, rel=0.03)
    assert found.rms_log2 == pytest.approx(published.rms_log2, abs=0.015)
    assert (published.low < published.steps).all() and (published.steps <= published.high).all()
    assert (np.diff(published.batches) > 0).all()


def test_epochs_and_examples_become_steps():
    resnet, bert, *_ = Reference("mlperf").curves
    assert resnet.steps[0] == pytest.approx(35 * 1281167 / 1632)
    assert bert.steps[0] == pytest.approx(2.55e6 / 256)
    assert resnet.low[0] < 34 * 1281167 / 1632 and resnet.high[0] < 36 * 1281167 / 1632      # an epoch, and the mean's


@pytest.mark.parametrize("off, b_crit, within, passed", [(1, 437, 10, True), (1.5, 200, 7, False)])
def test_a_curve_that_equals_the_published_one_passes_and_one_off_at_3_of_10_batches_fails(off, b_crit, within, passed):
    steps = {batch: value * (off if at < 3 else 1) for at, (batch, value) in enumerate(published_steps().items())}
    found = against(measured(steps, b_crit=b_crit), mnist())
    assert found.counted("within") == found.counted("covered") == (within, 10) and not found.remarks
    assert [point.log2_apart for point in found.points] == pytest.approx([math.log2(off)] * 3 + [0] * 7)
    assert [mark.passed for mark in found.marks] == [passed] * 3
    assert found.marks[1].found == pytest.approx(b_crit / 437)


def test_reading_errors_of_published_values_count_in_the_coverage():
    off = {batch: value * 2 ** 0.14 for batch, value in published_steps().items()}
    further = {batch: value * 2 ** 0.16 for batch, value in published_steps().items()}
    assert against(measured(off, width=1.0), mnist()).counted("covered") == (10, 10)
    assert against(measured(further, width=1.0), mnist()).counted("covered") == (0, 10)


def test_published_batches_are_interpolated_but_not_extrapolated():
    found = against(measured({64: 1300, 256: 470, 60000: 140}), mnist())
    assert [point.interpolated for point in found.points] == [True, True] and found.beyond == (60000,)
    assert found.points[0].published == pytest.approx(math.sqrt(2500 * 680))


def test_a_batch_that_was_not_met_counts_only_where_it_was_run_for_long_enough():
    found = against(measured({32: (math.inf, 2600), 128: (math.inf, 2000), 512: 320}), mnist())
    assert [point.within for point in found.points] == [None, False, True]
    assert found.counted("within") == (1, 2)


def test_batches_that_never_met_the_target_are_misses_of_the_coverage_mark():
    curve = measured({batch: (math.inf, 5 * steps) for batch, steps in published_steps().items()})
    for point in curve.points:              # a few trials met it: the interval begins below what most were run for
        point.steps = replace(point.steps, low=point.steps.beyond / 5)
    found = against(curve, mnist())
    assert found.counted("within") == (0, 10) and found.counted("covered") == (0, 10)
    assert [mark.passed for mark in found.marks] == [False, None, False]


def test_an_interval_covers_only_where_it_has_an_upper_end():
    open_ended, too_slow = measured(published_steps()), measured({32: 40_000})
    for curve in (open_ended, too_slow):
        for point in curve.points:
            point.steps = replace(point.steps, high=math.inf)
    found = against(open_ended, mnist())
    assert found.counted("within") == (10, 10) and found.counted("covered") == (0, 0)
    assert found.marks[2].passed is None
    assert any("no upper end" in note for note in beside_published([open_ended], "shallue2019").tables[0].notes)
    assert against(too_slow, mnist()).counted("covered") == (0, 1)
    assert against(measured(published_steps(), runs=1), mnist()).counted("covered") == (0, 0)


@pytest.mark.parametrize("b_crit, ends, passed, said", [
    (437, (251, math.inf), None, None), (4370, (2000, math.inf), False, "B_crit is at least 4.58 times"),
    (math.inf, (2000, math.inf), False, "B_crit is at least 4.58 times"), (0.0, (0.0, 600), None, None),
    (50, (0.0, 100), False, "B_crit is at most 0.23 times")])
def test_a_critical_batch_with_an_open_end_can_fail_its_mark_and_never_pass_it(b_crit, ends, passed, said):
    curve = measured(published_steps(), b_crit=b_crit, b_crit_ends=ends)
    assert against(curve, mnist()).marks[1].passed is passed
    text = " ".join(beside_published([curve], "shallue2019").summary)
    assert said in text if said else "B_crit is" not in text


@pytest.mark.parametrize("changed, said", [
    ({"target": "val/error<0.02"}, "published to val/error<0.01, here to val/error<0.02"),
    ({"target": "test/error<0.01"}, "here to test/error<0.01"),
    ({"optimizer": "adam"}, "published for nesterov, here adam"),
    ({"size": 13750}, "published with 55,000 training examples, here 13,750")])
def test_another_target_optimizer_or_training_set_is_not_compared_and_said(changed, said):
    curve = measured(published_steps(), **changed)
    found = against(curve, mnist())
    assert isinstance(found, NoMatch) and said in "; ".join(found.why)
    views = beside_published([curve], "shallue2019")
    assert not views.tables and "Not compared" in views.summary[0] and said in views.summary[0]
    assert [figure.name for figure in views.figures] == [
        "shape-shallue2019-mnist-simple-cnn-nesterov-55000-examples-val-error-below-0.02"
    ] * (changed.get("target") == "val/error<0.02")


def test_of_another_target_the_shapes_are_shown_and_it_is_said_what_would_do(worded):
    curve = measured({batch: 3 * steps for batch, steps in published_steps().items()}, target="val/error<0.02")
    view = beside_published([curve, curve], "shallue2019")
    [figure], [said] = view.figures, view.summary
    worded(said, about="over its")
    assert "with --target 'val/error<0.01'" in said
    from matplotlib.figure import Figure as Canvas
    axes = Canvas().add_subplot()
    figure.draw(axes)
    lines = {line.get_label(): line for line in axes.get_lines()}
    published = lines["published: MNIST Simple CNN, to val/error<0.01"]
    assert dict(published.get_xydata())[1] == pytest.approx(1.0) and "here, to val/error<0.02" in lines
    assert axes.get_ylabel() == "steps / steps at B = 1" and min(axes.get_xticks()) == 1


@pytest.mark.parametrize("changed, said", [
    ({"target": "val/error<=0.01"}, "published to val/error<0.01, here to val/error<=0.01"),
    ({"size": 54000}, "published with 55,000 training examples, here 54,000")])
def test_a_difference_that_bears_little_is_said_beside_the_figures(changed, said):
    curve = measured(published_steps(), **changed)
    assert isinstance(against(curve, mnist()), Fidelity)
    assert any(said in text for text in beside_published([curve], "shallue2019").summary)
    assert isinstance(against(measured(published_steps(), size=0), mnist()), Fidelity)


def test_another_model_is_passed_over_and_what_there_is_is_named(worded):
    [said] = beside_published([measured({32: 100}, model="fc")], "shallue2019").summary
    worded(said, about="nothing to")
    assert "MNIST Simple CNN" in said and "LM1B LSTM" in said


def test_the_views_are_a_figure_two_tables_and_sentences():
    steps = {8: 11000, 32: 2400, 64: 1300, 128: 900, 512: 330, 2048: (math.inf, 900)}
    views = beside_published([measured(steps, b_crit=400)], "shallue2019")
    [figure], [points, marks] = views.figures, views.tables
    assert render(figure, "svg").startswith(b"<?xml") and "MNIST Simple CNN" in figure.title
    said = " ".join(views.summary)
    assert all(part in said for part in ("5 of 6 batch sizes", "83%", "0.92 times"))
    shown = as_text(points)
    assert "~64" in shown and "> 900" in shown and "+0.40" in shown and max(map(len, shown.splitlines())) <= 100
    assert as_csv(points).splitlines()[0].startswith("global_batch,published_steps,published_steps_low")
    assert "B_crit over published" in as_text(marks)


def test_sgd_and_nesterov_are_ordered_where_both_were_measured():
    [ordering] = Reference("shallue2019").orderings
    job = dict(dataset="cifar_10", model="resnet_8", target="val/error<0.3", size=45000)
    curves = [measured({16: 9000}, optimizer=name, perfect=end, **job) for name, end in (("sgd", 16), ("nesterov", 64))]
    mark = ordering_of(curves, ordering)
    assert mark.found == 4 and mark.passed is False
    assert ordering_of(curves[:1], ordering) is None
    assert any("short of the factor of 8 asked for" in text for text in beside_published(curves, "shallue2019").summary)


@pytest.mark.parametrize("b_crit, ends, said", [
    (437, None, "B_crit 437 (220-870) to"), (4020, (251, math.inf), "B_crit at least 250 to"),
    (math.inf, (251, math.inf), "B_crit at least 250 to"), (0.0, (0.0, 251), "B_crit at most 250 to"),
    (400, (0.0, math.inf), None)])
def test_of_another_model_on_the_same_data_the_critical_batch_or_its_known_end_is_only_told(b_crit, ends, said, worded):
    curve = measured({32: 100}, b_crit=b_crit, b_crit_ends=ends)
    [text] = beside_published([curve], "mccandlish2018", {curve.workload: 800.0}).summary
    worded(text, about="critical batch")
    assert "on its model" in text
    assert "noise scale of 800" in text and "4,020" not in text
    assert said in text if said else "B_crit" not in text


def test_a_section_of_repeats_is_held_against_the_published_curve_as_well():
    trials = [trial(10 * batch + seed, (0, steps // 2, steps), (0.9, 0.5, 0.005), batch=batch, seed=seed,
                    dataset="mnist", model="simple_cnn", target="val/error<0.01", train_examples=55000)
              for batch, steps in ((32, 2400), (128, 700), (512, 330)) for seed in (0, 1)]
    [group] = analyse(read_trials(log(*trials)))
    curve = group.sections[0].batches
    views = beside_published([curve], "shallue2019")
    assert "3 of 3 batch sizes (100%" in " ".join(views.summary)
    assert views.tables[0].rows[0].trials == (("made.h5", 320), ("made.h5", 321))
    [group] = analyse(read_trials(log(trial(target=None))))
    assert group.sections[0].batches is None


def test_an_unknown_publication_is_an_error_naming_the_known_ones():
    with pytest.raises(UsageError, match="shallue2020.*\n.*mccandlish2018.*\n.*mlperf.*\n.*shallue2019"):
        beside_published([], "shallue2020")


def test_a_search_is_held_against_the_published_one_at_as_many_trials(worded):
    """The published best is one of 100 trials, so that of eight lies above it by what 92 more trials would find."""
    made = [drawn(100 * at + number, steps, batch=batch, dataset="fashion_mnist", model="simple_cnn",
                  train_examples=55000) for at, (batch, fewest) in enumerate(((128, 700), (512, 400)))
            for number, steps in enumerate(range(fewest, fewest + 800, 100))]
    curve = curve_of(studies_of([studied(*made)]), Target.parse("val/error<0.1"))
    fashion = next(one for one in Reference("shallue2019").curves if one.dataset == "fashion_mnist")
    found = against(curve, fashion)
    assert [point.measured.value for point in found.points] == [700, 400]
    for point, study in zip(found.points, (one.study for one in curve.points)):
        assert point.equal == CurvePoint(study, curve.target, n=fashion.trials).steps and point.equal.extrapolated
        assert point.equal.value < 0.9 * point.measured.value
        assert point.log2_apart == pytest.approx(math.log2(point.equal.value / point.published))
    table = beside_published([curve], "shallue2019").tables[0]
    assert "at equal trials" in as_text(table)
    worded(table.notes, about="best of")
