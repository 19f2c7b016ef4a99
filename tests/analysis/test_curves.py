"""Curves of searches held as studies, and the sections of a report that tell of the same searches."""
import csv
import io
import json
import math

import numpy as np
import pytest

from hvdscale.analysis.best_of_n import best_of
from hvdscale.analysis.curves import Regimes, curve_of, ends_of, list_whole
from hvdscale.analysis.lr_response import valley
from hvdscale.analysis.report_data import Options, analyse
from hvdscale.analysis.speedup import SpeedupPoint
from hvdscale.analysis.studies import studies_of
from hvdscale.analysis.trials import read_trials
from hvdscale.report.document import sentences_of
from hvdscale.report.views.batches import curve_findings, fit_table
from hvdscale.report.table import as_csv
from hvdscale.target import Target
from tests.factories.curves import known_curve
from tests.factories.logs import log
from tests.factories.shown import summary, tables_of
from tests.factories.studies import EVERY, drawn

EASY, STRICT = (Target.parse(f"val/error<{value}") for value in ("0.2", "0.1"))
INF = math.inf


def curve_said(curve):
    return sentences_of(curve_findings(curve))


def curve(*trials, target=STRICT, options=Options()):
    return curve_of(studies_of([log(*trials)]), target, options)


def section(*trials, target=STRICT):
    [group] = analyse(read_trials(log(*trials)), [target])
    return group.sections[0]


def sweep(fewest=((64, 1600), (128, 800), (256, 600), (512, 500)), count=6, **changes):
    """A study a batch, whose k-th draw needs k EVERY more steps than the fewest."""
    return [drawn(100 * at + number, steps + EVERY * number, batch=batch, sweep={"draw": number}, **changes)
            for at, (batch, steps) in enumerate(fewest) for number in range(count)]


def expected(steps, last=()):
    steps = np.array([*steps, *[INF] * len(last)], float)
    return best_of(steps, steps - EVERY, np.array([*steps[:len(steps) - len(last)], *last], float))


@pytest.mark.parametrize("fewest, said", [(2000, True), (900, False), (550, False)])
def test_a_batch_between_two_that_need_surely_fewer_steps_is_named(fewest, said):
    found = curve(*sweep([(64, 1600), (128, 800), (256, fewest), (512, 500)], 20))
    assert ("Batch 256 surely needs more steps" in " ".join(curve_said(found))) == said


@pytest.mark.parametrize("made, steps, counts", [
    ([drawn(0, 900), drawn(1, 600), drawn(2, 600), drawn(3), drawn(4, 800)], ([900, 600, 600, 800], [3000]), (5, 4, 0)),
    ([drawn(0, 600), drawn(1, 700), drawn(2, 2000, pruned=700)], ([600, 700], [700]), (3, 2, 0)),
    ([drawn(0, 600), drawn(1, 700), drawn(0, 500, repeat=1)], ([600, 700],), (2, 2, 0)),
    ([drawn(0, 600), drawn(1, 900), drawn(2, failed=True), drawn(3, diverged=True)], ([600, 900],), (2, 2, 1))])
def test_a_point_is_the_fewest_steps_of_the_searchs_feasible_trials(made, steps, counts):
    [point] = curve(*made).points
    assert point.steps == expected(*steps) and (point.trials, point.met, point.infeasible) == counts


def test_batches_of_which_all_trials_diverged_are_points_that_are_not_met():
    found = curve(*sweep(), drawn(900, diverged=True, batch=1024), target=EASY)
    assert found.batches == (64, 128, 256, 512, 1024)
    last = found.points[-1]
    assert (last.trials, last.infeasible, last.best, last.steps.met) == (0, 1, None, False)
    assert math.isnan(last.steps.value) and found.regimes.maximum_useful.value == 256 and found.regimes.fit.points == 4


def test_a_target_that_no_trial_met_is_above_the_steps_they_reached():
    found = curve(drawn(0), drawn(1))
    assert (found.points[0].steps.value, found.points[0].steps.beyond, found.points[0].met) == (INF, 3000, 0)
    assert found.regimes.maximum_useful.value is None and found.regimes.fit is None and curve_said(found) == ()


def test_best_of_fewer_trials_at_every_batch():
    found = curve(*sweep(), options=Options(trials=2))
    assert [point.steps.value for point in found.points] == [1700, 900, 700, 600]       # the median best of 2 of 6
    assert (found.n, found.left_out) == (2, ())


def uneven():
    """Batch 512 with two trials, the others with six."""
    return [one for one in sweep() if one.row["global_batch"] < 512 or one.row["id"] % 100 < 2]


def test_batches_are_compared_at_the_smallest_number_of_trials(worded):
    found = curve(*uneven())
    assert [point.steps.value for point in found.points] == [1700, 900, 700, 500] and found.n == 2
    said = " ".join(curve_said(found))
    worded(said, about="compared at")
    worded(said, about="trials N")


def test_batches_with_fewer_trials_than_asked_for_are_left_out_and_named(worded):
    found = curve(*uneven(), options=Options(trials=4))
    assert (found.batches, found.n, found.left_out) == ((64, 128, 256), 4, ((512, 2),))
    worded(curve_said(found), about="Left out")


def test_a_section_compares_its_searches_at_the_same_trials_as_the_curve():
    for options in (Options(), Options(trials=4)):
        [group] = analyse(read_trials(log(*uneven())), [STRICT], options)
        found, expected = group.sections[0], curve(*uneven(), options=options)
        assert [point.steps for point in found.batches.points] == [point.steps for point in expected.points]
        assert found.batches.left_out == expected.left_out
        assert [said for said in curve_said(expected) if "trials" in said][0] in summary(found)


def test_all_that_was_fitted_is_in_a_table_for_files():
    found = curve(*sweep())
    table = fit_table(found.regimes.fit, found.target, found.keys)
    [row] = csv.DictReader(io.StringIO(as_csv(table)))
    fit = found.regimes.fit
    assert float(row["b_crit"]) == fit.b_crit.value and float(row["s_min_high"]) == fit.s_min.high
    assert float(row["shape_low"]) == fit.shape.low and row["left_out"] == "none"
    assert table.rows[0].trials == found.keys and len(found.keys) == 4 and fit_table(None, STRICT) is None


def test_a_median_best_that_pruning_hid_is_extrapolated_and_said_to_be(worded):
    """Ten draws of which the first two met; the others were pruned there, so the third fewest is not known."""
    pruned = [drawn(number, 900 if number else 800, batch=64, pruned=900) for number in range(2)]
    pruned += [drawn(number, 2000, batch=64, pruned=900) for number in range(2, 10)]
    found = curve(*pruned, *[one for one in sweep() if one.row["global_batch"] > 64 and one.row["id"] % 100 < 3],
                  options=Options(trials=2))
    first = found.points[0].steps
    assert first.extrapolated and first.value > 900 and first.low < first.value < first.high < INF
    assert not any(point.steps.extrapolated for point in found.points[1:])
    worded(" ".join(curve_said(found)), about="Pruning hid")


def test_options_reach_the_regimes_and_a_metric_that_no_log_has_makes_no_curve():
    assert curve(*sweep(), target=Target.parse("test/error<0.1")) is None
    assert curve(*sweep()).regimes.maximum_useful.value == 256
    strict = curve(*sweep(), options=Options(useful_within=0.1, confidence=0.8))
    assert (strict.regimes.maximum_useful.value, strict.confidence) == (512, 0.8)
    wide = curve(*sweep()).points[0].steps
    assert wide.low < strict.points[0].steps.low < strict.points[0].steps.high < wide.high


def test_a_section_tells_of_a_search_as_its_curve_does():
    made = [*sweep(), drawn(6, 2500, batch=64, pruned=2000), drawn(0, 1500, batch=64, repeat=1),
            drawn(0, batch=64, repeat=2)]
    found, points = section(*made), curve(*made).points
    assert [point.steps for point in found.batches.points] == [point.steps for point in points]
    assert found.batches.regimes.maximum_useful == curve(*made).regimes.maximum_useful


def test_seconds_and_ratios_inherit_the_interval_of_the_fewest_steps():
    first, *_, last = section(*sweep()).batches.points
    assert first.seconds.value == pytest.approx(64 * first.steps.value / first.examples_per_second.value)
    assert first.seconds.low <= 64 * first.steps.low / first.examples_per_second.value * (1 + 1e-9)
    assert last.examples.low == 512 * last.steps.low
    ratio = SpeedupPoint(last, first).statistical_efficiency
    assert ratio.value == pytest.approx(1600 * 64 / (500 * 512))
    ends = [1600 * 64 / (steps * 512) for steps in (last.steps.high, last.steps.low)]
    assert ratio.low < ends[0] < ratio.value < ends[1] < ratio.high


def test_the_table_says_what_the_interval_of_a_search_is_of(worded):
    found = section(*sweep())
    [table] = [table for table in tables_of(found) if table.name == "batches"]
    notes = " ".join(table.notes)
    worded(notes, about="interval of")
    assert "does not include that choice" not in notes and "one run" not in notes
    assert any(said.startswith("S = S_min") or "critical batch" in said.lower() for said in summary(found))


# searches that are cut off

def steps_at(steps, best, rates, random):
    """(steps of trials at these rates, whether each diverged) where the best rate needs these steps."""
    u = np.log(rates / best)
    found = steps * np.exp(valley(u, 1.0, 2.0) + 0.4 * random.exponential(size=len(u))
                           + 0.1 * random.standard_normal(len(u)))
    every = 0.02 * steps
    found = np.ceil(found / every) * every
    return np.where(found > 4 * steps, np.inf, found), u > np.log(6)


def cut_sweeps(beyond, count, seed=1):
    """Sweeps of 20 trials a batch whose best rate at the largest batch lies ``beyond`` times the highest tried, with
    fits to all batches and to those that are not cut off."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        known = known_curve(random)
        best = np.minimum(known.batches, known.b_crit) / min(known.batches[-1], known.b_crit)
        low = np.log(min(best[0] / 3, 1 / beyond / 30))
        estimates, ends = [], []
        for steps, rate in zip(known.steps, best):
            rates = np.exp(random.uniform(low, -np.log(beyond), 20))
            found, diverged = steps_at(steps, rate, rates, random)
            kept = found[~diverged]
            ends.append(ends_of(np.log(rates[~diverged]), kept, np.log(rates[diverged]), np.full(len(kept), np.nan)))
            estimates.append(best_of(kept, np.where(np.isinf(kept), np.nan, kept - 0.02 * steps),
                                     np.full(len(kept), 4 * steps)))
        batches = known.batches.tolist()
        own = dict(zip(batches, estimates))
        yield known, [Regimes(some, [own[batch] for batch in some]).fit if some else None
                      for some in (batches, list_whole(batches, ends))], list_whole(batches, ends) != tuple(batches)


@pytest.mark.parametrize("beyond, most", [(2, 0.8), (8, 1)])
def test_the_critical_batch_of_a_search_that_is_cut_off_is_covered_or_not_stated(beyond, most):
    found = [([fit is None or fit.b_crit.low <= known.b_crit <= fit.b_crit.high for fit in fits], cut)
             for known, fits, cut in cut_sweeps(beyond, 25)]
    whole, before = np.mean([held for held, _ in found], 0)
    assert before > 0.9 and whole < most and np.mean([cut for _, cut in found]) > 0.8


def test_a_search_whose_rates_hold_the_best_is_seldom_called_cut_off():
    found = list(cut_sweeps(1 / 3, 25))
    assert np.mean([cut for *_, cut in found]) < 0.1
    assert all(fits[1].b_crit.low <= known.b_crit <= fits[1].b_crit.high for known, fits, _ in found)


@pytest.mark.parametrize("deviates, whole", [
    ([0, 0, -2, -2], (1, 2)), ([0, -2, -0.5, -2], (1,)), ([-2, -2, 0, 0.5], (1, 2, 4, 8)), ([0, -2, None, None], (1,)),
    ([None] * 4, (1, 2, 4, 8)), ([-2] * 4, ())])
def test_a_search_is_cut_from_where_steps_fall_at_its_largest_batches(deviates, whole):
    ends = [None if one is None else np.array([[0.0, one], [0.9, 0.0]]) for one in deviates]
    assert list_whole([1, 2, 4, 8], ends) == whole
    mirrored = [None if one is None else one[::-1] for one in ends]
    assert list_whole([8, 4, 2, 1], mirrored[::-1]) == whole[::-1]


@pytest.mark.parametrize("whole, useful", [(256, None), (128, 256)])
def test_where_smaller_searches_are_cut_off_the_first_whole_batch_is_not_called_the_maximum_useful_one(whole, useful):
    """Steps fall towards the lowest rates tried at the batches below ``whole``."""
    made = [drawn(100 * at + number, fewest + EVERY * (number if batch < whole else abs(number - 4)), batch=batch,
                  point={"lr": 0.002 * 2 ** number, "momentum": 0.99})
            for at, (batch, fewest) in enumerate(((32, 2200), (64, 2100), (128, 2000), (256, 300)))
            for number in range(9)]
    found = curve(*made)
    assert found.cut == {"until": whole // 2} and found.regimes.maximum_useful.value == useful
    for one in made:        # as runs at rates chosen by hand
        one.row["plan"] = json.dumps({**json.loads(one.row["plan"]), "sweep": {}})
    assert section(*made).batches.cut == found.cut


def test_trials_that_diverged_show_where_the_rates_end_and_unmet_ones_are_ranked_by_what_they_reached():
    rates, steps, unknown = np.arange(10.0), np.arange(100.0, 0, -10), np.full(10, np.nan)
    assert ends_of(rates, steps, np.array([]), unknown)[0, 0] == 0
    assert [ends_of(rates, np.exp(0.3 * (rates - best) ** 2), np.array([]), unknown)[way, 1]
            for way, best in ((0, 8), (1, 1))] == [0, 0]            # they rise again at that end
    assert ends_of(rates, steps, np.array([10.0, 11.0, 12.0]), unknown)[0, 0] > 0.2
    assert ends_of(rates, np.full(10, np.inf), np.array([]), unknown) is None
    assert ends_of(rates, np.full(10, np.inf), np.array([]), steps)[0] == pytest.approx([0, -2])
