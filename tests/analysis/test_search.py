"""What a search over metaparameters says of itself: numbers by hand and by brute force, and its words in a report."""
import itertools
import json
import math

import numpy as np
import pytest

from hvdscale.analysis.report_data import analyse
from hvdscale.analysis.best_of_n import BestOf, best_of_n
from hvdscale.analysis.search import Bound, covers, searches_of
from hvdscale.analysis.trials import read_trials
from hvdscale.formatting.numbers import RANGE
from hvdscale.log.schema import PRUNED, Status
from hvdscale.plan.search_space import DrawEnd, Parameter, discrete
from hvdscale.report.document import sentences_of
from hvdscale.report.pages import document_of_logs
from hvdscale.report.output import as_json
from hvdscale.report.drawing import render
from hvdscale.report.page.html import as_html
from hvdscale.report.views.searches import find_next, hygiene, lines, tables_of_searches
from hvdscale.report.table import as_csv, as_text
from hvdscale.target import Target
from tests.factories.logs import log, trial
from tests.factories.shown import cells_of, figures_of, findings, left_out, summary, tables_of
from tests.factories.studies import BUDGET, SPACE, drawn, realistic, studied

STRICT, EASY = Target.parse("val/error<0.1"), Target.parse("val/error<0.2")
LR, MOMENTUM = SPACE
POINT = {"lr": 0.1, "momentum": 0.99}


def search(*trials, **given):
    [found] = searches_of(read_trials(studied(*trials)), **given)
    return found


def points(*lrs):
    return [{"lr": lr, "momentum": 0.99} for lr in lrs]


def section(*trials, target=STRICT, path="nesterov-b256.h5"):
    [group] = analyse(read_trials(studied(*trials, path=path)), [target] if target else [])
    [found] = group.sections
    return found


def text(section):
    return "\n".join(map(as_text, tables_of(section)))


# best of n

@pytest.mark.parametrize("count", range(1, 9))
@pytest.mark.parametrize("seed", range(4))
def test_the_median_best_of_n_is_that_of_all_subsets(count, seed):
    costs = np.random.default_rng(seed).integers(1, 6, count).astype(float)        # with ties
    costs[seed % 3:1] = math.inf
    found = best_of_n(costs, [False] * count)
    for n, one in enumerate(found, 1):
        expected = np.median([min(subset) for subset in itertools.combinations(costs, n)])
        assert one == BestOf(n, expected, expected)


@pytest.mark.parametrize("seed", range(6))
def test_with_censored_costs_the_median_lies_between_its_bounds(seed):
    random = np.random.default_rng(seed)
    costs, censored = random.integers(1, 9, 7).astype(float), random.random(7) < 0.5
    bounds = best_of_n(costs, censored)
    for _ in range(50):
        true = np.where(censored, costs + random.choice([0.5, 3, math.inf], 7), costs)
        for one, exact in zip(bounds, best_of_n(true, [False] * 7)):
            assert one.low <= exact.low <= one.high
            assert not one.known or exact.low == one.low


def test_the_median_of_one_trial_is_unknown_if_most_were_pruned():
    found = search(drawn(0, 500), drawn(1, 700), *(drawn(k, pruned=700) for k in (2, 3, 4, 5)))
    assert [(one.low, one.high) for one in found.curve] == [(700, math.inf), (700, 700), (600, 600), *[(500, 500)] * 3]
    assert found.half == BestOf(3, 600, 600) and found.lowered == pytest.approx(1 / 6)


def test_trials_that_differ_by_their_seeds_alone_ask_for_nothing():
    one = [discrete("lr", (0.1,)), Parameter("momentum", "double", "linear", 0.9, 0.9)]
    point = {"lr": 0.1, "momentum": 0.9}
    seeds, searched = (search(*(drawn(k, met, point=point, space=space) for k, met in enumerate((500, 500, 900))))
                       for space in (one, SPACE))
    assert seeds.points_are_equal and not searched.points_are_equal
    assert sentences_of(find_next([seeds])) == () and sentences_of(find_next([searched]))
    assert hygiene(seeds) == () and hygiene(searched)
    headings = [[column.title for column in tables_of_searches([one])[0].columns] for one in (seeds, searched)]
    assert headings[1] == [*headings[0], "nearest bound", "still improving"]


KNOWN = {"sweep": {"prune_keep": 1}}
PRUNED_EARLY = [drawn(number, pruned=500, **KNOWN) for number in (1, 2, 3)]


@pytest.mark.parametrize("made, lowered, improving, said", [
    ([drawn(0), drawn(1), drawn(2, diverged=True), drawn(3, 900)], 1, True,
     "any: at least half of all sets of 1 have none"),
    ([drawn(number, met) for number, met in enumerate((500, 500, 900, 900))], 0, False, "0%: more trials would hardly"),
    ([drawn(0, 500, **KNOWN), *PRUNED_EARLY], 0, False, "pruning leaves unknown: prune_keep = 1 is too small"),
    ([drawn(0, 200, **KNOWN), *PRUNED_EARLY], 3 / 7, True, "lowered the median best by at least 43%"),
    ([drawn(number, 400 if number == 0 else 500) for number in range(4)], 1 / 9, False,
     "11%: no more than the steps between two evaluations")])
def test_more_trials_would_help_where_the_later_half_surely_lowered_the_median_best(made, lowered, improving, said):
    found = search(*made)
    assert found.lowered == pytest.approx(lowered) and found.improving == improving and said in lines(found)[-1]


def test_evaluations_too_far_apart_to_tell_do_not_call_for_more_trials(worded):
    made = [drawn(number, 500 if number else 400, point=point) for number, point in
            enumerate(points(0.02, 0.03, 0.04, 0.05, 0.06, 0.07))]
    said = summary(section(*made))
    assert not any("More trials" in one for one in said)
    worded(said, about="too far")


# bounds

@pytest.mark.parametrize("parameter, value, position, near", [
    (LR, 0.001, 0, True), (LR, 10 ** -1.5, 0.5, False), (LR, 0.9, 1 + math.log10(0.9) / 3, True),
    (LR, 0.7, 1 + math.log10(0.7) / 3, False), (MOMENTUM, 0.99, 0.5, False), (MOMENTUM, 0.999, 1, True),
    (MOMENTUM, 0.95, math.log10(2) / 2, False),
    (Parameter("decay_steps", "integer", "linear", 100, 300), 295, 0.975, True),
    (discrete("label_smoothing", (0.0, 0.01, 0.1)), 0.1, 1, True),
    (discrete("label_smoothing", (0.0, 0.01, 0.1)), 0.01, 0.5, False),
    (discrete("label_smoothing", (0.1, 0.0, 0.01)), 0.01, 0.5, False),
    (discrete("label_smoothing", (0.0, 0.01, 0.1)), 0.0, 0, False),        # no smoothing is less than none
    (discrete("clip_norm", (1.0, 2.0)), 1.0, 0, True),
    (Parameter("weight_decay", "double", "linear", 0.0, 1.0), 0.01, 0.01, False),
    (Parameter("momentum", "double", "linear", 0.5, 0.9), 0.5, 0, True),
    (Parameter("model_args.dropout", "double", "linear", 0.0, 0.5), 0.49, 0.98, True)])
def test_the_place_of_a_point_in_its_space(parameter, value, position, near):
    bound = Bound(parameter, value)
    assert bound.position == pytest.approx(position) and bound.near == near


@pytest.mark.parametrize("values, value", [(("linear", "cosine"), "linear"), ((True, False), True), ((0.5,), 0.5)])
def test_values_without_an_order_have_no_ends(values, value):
    bound = Bound(discrete("decay", values), value)
    assert math.isnan(bound.position) and not bound.near


def test_a_space_that_cuts_the_best_point_off_is_flagged_with_the_end_to_move():
    space = (*SPACE, discrete("label_smoothing", (0.0, 0.01, 0.1)))
    best = {"lr": 0.97, "momentum": 0.99, "label_smoothing": 0.1}
    found = search(drawn(0, 500, point=best, space=space),
                   *(drawn(number, 500 + 100 * number, point=POINT | {"label_smoothing": value}, space=space)
                     for number, value in enumerate((0.1, 0.01, 0.01, 0.0, 0.0), 1)))
    assert lines(found)[1:4] == [
        "  lr 0.97 lies 0.44% from the upper bound 1 (log scale): widen the space.",
        "  label_smoothing 0.1 is the largest of the values tried (0, 0.01, 0.1): add larger ones.",
        "  Distance from the nearer end of the space: momentum 50% (lower)."]
    assert found.nearest.parameter.name == "label_smoothing"


@pytest.mark.parametrize("large, small, told", [
    ((500, 600, 700, 800), (900, 1000, 1100, math.inf), True),
    ((500, 900, 1000, math.inf), (600, 700, 800, 1100), False),
    ((500, 500), (500, 500), False), ((500,), (900,), False)])
def test_more_values_are_asked_for_if_those_near_the_end_did_better(large, small, told):
    space = (*SPACE, discrete("label_smoothing", (0.0, 0.1)))
    drawn_at = [*((0.1, met) for met in large), *((0.0, met) for met in small)]
    found = search(*(drawn(number, met, point=POINT | {"label_smoothing": value}, space=space)
                     for number, (value, met) in enumerate(drawn_at)))
    assert ("label_smoothing 0.1 is the largest" in "".join(lines(found))) == told
    assert (found.nearest.parameter.name == "label_smoothing") == told


def test_a_dimension_that_does_nothing_at_the_best_point_is_not_looked_at():
    space = (*SPACE, discrete("decay", ("constant", "linear")), Parameter("end_lr_factor", "double", "log", 1e-4, 0.1))
    idle, acting = ({**POINT, "decay": decay, "end_lr_factor": 1e-4} for decay in ("constant", "linear"))
    assert "end_lr_factor" not in "".join(lines(search(drawn(0, 500, point=idle, space=space))))
    assert "end_lr_factor 0.0001 lies 0%" in "".join(lines(search(drawn(0, 500, point=acting, space=space))))


# draws

def test_draws_are_counted_by_what_became_of_them(worded):
    found = search(drawn(0, 900), drawn(1), drawn(2, diverged=True), drawn(3, failed=True), drawn(4, pruned=900),
                   drawn(6, 500))
    kinds = {kind: [draw.number for draw in found.of_kind(kind)]
             for kind in ("met", "budget", PRUNED, "diverged", "failed")}
    assert kinds == {"met": [0, 6], "budget": [1], PRUNED: [4], "diverged": [2], "failed": [3, 5]}     # 5 has no row
    assert (len(found.feasible), found.diverged_share, found.best.number, found.done) == (4, 1 / 7, 6, False)
    worded(lines(found)[0])


def test_running_trials_are_no_draws_yet(worded):
    running = drawn(1, 900)
    running.row["status"] = int(Status.RUNNING)
    assert [draw.number for draw in search(drawn(0, 900), running).draws] == [0]
    worded(lines(search(running)))


def test_the_best_trial_is_the_first_of_those_with_the_fewest_steps():
    found = search(drawn(0, 900), drawn(1, 500), drawn(2, 500))
    assert (found.best.number, found.best.value, found.best.before) == (1, 500, 400)


def test_steps_saved_are_what_was_left_of_the_pruned_trials_budgets():
    found = search(drawn(0, 500), drawn(1, 700), drawn(2, pruned=700), drawn(3, pruned=700))
    assert found.saved_steps == 2 * (BUDGET - 700)
    assert found.saved_share == pytest.approx(2 * (BUDGET - 700) / (500 + 700 + 2 * BUDGET))
    off = search(drawn(0, 500, sweep={"prune_keep": None}))
    assert off.saved_steps == 0 and "pruned" not in lines(off)[0]


def test_a_budget_in_seconds_leaves_the_steps_saved_unknown():
    made = drawn(1, pruned=700)
    plan = json.loads(made.row["plan"])
    plan["measurement"]["budget_steps"] = 0
    made.row["plan"] = json.dumps(plan)
    found = search(drawn(0, 500), made)
    assert math.isnan(found.saved_share) and "1 pruned. Best" in lines(found)[0]


def test_a_study_goes_on_under_more_trials_and_after_an_attempt_that_failed():
    failed, again = drawn(0, failed=True, sweep={"trials": 1}), drawn(0, 500, sweep={"trials": 1})
    again.row["id"] = 7
    found = search(failed, again, drawn(1, 600, sweep={"trials": 2}))
    assert found.wanted == 2 and found.done and found.best.value == 500


def test_the_repeats_of_the_best_point_alone_are_its_own():
    best, former = points(0.2, 0.3)
    found = search(drawn(0, 900, point=former), drawn(1, 500, point=best), drawn(0, 800, point=former, repeat=1),
                   drawn(1, 600, point=best, repeat=1), drawn(1, 700, point=best, repeat=2),
                   drawn(1, diverged=True, point=best, repeat=3))
    assert found.repeat_values[:2] == (600, 700) and math.isnan(found.repeat_values[2])
    assert found.over_seeds.value == pytest.approx((500 * 600 * 700) ** (1 / 3)) and found.over_seeds.runs == 3
    assert "Over its 3 seeds: 594 steps" in lines(found)[0] and "1 more seed of it diverged." in lines(found)[0]


@pytest.mark.parametrize("minimizes, best, value, step", [(True, 1, 0.05, 300), (False, 2, 0.5, 0)])
def test_of_another_objective_the_best_value_within_the_budget_wins(minimizes, best, value, step):
    sweep = {"objective": "val/error", "minimizes": minimizes, "targets": [], "prune_keep": None}
    made = [drawn(0, 900, sweep=sweep), drawn(1, 300, sweep=sweep), drawn(2, sweep=sweep)]
    for one, worst in zip(made, (0.4, 0.3, 0.5)):
        one.error[:] = np.minimum(one.error, worst)
    made[0].error[-1], made[2].error[1] = 0.06, math.nan
    found = search(*made)
    assert (found.best.number, found.best.value, found.best.step) == (best, value, step)
    assert f"Best: trial {best}, val/error {value:.4g}" in lines(found)[0].replace("0.500 ", "0.5 ").replace(
        "0.0500", "0.05")
    assert len(found.curve) == 3 and found.curve[-1].low == value and found.over_seeds is None
    never = drawn(0, sweep=sweep)
    never.error[:] = math.nan
    assert search(never).best is None and "No trial has a val/error." in lines(search(never))[0]


def test_studies_are_told_apart_by_batch_optimizer_and_space():
    other = (Parameter("lr", "double", "log", 0.01, 1.0), MOMENTUM)
    made = log(drawn(0, 500), drawn(1, 500, batch=32), drawn(2, 500, optimizer="sgd"), drawn(3, 500, space=other),
               trial(9))
    assert [(one.workload.optimizer, one.global_batch, one.space[0].low) for one in searches_of(read_trials(made))] == [
        ("nesterov", 32, 0.001), ("nesterov", 256, 0.001), ("nesterov", 256, 0.01), ("sgd", 256, 0.001)]


# targets

@pytest.mark.parametrize("target, tells", [
    ("val/error<0.1", True), ("val/error<0.2", True), ("val/error<0.09", False), ("val/error>0.2", False),
    ("test/error<0.2", False)])
def test_trials_tell_of_their_own_target_and_of_easier_ones(target, tells):
    sweep = read_trials(studied(drawn(0, 500)))[0].sweep
    assert covers(sweep, Target.parse(target)) == tells
    assert covers({**sweep, "objective": "val/error"}, Target.parse(target))


def test_at_an_easier_target_a_pruned_trial_that_had_met_it_counts(worded):
    made = [drawn(0, 500, easier=400), drawn(1, 600), drawn(2, pruned=600, easier=300), drawn(3, pruned=600)]
    found = search(*made, target=EASY)
    assert (found.best.number, found.best.value, len(found.of_kind(PRUNED))) == (2, 300, 2)
    assert search(*made).best.number == 0
    easy, strict = section(*made, target=EASY), section(*made)
    assert [{run.trial.id for run in one.cells[0].runs} for one in (easy, strict)] == [{0, 1, 2}, {0, 1}]
    worded("".join(left_out(easy)), about="of them")
    assert "which counts here" not in "".join(left_out(strict))


def test_the_fewest_steps_to_every_target_do_not_depend_on_pruning():
    random = np.random.default_rng(5)
    for _ in range(20):
        met = random.integers(2, 29, 10) * 100
        easier = met - random.integers(0, met // 100) * 100
        whole, pruned, points_of = [], [], points(*np.linspace(0.01, 0.9, 10).tolist())
        for k, (steps, easy, point) in enumerate(zip(met.tolist(), easier.tolist(), points_of)):
            lower = sorted(met[:k].tolist())
            limit = lower[1] if k > 1 else None
            known = {"easier": easy, "point": point, "problem": {"lr": point["lr"]}}
            whole.append(drawn(k, steps, sweep={"prune_keep": None}, **known))
            pruned.append(drawn(k, steps, pruned=limit, **known) if limit and steps > limit else
                          drawn(k, steps, **known))
        for target in (EASY, STRICT):
            one, other = search(*whole, target=target), search(*pruned, target=target)
            assert (one.best.number, one.best.value) == (other.best.number, other.best.value)
            with_, without = (section(*made, target=target).cells[0].steps for made in (pruned, whole))
            assert (with_.value, with_.runs) == (without.value, without.runs)


# reports

@pytest.mark.parametrize("others, chosen", [
    ([drawn(0, 900 + 100 * repeat, repeat=repeat, problem={"lr": 0.1}) for repeat in (1, 2)], [0, 100000, 200000]),
    ([drawn(2, 900, problem={"lr": 0.1})], [0, 2])], ids=["repeats", "drawn twice"])
def test_trials_that_needed_more_steps_do_not_speak_against_the_best_point(others, chosen):
    made = [drawn(0, 500, problem={"lr": 0.1}), drawn(1, 600, problem={"lr": 0.2}), *others]
    [cell] = section(*made).cells
    assert sorted(run.trial.id for run in cell.runs) == chosen


def test_a_report_names_what_was_tuned_instead_of_settings_that_differ(worded):
    made = [drawn(k, 500 + 100 * k, point=point, problem={"base_lr": point["lr"]})
            for k, point in enumerate(points(0.1, 0.2, 0.3))]
    shown = text(section(*made)).replace("\n  ", " ")
    worded(shown, about="Tuned at")
    assert "Settings that differ" not in shown


def test_more_seeds_under_the_tuned_rule_are_repeats_of_the_best_trial(worded):
    rate = {"peak_lr": 0.1, "lr_factor": 1.0}
    found = studied(*(drawn(k, 500 + 100 * k, problem={
        "lr_rule": "none", "base_lr": lr, "base_batch": 32, "lr_factor": 1.0, "peak_lr": lr})
        for k, lr in enumerate((0.1, 0.2))))
    tuned = trial(7, (0, 100, 700), (0.9, 0.5, 0.05), batch=256, seed=7, target="val/error<0.1",
                  problem={**rate, "momentum": 0.99, "lr_rule": "tuned", "base_lr": 0.1, "base_batch": 256})
    [group] = analyse(read_trials(found) + read_trials(log(tuned, path="again.h5")))
    [cell] = group.sections[0].cells
    assert [(run.trial.log, run.trial.id) for run in cell.runs] == [("again.h5", 7), ("nesterov-b256.h5", 0)]
    worded(text(group.sections[0]), about="Tuned at")


def test_settings_beside_those_of_a_search_are_still_named(worded):
    made = studied(drawn(0, 500), trial(7, (0, 100, 700), (0.9, 0.5, 0.05), batch=256, target="val/error<0.1"))
    [group] = analyse(read_trials(made))
    shown = text(group.sections[0]).replace("\n  ", " ")
    worded(shown, about="were tried")
    assert "Tuned at each batch" not in shown


def test_what_was_tuned_at_every_point_of_a_series_is_no_other_problem(worded):
    few = [drawn(0, 500, batch=128, problem={"momentum": 0.9}), drawn(1, 600, batch=128, problem={"momentum": 0.8})]
    many = [drawn(0, 300, workers=2, problem={"momentum": 0.95})]
    made = read_trials(studied(*few, path="b128.h5")) + read_trials(studied(*many, path="b256.h5"))
    [group] = analyse(made, [STRICT])
    assert len(group.sections[0].series) == 1 and "not of one problem" not in text(group.sections[0])
    precision = [drawn(0, 300, workers=2, problem={"precision": "fp64"})]
    mixed = read_trials(studied(*(drawn(0, 500, batch=128, problem={"precision": "fp32"}),), path="b128.h5"))
    [group] = analyse(mixed + read_trials(studied(*precision, path="b256.h5")), [STRICT])
    worded(text(group.sections[0]), about="not of")


def test_searched_arguments_of_the_model_do_not_part_a_study():
    space = (*SPACE, Parameter("model_args.dropout", "double", "linear", 0.0, 0.5))
    made = [drawn(k, 500 + 100 * k, space=space, point={**POINT, "model_args.dropout": dropout},
                  model_args={"dropout": dropout, "width": 8}) for k, dropout in enumerate((0.1, 0.2))]
    found = search(*made)
    assert len(found.draws) == 2 and json.loads(found.workload.model_args) == {"width": 8}


def test_the_search_is_in_every_form_of_the_report(tmp_path):
    document = document_of_logs([
        studied(*realistic(batch, lr, fewest, repeats=2, count=40, seed=batch), path=f"b{batch}.h5")
        for batch, lr, fewest in ((64, 0.03, 900), (256, 0.1, 400))])
    found = document.shown[0].section
    table, best = tables_of_searches(found.searches)
    assert [row.cells[6].value for row in table.rows] == [one.best.value for one in found.searches]
    assert max(map(len, as_text(table).splitlines())) <= 100 and as_text(table).isascii()
    assert as_csv(best).startswith("global_batch,lr,lr_low,lr_high,momentum,momentum_low,momentum_high,trials,target\n")
    page = as_html(document)
    assert "Search: val/error&lt;0.1" in page and "<dt>Searches</dt>" in page and "What more trials found" in page
    values = json.loads(json.dumps(as_json(document), allow_nan=False))["workloads"][0]["sections"][0]
    assert [len(one["best_of_n"]) for one in values["searches"]] == [12, 12]
    [figure] = [figure for figure in figures_of(found) if figure.name == "best-of-n"]
    assert len(figure.trials) == 24 and b"median best of n" in render(figure, "svg")


def test_a_study_of_one_trial_or_none_that_met_has_its_row_and_no_curve():
    for made in ([drawn(0, 500)], [drawn(0)], [drawn(0, diverged=True), drawn(1)], [drawn(0, diverged=True)]):
        found = section(*made)
        assert "Search" in text(found) and "would still improve" not in "".join(summary(found))
        assert "best-of-n" not in [figure.name for figure in figures_of(found)]


def test_a_target_that_the_search_stopped_short_of_says_so(worded):
    made = [drawn(0, 500), drawn(1, 700), drawn(2, pruned=700), drawn(3, 600)]
    found = section(*made, target=Target.parse("val/error<0.01"))
    said = "".join(left_out(found))
    worded(said, about="Stopped by")
    assert not found.searches
    worded(said, about="may be")
    assert "Pruned" not in said
    assert found.cells[0].steps.beyond == 500       # the best point went no further: the least that is known


def test_each_further_target_of_a_sweep_has_its_fewest_steps():
    found = section(drawn(0, 500, easier=300), drawn(1, 700, easier=200), drawn(2, diverged=True))
    [other] = [one for one in findings(found) if one.kind == "other_targets"]
    assert list(map(str, other.named["targets"])) == ["val/error<0.2"] and "--target 'val/error<0.2'" in other.said
    assert other.more == ("val/error<0.2: 200 steps at batch 256.",)


def test_a_report_without_a_sweep_has_nothing_of_searches():
    document = document_of_logs([log(trial(), trial(2, seed=1))])
    assert not document.shown[0].section.searches and "searches" not in as_json(document)["workloads"][0]["sections"][0]
    assert "Search" not in as_html(document)


# intervals are told apart

def of_batches(*studies):
    trials = [trial for at, made in enumerate(studies) for trial in read_trials(studied(*made, path=f"{at}.h5"))]
    [found] = analyse(trials, [STRICT])[0].sections
    return found


def test_the_evaluation_grid_does_not_show_as_an_interval(worded):
    found = of_batches(realistic(64, 0.1, 800, count=16), realistic(256, 0.2, 500, count=16))
    by_batch = next(table for table in tables_of(found) if table.name == "batches")
    of_search = next(table for table in tables_of_searches(found.searches) if table.name == "search")
    steps, fewest = cells_of(by_batch, "steps_to_target"), cells_of(of_search, "fewest_steps")
    assert [cell.shown for cell in steps] == [cell.shown for cell in fewest]
    assert all(RANGE.search(cell.below) for cell in steps)
    assert all(cell.below == f"> {cell.low:,.0f}" for cell in fewest)
    alone = section(*[drawn(number, 800 if number == 3 else math.inf) for number in range(6)])
    [one] = cells_of(next(table for table in tables_of(alone) if table.name == "batches"), "steps_to_target")
    assert (one.shown, one.below) == ("800", "no interval")
    worded(by_batch.title, about="median best")
    worded(" ".join(by_batch.notes), about="interval of")
    worded(" ".join(of_search.notes), about="It bounds")


def test_a_search_says_how_many_trials_met_and_is_not_marked_as_one_run():
    found = section(*realistic(64, 0.1, 800, count=16))
    [made] = found.searches
    met = f"{len(made.of_kind(DrawEnd.MET))}/{len(made.feasible)}"
    assert [cell.shown for table in tables_of(found)[:2] for cell in cells_of(table, "met")] == [met] * 2 != ["1/1"] * 2


def test_all_batches_where_more_trials_would_help_are_in_one_sentence(worded):
    made = [[drawn(number, 3000 - 300 * number, batch=batch) for number in range(count)]
            for batch, count in ((64, 8), (256, 10), (1024, 9))]
    [said] = [said for said in summary(of_batches(*made)) if said.startswith("More trials")]
    worded(said)
    assert "256 (-" in said and "1,024 (-" in said
