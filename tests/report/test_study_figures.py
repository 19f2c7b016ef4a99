"""Figures from curves and studies: what they show, whatever the trials are."""
import re
from dataclasses import replace

import numpy as np
import pytest

from hvdscale.analysis.search import (DIVERGED, EFFECTIVE, LEARNING_RATE, MISSED, MOMENTUM, REACHED, STOPPED,
                                      Space, best_of_trials, best_points, many_valued, split_by)
from hvdscale.analysis.budgets import Budget, best_under, both_readings
from hvdscale.analysis.curves import curve_of
from hvdscale.analysis.best_of_n import best_of_n
from hvdscale.analysis.studies import Study, outcomes
from hvdscale.analysis.trials import JobKey
from hvdscale.formatting.numbers import number as written
from hvdscale.log.schema import Status
from hvdscale.report import drawing
from hvdscale.report.drawing import HUES, MARKERS, MOST_NAMED, plain, render
from hvdscale.report.views.landscapes import landscape_figures
from hvdscale.report.pages import document_of_logs
from hvdscale.report.views.budgets import base_rate_figure, best_under_figure
from hvdscale.report.views.curves import (EXAMPLES, NORMALISED, CurvePanel, best_of_figure, best_panels, budgets_figure,
                                          curve_panels, curves_figure, family_figures, labels_of, style_of,
                                          targets_figure, trials_figure, workload_figures)
from hvdscale.target import Target
from tests.analysis.test_landscapes import landscapes
from tests.factories.logs import study as logs_of_a_study

TARGET = Target.parse("val/error<0.1")
NET = JobKey("made", "net", "", "nesterov", 1000)
BATCHES = (8, 16, 32, 64, 128, 256)


class Made:
    """The evaluations of made trials: [(steps, errors), ...]."""

    columns = ("val/error",)

    def __init__(self, trials, batch):
        self.counts = np.array([len(steps) for steps, _ in trials], int)
        self.first = np.concatenate([[0], np.cumsum(self.counts)])
        step = np.concatenate([np.empty(0), *(steps for steps, _ in trials)]).astype(float)
        error = np.concatenate([np.empty(0), *(errors for _, errors in trials)]).astype(float)
        self.values = {"step": step, "examples": step * batch, "train_seconds": step / 100, "val/error": error}
        self.outcomes = {}

    def read(self, name):
        return self.values[name]


def study(batch, trials, workload=NET):
    """A study of trials given as mappings: met (steps to target; inf: never), last, lr, momentum, smoothing, status."""
    count = len(trials)

    def of(name, default):
        return np.array([trial.get(name, default) for trial in trials], float).reshape(count)
    rows = []
    for trial in trials:
        steps = np.arange(0, trial.get("last", 200) + 1, trial.get("every", 10))
        met = trial.get("met", np.inf)
        rows.append((steps, np.where(steps >= met, 0.05, np.where(2 * steps >= met, 0.3, trial.get("floor", 0.5)))))
    return Study(workload, batch, (f"made-{batch}.h5",), np.zeros(count, int), np.arange(count),
                 of("status", Status.COMPLETE).astype(np.int8), of("pruned", 0).astype(bool), np.zeros(count, bool),
                 np.arange(count), of("last", 200).astype(int),
                 {"learning_rate": of("lr", 0.1), "momentum": of("momentum", np.nan),
                  "label_smoothing": of("smoothing", np.nan)}, Made(rows, batch), np.full(count, "{}", object))


def sweep(workload=NET, batches=BATCHES, trials=12, best_lr=lambda batch: 0.01 * batch ** 0.5, s_min=40, seed=0):
    """Studies whose steps are s_min (1 + 64 / B), more the farther a trial's rate is from the best."""
    random = np.random.default_rng(seed)
    found = []
    for batch in batches:
        made = []
        for at in range(trials):
            lr, momentum = np.exp(random.uniform(np.log(1e-3), np.log(1))), 1 - np.exp(random.uniform(-5, -1))
            off = abs(np.log(lr / (1 - momentum) / (10 * best_lr(batch))))
            needs = 10 * round(s_min * (1 + 64 / batch) * (1 + 0.3 * off ** 2) / 10)
            made.append({"lr": lr, "momentum": momentum, "smoothing": (0.0, 0.1)[at % 2], "last": 1000,
                         "met": needs if needs <= 1000 else np.inf,
                         "status": Status.INFEASIBLE if off > 3.5 else Status.COMPLETE})
        found.append(study(batch, made, workload))
    return found


def axes_of(figure, laid_out=False):
    """The figure drawn on bare axes, to be looked at."""
    from matplotlib.figure import Figure as Canvas
    canvas = Canvas()
    axes = [canvas.add_subplot(figure.panels, 1, at + 1) for at in range(figure.panels)]
    figure.draw(*axes)
    if laid_out:
        canvas.draw_without_rendering()
    return axes


def best_figure(curve, what):
    return best_panels([("", curve)], what)


def line(axes, label):
    """The data of the line of this label."""
    [found] = [one for one in axes.get_lines() if one.get_label() == label and len(one.get_xdata())]
    return np.asarray(found.get_xdata(), float), np.asarray(found.get_ydata(), float)


def labels(axes):
    return list(dict.fromkeys(axes.get_legend_handles_labels()[1]))


@pytest.fixture(scope="module")
def nesterov():
    return curve_of(sweep(), TARGET)


# Steps to target

def test_a_curve_shows_its_steps_and_perfect_scaling_from_its_start(nesterov):
    [axes] = axes_of(curves_figure([nesterov]))
    steps = [point.steps.value for point in nesterov.points]
    shown = [np.asarray(one.get_ydata(), float) for one in axes.get_lines() if len(one.get_xdata()) == len(BATCHES)]
    assert any(np.allclose(values, steps) for values in shown)
    dashed = [one for one in axes.get_lines() if one.get_linestyle() == "--" and len(one.get_xdata())]
    assert np.allclose(dashed[0].get_ydata(), [steps[0], steps[0] * BATCHES[0] / BATCHES[-1]])
    assert {"perfect scaling", "maximum useful batch: 128"} <= {*labels(axes)}
    [axes] = axes_of(curves_figure([curve_of(sweep(batches=BATCHES[:5]), TARGET)]))
    assert "maximum useful batch: ≥ 128" in labels(axes)


def test_normalised_curves_start_at_one_at_the_smallest_batch_that_all_have():
    wide, narrow = sweep(), sweep(replace(NET, model="narrow"), BATCHES[1:], s_min=80)
    [axes] = axes_of(curves_figure([curve_of(wide, TARGET), curve_of(narrow, TARGET)], kind=NORMALISED))
    curves = [one for one in axes.get_lines() if len(one.get_xdata()) > 2]
    for found in curves:
        batches, values = (np.asarray(data, float) for data in found.get_data())
        at = np.abs(np.log2(batches / 16)).argmin()             # marks are set a little apart
        assert values[at] == pytest.approx(1) and batches[at] == pytest.approx(16, rel=0.2)
    assert len(curves) == 2 and "B = 16" in axes.get_ylabel()


def test_examples_are_one_where_they_are_fewest(nesterov):
    [axes] = axes_of(curves_figure([nesterov], kind=EXAMPLES))
    [values] = [np.asarray(one.get_ydata(), float) for one in axes.get_lines() if len(one.get_xdata()) == len(BATCHES)]
    assert values.min() == pytest.approx(1)


def test_a_line_breaks_where_the_target_was_not_met_and_has_a_cross_where_all_diverged(worded):
    found = sweep(trials=4)
    found[2] = study(32, [{"met": np.inf, "last": 300}] * 3)
    found[-1] = study(256, [{"status": Status.INFEASIBLE}] * 3)
    figure = curves_figure([curve_of(found, TARGET)])
    [axes] = axes_of(figure)
    [values] = [np.asarray(one.get_ydata(), float) for one in axes.get_lines() if len(one.get_xdata()) == len(BATCHES)]
    assert np.isnan(values[[2, -1]]).all() and np.isfinite(np.delete(values, [2, -1])).all()
    [open_mark] = [one for one in axes.get_lines() if one.get_marker() == "^" and len(one.get_xdata())]
    assert open_mark.get_data()[0][0] == 32 and open_mark.get_data()[1][0] == 300
    worded(labels(axes), about="not met")
    assert "open triangle" in figure.caption


def test_several_targets_go_from_easy_to_strict_and_missed_ones_are_named():
    targets = [Target.parse(f"val/error<{value}") for value in (0.01, 0.1, 0.4)]
    figure = targets_figure([curve_of(sweep(), target) for target in targets])
    [axes] = axes_of(figure)
    assert labels(axes)[1:3] == ["val/error<0.4", "val/error<0.1"]
    assert "val/error<0.01" in figure.caption


def test_curves_are_told_apart_by_what_differs_alone():
    curves = [curve_of(sweep(replace(NET, model=model, optimizer=optimizer)), TARGET)
              for model in ("a", "b") for optimizer in ("sgd", "adam")]
    assert labels_of(curves) == ["a sgd", "a adam", "b sgd", "b adam"]
    assert labels_of(curves[:1]) == [str(TARGET)]


def test_curves_of_a_family_differ_in_colour_and_in_mark():
    for count in range(2, len(HUES) + 1):
        for part in (0, 1):
            assert len({style_of(at, count)[part] for at in range(count)}) == count
    assert "D" not in MARKERS and "^" not in MARKERS            # they stand for one run, and for no value


def test_of_35_workloads_in_a_figure_some_are_named():
    curves = [curve_of(sweep(replace(NET, dataset=f"data {at}"), BATCHES[:3], 3, seed=at), TARGET) for at in range(35)]
    [axes] = axes_of(curves_figure(curves, kind=NORMALISED))
    assert sum(label.startswith("data") for label in labels(axes)) == MOST_NAMED
    assert {figure.name for figure in family_figures(curves)} == {
        "datasets-net-nesterov-normalised", "datasets-net-nesterov-examples"}


def test_families_are_of_workloads_that_differ_in_one_thing():
    curves = [curve_of(sweep(replace(NET, model=model, optimizer=optimizer)), TARGET)
              for model, optimizer in (("a", "sgd"), ("b", "sgd"), ("a", "adam"))]
    names = [figure.name for figure in family_figures(curves)]
    target = "1000-examples-val-error-below-0.1"
    assert names == [f"models-made-sgd-{target}-steps", f"models-made-sgd-{target}-normalised",
                     f"optimizers-made-a-{target}-steps", f"optimizers-made-a-{target}-normalised"]
    assert not [*family_figures(curves[1:])]


def boxes(parts, canvas):
    """Where parts of a drawing lie, from left to right."""
    return sorted((part.get_window_extent(canvas.canvas.get_renderer()) for part in parts), key=lambda box: box.x0)


@pytest.mark.parametrize("panels", [1, 6])
@pytest.mark.parametrize("kind", [{}, {"kind": NORMALISED}])
def test_arrows_are_drawn_whole(panels, kind):
    early = [study(batch, [{"met": max(1, 1280 // batch), "last": 2000, "every": 2000 // batch, "lr": 0.1 * at}
                           for at in (1, 2, 3)]) for batch in (8, 16, 32)]
    unmet = study(4, [{"met": np.inf, "last": 3000, "lr": 0.1 * at} for at in (1, 2, 3)])
    curve = curve_of([unmet, *early], TARGET)
    figure = curve_panels([CurvePanel(f"{at}", [curve]) for at in range(panels)], "Steps to target", **kind)
    canvas = drawing._laid_out(figure)
    for axes in canvas.axes:
        assert axes.texts
        for box in boxes(axes.texts, canvas):
            assert axes.bbox.y0 <= box.y0 and box.y1 <= axes.bbox.y1


def test_learning_rates_over_six_decades_have_labels_that_stand_apart():
    trials = [{"lr": 10.0 ** power, "momentum": 0.9 + 0.01 * power, "met": 50} for power in np.linspace(-4.9, 0.9, 9)]
    canvas = drawing._laid_out(trials_figure(curve_of([study(batch, trials) for batch in BATCHES[:4]], TARGET)))
    for axes in canvas.axes:
        labels = boxes([label for label in axes.xaxis.get_ticklabels() if axes.get_xlim()[0] <= label.get_position()[0]
                        <= axes.get_xlim()[1]], canvas)
        assert len(labels) > 1 and all(one.x1 + 14 < other.x0 for one, other in zip(labels, labels[1:]))


# What a search found

def test_the_best_points_have_the_fewest_steps_and_a_range(nesterov):
    for point, best in zip(nesterov.points, best_points(nesterov, LEARNING_RATE)):
        found = [(steps, rate) for steps, rate, complete in zip(
            outcomes(point.study, TARGET).steps, point.study.metaparameters["learning_rate"], point.study.feasible)
            if complete]
        fewest, value = min(found, key=lambda one: one[0])
        near = [rate for steps, rate in found if steps <= 1.2 * fewest]
        assert (best.global_batch, best.value) == (point.global_batch, value)
        assert (best.low, best.high, len(best.keys)) == (min(near), max(near), len(near))
        assert best.keys[0] == point.study.key(point.best)
    rate, momentum, effective = (best_points(nesterov, name) for name in (LEARNING_RATE, MOMENTUM, EFFECTIVE))
    for eta, mu, both in zip(rate, momentum, effective):
        assert both.value == pytest.approx(eta.value / (1 - mu.value)) and both.keys[0] == eta.keys[0]


def test_the_heuristics_start_at_the_smallest_batch_that_met_the_target(nesterov):
    [axes] = axes_of(best_figure(nesterov, EFFECTIVE))
    first = best_points(nesterov, EFFECTIVE)[0].value
    ratio = BATCHES[-1] / BATCHES[0]
    assert np.allclose(line(axes, "linear heuristic"), [[BATCHES[0], BATCHES[-1]], [first, first * ratio]])
    assert np.allclose(line(axes, "square root heuristic")[1], [first, first * ratio ** 0.5])
    assert axes.get_xlabel().startswith("global batch") and axes.get_ylabel() == "learning rate / (1 - momentum)"
    [axes] = axes_of(best_figure(nesterov, MOMENTUM))           # momentum is shown as its distance from one
    assert axes.get_ylabel() == "1 - momentum" and "linear heuristic" not in labels(axes)
    assert np.allclose(line(axes, "best momentum")[1], [1 - one.value for one in best_points(nesterov, MOMENTUM)])


def test_figures_of_what_was_not_searched_are_left_out(worded):
    trials = [{"lr": 0.01 * at, "met": 10 * at} for at in range(1, 9)]
    curve = curve_of([study(batch, trials) for batch in BATCHES], TARGET)
    assert best_figure(curve, EFFECTIVE) is None and best_figure(curve, MOMENTUM) is None
    assert best_figure(curve, LEARNING_RATE) is not None and budgets_figure(curve) is None
    worded(axes_of(trials_figure(curve))[0].get_ylabel())
    held = [study(batch, [{**trial, "momentum": 0.9} for trial in trials]) for batch in BATCHES]
    names = {figure.name for figure in workload_figures([curve_of(held, TARGET)]) if figure}
    assert "best-learning-rate" in names and "best-momentum" not in names


def test_trials_are_reached_missed_stopped_or_diverged_within_the_budget():
    trials = [{"met": 50, "momentum": 0.9}, {"met": 150, "momentum": 0.9}, {"met": np.inf, "momentum": 0.9},
              {"last": 80, "momentum": 0.9, "status": Status.INCOMPLETE, "pruned": True},
              {"momentum": 0.9, "status": Status.INFEASIBLE}, {"momentum": 0.9, "status": Status.RUNNING}, {"met": 20}]
    made = study(8, trials)
    kinds = {most: Space(made, TARGET, LEARNING_RATE, MOMENTUM, most).kind.tolist() for most in (60, 120, np.inf)}
    assert kinds[np.inf] == [REACHED, REACHED, MISSED, STOPPED, DIVERGED]
    assert kinds[120] == [REACHED, MISSED, MISSED, STOPPED, DIVERGED]
    assert kinds[60] == [REACHED, MISSED, MISSED, MISSED, DIVERGED]             # seen for longer than 60 steps
    space = Space(made, TARGET, LEARNING_RATE, MOMENTUM, 60)
    assert space.best == 0 and space.steps.tolist()[:3] == [50, 60, 60]
    assert Space(made, TARGET, LEARNING_RATE, MOMENTUM, 40).best is None


def test_the_legend_names_the_fit_and_the_bands_and_intervals_have_caps(nesterov):
    [axes] = axes_of(curves_figure([nesterov]))
    fit = nesterov.regimes.fit
    assert {f"fit: S_min {written(fit.s_min.value, 2)}, B_crit {written(fit.b_crit.value, 2)}",
            "bands: their intervals"} <= set(labels(axes))
    bars = [one for one in axes.get_lines() if one.get_marker() == "_"]
    assert sorted(one.get_xdata()[0] for one in bars) == sorted(nesterov.batches)


def test_the_axes_of_trials_say_what_they_show(nesterov):
    every = axes_of(trials_figure(nesterov))
    assert "equal effective rate" in labels(every[0])
    assert all(axes.get_xlabel() == "learning rate η" and axes.get_ylabel() == "1 - momentum" for axes in every)
    [star] = [one for one in every[0].get_lines() if one.get_marker() == "*" and len(one.get_xdata())]
    first = nesterov.points[0]
    space = Space(first.study, TARGET, LEARNING_RATE, MOMENTUM)
    best = space.keys.index(first.study.key(first.best))
    assert star.get_xdata()[0] == space.x[best] and star.get_ydata()[0] == pytest.approx(1 - space.y[best])


def test_budgets_of_steps_and_of_epochs_are_one_at_the_middle_batch(nesterov):
    figure = budgets_figure(nesterov)
    assert figure.panels == 6
    titles = [axes.get_title() for axes in axes_of(figure)]
    steps = float(re.search(r", ([\d,.]+) steps", titles[0])[1].replace(",", ""))
    assert any(steps == pytest.approx(2 * point.steps.value, rel=0.01) for point in nesterov.points)


def test_a_split_gives_every_trial_to_one_value(nesterov):
    made = [point.study for point in nesterov.points]
    parts = split_by(made, "label_smoothing")
    assert list(parts) == [0.0, 0.1]
    for at, one in enumerate(made):
        assert (sum(part[at].feasible.astype(int) for part in parts.values()) == one.feasible).all()
        best = [curve_of([part[at]], TARGET).points[0].steps.value for part in parts.values()]
        assert min(best) == nesterov.points[at].steps.value
    scaled = [study(batch, [{"lr": 0.01 * batch, "met": 50}] * 3) for batch in BATCHES]     # no choice within studies
    assert split_by(scaled, "learning_rate") == {} and many_valued(scaled) == ()
    assert split_by(made, "learning_rate") == {}


def test_the_median_best_of_n_is_that_of_the_search(nesterov):
    made = nesterov.points[0].study
    steps = outcomes(made, TARGET).steps[made.feasible].tolist()
    found = best_of_trials(made, TARGET)
    whole = {one.n: one for one in best_of_n(steps, [False] * len(steps))}
    assert [one.n for one in found.curve][-1] == len(steps)
    assert all(one == whole[one.n] for one in found.curve)
    figure = best_of_figure([found])
    assert "median" in figure.caption and "95% interval" in figure.caption
    bars = [one for one in axes_of(figure)[0].get_lines() if set(one.get_xdata()) == {len(steps)}]
    assert any(one.get_ydata().tolist() == [found.best.low, found.best.high] for one in bars)
    assert found.best.low < found.best.value <= found.best.high and found.best.value == min(steps)


# Budgets and base rates

def test_the_best_under_budgets_is_drawn_by_batch(nesterov):
    made = [point.study for point in nesterov.points]
    found = best_under(made, "val/error", True, [Budget(100, "steps"), Budget(1000, "steps")])
    [axes] = axes_of(best_under_figure(found))
    assert labels(axes) == ["100 steps", "1,000 steps"] and axes.get_ylabel() == "validation error"
    first, second = (line.get_xdata() for line in axes.get_lines() if len(line.get_xdata()) == len(made))
    np.testing.assert_allclose(first * second, [one.global_batch ** 2 for one in made])     # one on either side
    assert best_under_figure(None) is None


def test_step_and_epoch_budgets_share_a_scale_and_open_marks_are_named(nesterov, worded):
    made = [point.study for point in nesterov.points]
    steps, epochs = (best_under(made, "val/error", True, budgets) for budgets in (
        [Budget(10, "steps"), Budget(5000, "steps")], [Budget(50, "epochs"), Budget(500, "epochs")]))
    figure = best_under_figure(steps, epochs)
    first, second = axes_of(figure)
    assert first.get_ylim() == second.get_ylim() and first.get_yscale() == second.get_yscale()
    worded(labels(first)[0])
    assert "open mark" in figure.caption
    worded(figure.caption, about="at the")
    assert "at its target" not in figure.caption
    assert not any(label.startswith("open") for label in labels(axes_of(best_under_figure(best_under(
        made, "val/error", True, [Budget(10, "steps")])))[0]))


def test_requested_budgets_are_drawn_else_round_ones(nesterov):
    def drawn(**given):
        found = {figure.name: figure for figure in filter(None, workload_figures([nesterov], **given))}
        under = [name for axes in axes_of(found["best-under-budgets"]) for name in labels(axes)]
        return under, {axes.get_title().partition(", ")[2] for axes in axes_of(found["trials-budgets"])}
    under, trials = drawn(asked=(Budget(200, "steps"), Budget(50, "steps"), Budget(5, "epochs")))
    assert under == ["50 steps", "200 steps", "5 epochs"] and trials == {"200 steps", "5 epochs"}
    under, trials = drawn()
    steps = [name.removesuffix(" steps").replace(",", "") for name in under if name.endswith("steps")]
    assert steps == ["20", "50", "200", "1000"]
    assert all(re.fullmatch(r"[\d,]+ steps|[\d.]+ epochs", one) for one in trials)


def test_the_map_of_base_rates_has_each_trial_at_its_rate_and_frames_the_best(nesterov):
    epochs, steps = both_readings([point.study for point in nesterov.points], "val/error", True)
    figure = base_rate_figure(epochs, steps)
    axes = axes_of(figure)[0]
    frames = [one for one in axes.get_lines() if one.get_markerfacecolor() == "none" and len(one.get_xdata()) > 1]
    assert frames[0].get_xdata().tolist() == epochs.global_batch[list(epochs.best)].tolist()
    assert frames[0].get_ydata().tolist() == epochs.rate[list(epochs.best)].tolist()
    assert axes.get_ylabel() == "learning rate / ((1 - momentum) B)" and base_rate_figure(None) is None


# Whatever the trials are

LAID_OUT = ("steps-batch", "best-learning-rate", "base-rates")       # ticks and all; it takes its time
RATES = [{"lr": 0.1 * at} for at in range(1, 9)]


def at_each_batch(trials, **more):
    return [study(batch, [{**trial, **more} for trial in trials]) for batch in BATCHES]


EDGES = {
    "one batch": [study(8, [{**trial, "met": 50, "momentum": 0.9} for trial in RATES])],
    "one trial": [study(8, [{"met": 50}])],
    "no target met": at_each_batch(RATES), "all infeasible": at_each_batch(RATES, status=Status.INFEASIBLE),
    "NaN alone": at_each_batch(RATES, floor=np.nan), "none ended": at_each_batch([{}] * 3, status=Status.RUNNING),
    "no evaluations": at_each_batch(RATES, last=-1), "met before the first step": at_each_batch(RATES, met=0),
    "a rate of 0 and a momentum of 1": at_each_batch([{}] * 8, lr=0.0, momentum=1.0, met=50),
    "all alike": at_each_batch([{}] * 8, met=50, momentum=0.9)}


@pytest.mark.parametrize("name", EDGES)
def test_whatever_the_trials_are_figures_are_drawn_or_left_out(name):
    curves = [curve_of(EDGES[name], Target.parse(f"val/error<{value}")) for value in (0.1, 0.3)]
    found = [*workload_figures(curves), *family_figures(curves),
             curve_panels([CurvePanel("a", curves[:1]), CurvePanel("b", curves[1:])], "Steps"),
             best_panels([("a", curves[0]), ("b", curves[1])], LEARNING_RATE)]
    for figure in filter(None, found):
        axes_of(figure, laid_out=figure.name in LAID_OUT)


@pytest.fixture(scope="module")
def odd():
    """Every figure of a workload with names that mean something elsewhere."""
    workload = JobKey("<script>alert(1)</script>", "$\\frac{1}{2$_$", '{"<i>": "\\u0000"}', "_&amp;", 1000)
    curves = [curve_of(sweep(workload, BATCHES[:2], 12), Target.parse(f"val/error<{value}")) for value in (0.1, 0.4)]
    other = curve_of(sweep(replace(workload, optimizer="<b>"), BATCHES[:2], 8, seed=1), TARGET)
    return [*filter(None, (*workload_figures(curves), *family_figures([curves[0], other])))]


def of_each_kind(figures):
    """One figure of each way to draw; to render them all takes its time."""
    names = ("steps-batch", "steps-batch-label-smoothing", "best-effective-lr", "trials", "best-of-n",
             "best-under-budgets", "base-rates")
    found = [figure for figure in figures if figure.name in names]
    assert len(found) == len(names)
    return found


def test_names_are_drawn_as_they_stand(odd):
    from xml.etree import ElementTree
    for figure in of_each_kind(odd):
        svg = render(figure, "svg").decode()
        assert "<script" not in svg
        text = "".join(ElementTree.fromstring(svg).itertext())
        if "script" in figure.title:
            assert "<script>alert(1)</script>" in text
    assert re.fullmatch(r"[\w.-]+", "".join(figure.name for figure in odd))


def test_a_name_is_shortened_in_the_middle_and_shown_whatever_it_begins_with():
    assert plain("x" * 30 + "y" * 30) == "x" * 22 + "…" + "y" * 21
    assert plain("_hidden") == " _hidden" and plain("a\nb\x00") == "a�b�"


def test_a_title_that_is_too_long_for_its_figure_takes_two_lines(nesterov):
    title = "Steps to val/error<0.01 against the effective learning rate\nnet"
    canvas = drawing.as_matplotlib(replace(curves_figure([nesterov]), title=title))
    [axes] = canvas.axes
    assert axes.get_title(loc="left").count("\n") == 2
    assert axes._left_title.get_window_extent(canvas.canvas.get_renderer()).x1 <= canvas.bbox.x1


def test_these_are_all_kinds_of_figures(odd):
    """The only list of them among the tests."""
    [(_, [page])] = document_of_logs(list(logs_of_a_study().values())).pages
    names = [figure.name for figure in (*odd, *landscape_figures(landscapes("sqrt")), *page.figures)]
    family = "optimizers-script-alert-1-script-frac-1-2-1000-examples-i-u0000-val-error-below-0.1"
    assert names == [
        "steps-batch", "examples-batch", "steps-batch-targets", "steps-batch-label-smoothing", "best-learning-rate",
        "best-momentum", "best-effective-lr", "trials", "trials-budgets", "best-of-n", "best-under-budgets",
        "base-rates", f"{family}-steps", f"{family}-normalised",
        "lr-landscape", "lr-landscape-loss", "lr-landscape-best",
        "steps-batch", "speedup-weak-32", "efficiency-weak-32", "curve-step", "curve-seconds"]


@pytest.mark.parametrize("name, module", [("trials", "curves"), ("base-rates", "budgets")])
def test_many_trials_are_one_picture_in_an_svg(odd, name, module, monkeypatch):
    [figure] = [one for one in odd if one.name == name]
    single = render(figure, "svg")
    monkeypatch.setattr(f"hvdscale.report.views.{module}.MOST_MARKS", 5)
    figure = replace(figure)                            # has not been drawn before
    crowd = render(figure, "svg")
    assert crowd.count(b"<image ") >= figure.panels and b"<image " not in single
    assert crowd.count(b"<use ") < single.count(b"<use ")
    assert crowd.count(b"<text") == single.count(b"<text")


def test_captions_have_a_formula_and_the_trials_behind_them(odd):
    for figure in odd:
        assert figure.caption.endswith(".") and figure.formula and figure.trials
        assert len(set(figure.trials)) == len(figure.trials)
