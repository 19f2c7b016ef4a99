"""The best batch at a fixed budget: the valley fitted to the best losses, its interval, and the rise beyond it."""
import json
import math

import numpy as np
import pytest

from hvdscale.analysis.quality import LEAST_FITTED, quality_of, valley_of
from hvdscale.analysis.report_data import analyse
from hvdscale.analysis.defaults import Tolerance
from hvdscale.analysis.studies import are_ends_alone, studies_of
from hvdscale.analysis.trials import read_trials
from hvdscale.errors import UsageError
from hvdscale.report.document import Shown, sentences_of
from hvdscale.report.views.budgets import (best_batch_figure, best_of_metrics, find_best_batch, find_quality,
                                           quality_table)
from hvdscale.report.texts import GENERAL
from hvdscale.report.table import as_text
from hvdscale.target import Target
from tests.factories.curves import VALLEYS, valleys_held
from tests.factories.logs import log, trial
from hvdscale.report.subject import Subject

BATCHES, LOSS = (32, 64, 128, 256, 512, 1024, 2048), "val/loss"


def grid(losses, examples=1 << 20, count=8, target=""):
    """A log of runs of as many examples each, evaluated at their end alone: ``count`` rates at each batch."""
    random, made = np.random.default_rng(4), []
    for batch, loss in zip(BATCHES, losses):
        for one in range(count):
            made.append(trial(len(made), [examples // batch], [loss + 0.002 * random.exponential()], batch=batch,
                              seed=one, target=target, peak_lr=0.01 * 2 ** (one - 4)))
            made[-1].row["budget_steps"] = examples // batch
    return log(*made, metric=LOSS)


def fell_and_rose(fall=0.02, rise=0.02):
    """Losses that are lowest at batch 256."""
    x = np.log2(np.array(BATCHES) / 256)
    return 2.5 + np.where(x < 0, fall, rise) * x ** 2


def test_a_valley_is_recovered_from_its_own_curve():
    x = np.log2(BATCHES) - 7.5
    found = valley_of(BATCHES, 2.3 + np.where(x < 0, 0.01, 0.002) * np.abs(x) ** 3)
    assert found.lowest == pytest.approx(2.3, abs=2e-3) and found.best.value == pytest.approx(2 ** 7.5, rel=0.2)
    assert found.best.low <= 2 ** 7.5 <= found.best.high
    low, high = found.within(Tolerance.parse("1%"))
    assert math.log2(high) == pytest.approx(7.5 + (0.023 / 0.002) ** (1 / 3), abs=0.2) and low < found.best.value


def test_of_a_flat_floor_the_best_batch_is_the_middle():
    found = valley_of([2, 5, 12, 28, 64, 160], np.array([1.8455, 1.8271, 1.8259, 1.8336, 1.8373, 1.8758]))
    assert 5 < found.best.value < 28 and found.best.low <= found.best.value <= found.best.high


def test_losses_that_only_rise_have_their_best_batch_at_the_smallest_or_below():
    found = valley_of(BATCHES, 2.0 + 0.1 * np.arange(7.0) ** 3)
    assert found.best.low == 0 and found.best.value < 64 and math.isfinite(found.best.high)
    assert valley_of(BATCHES, -0.1 * np.arange(7.0)).best.high == math.inf
    assert valley_of(BATCHES[:LEAST_FITTED - 1], np.arange(LEAST_FITTED - 1.0)) is None


@pytest.mark.parametrize("shape", VALLEYS)
def test_the_interval_holds_the_best_batch_whatever_the_shape_of_the_valley(shape):
    held, _, close = valleys_held(shape, 8, noise=0.1, sweeps=20)
    assert held >= 0.9 and close >= 0.9


def test_a_rise_behind_a_fall_is_a_penalty(worded):
    studies = studies_of([grid(fell_and_rose())])
    found = quality_of(studies, LOSS, True)
    assert found.penalty and found.worse_from > 256 and not found.improves
    [said, _] = sentences_of(find_best_batch(found, Tolerance.parse("1%")))
    assert "Best batch" in said and "within 1% of that" in said and "worse at batch 2,048" in said
    worded(sentences_of([find_quality(found)])[0], about="is worse")
    assert "its rate" in as_text(quality_table(found)) and best_batch_figure(found, Tolerance.parse("1%")).trials


def test_a_fall_alone_is_no_penalty():
    found = quality_of(studies_of([grid(2.5 + 0.5 ** np.arange(7.0))]), LOSS, True)
    assert not found.penalty and found.improves


@pytest.mark.parametrize("steps, alone", [
    ({32: [[400], [400]], 64: [[200], [200]]}, True), ({32: [[0, 300], [0, 300]], 64: [[0, 300], [0, 300]]}, True),
    ({32: [[400], [300]], 64: [[200], [200]]}, False), ({32: [[200, 400]] * 2, 64: [[200]] * 2}, False),
    ({32: [[400]], 64: [[200]]}, False)])
def test_a_fixed_budget_is_known_by_one_evaluation_a_run_after_as_much_training(steps, alone):
    assert are_ends_alone((batch, np.array(one)) for batch, own in steps.items() for one in own) == alone


def test_runs_evaluated_only_at_their_end_are_held_against_no_target():
    made = grid(fell_and_rose(), target="val/loss<2.6")
    [group] = analyse(read_trials(made), [Target.parse("val/loss<2.6")])
    assert [section.target for section in group.sections] == [None]
    view = Shown(tuple(best_of_metrics(Subject(None, None, studies=tuple(studies_of([made]))))))
    assert GENERAL.say("ends_alone") in view.summary and view.summary[0].startswith("Best batch within")
    assert [figure.name for figure in view.figures] == ["best-batch-val-loss"]


def test_a_search_without_a_target_is_told_by_its_own_objective_and_each_metric_has_its_figure():
    made = grid(fell_and_rose())
    made.evaluations["val/error"] = made.evaluations[LOSS] / 10
    for objective, told in (("val/error", ["validation error"]), ("steps", ["validation error", "validation loss"])):
        sweep = {"study": "made", "repeat": 0, "point": {}, "space": [], "objective": objective, "targets": [],
                 "seed": 0, "trials": 8, "max_draws": 8, "prune_keep": None, "minimizes": True}
        made.trials["plan"] = np.array([json.dumps({**json.loads(text), "sweep": {**sweep, "draw": at}})
                                        for at, text in enumerate(made.trials["plan"])])
        view = Shown(tuple(best_of_metrics(Subject(None, None, studies=tuple(studies_of([made]))))))
        said = " ".join(view.summary)
        assert [name for name in ("validation error", "validation loss") if name in said] == told
        assert {figure.name for figure in view.figures} == {"best-batch-val-error", "best-batch-val-loss"}
        assert len({table.name for table in (*view.tables, *view.details)}) == len((*view.tables, *view.details))


# a tolerance as a user writes it

@pytest.mark.parametrize("text, amount, relative", [("0.01", 0.01, False), ("1%", 0.01, True), ("2.5%", 0.025, True)])
def test_a_tolerance_is_a_loss_or_a_share_of_one(text, amount, relative):
    tolerance = Tolerance.parse(text)
    assert tolerance == Tolerance(amount, relative) and str(tolerance) == text
    assert tolerance.at(4.0) == (4 * amount if relative else amount)


@pytest.mark.parametrize("text", ["0", "-1", "much", "nan", "inf", ""])
def test_what_is_no_tolerance_is_refused(text, worded):
    with worded.error(UsageError):
        Tolerance.parse(text, "--tolerance")
