"""What learning-rate rules cost: on sweeps whose best rate and steps are known, and where little is known."""
import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import log_expit

from hvdscale.analysis import defaults
from hvdscale.analysis.lr_response import _PRIOR, Landscape, _CensoredTrials, landscape_of, valley
from hvdscale.analysis.rules import (BEYOND, FEW, KEPT, LOST, OPEN, OUTSIDE, RUNS, UNKNOWN, UNTRIED, Rule,
                                     RuleCost, exponent_of, rules_along)
from hvdscale.analysis.steps import Estimate
from hvdscale.errors import UsageError
from hvdscale.formatting.numbers import ratio, whole
from hvdscale.plan.settings import Settings, is_key
from hvdscale.plan.settle import Place, settle
from hvdscale.plan.scaling import half_life_of
from hvdscale.report.document import sentences_of
from hvdscale.report.views.rules import command_of, missing_table, points_table, find_rules, rules_table
from hvdscale.report.table import as_csv, as_text, as_values
from tests.factories.landscapes import claims, curve_of, logged, run, searched
from tests.factories.plans import TRAIN, VAL, WORKLOAD

BATCHES = (4, 8, 16, 32, 64, 128)
LINEAR_UNTIL = 16


def best_rate(batch):
    """Linear up to LINEAR_UNTIL, then constant."""
    return 0.01 * min(batch, LINEAR_UNTIL)


def fewest(batch):
    return 100 * (1 + 64 / batch)


@pytest.fixture(scope="module")
def curve():
    """A sweep of the truth above."""
    logs = [logged(*searched(batch, best_rate(batch), fewest(batch), count=30), path=f"b{batch}.h5")
            for batch in BATCHES]
    return curve_of(*logs, perfect_until=LINEAR_UNTIL)


@pytest.fixture(scope="module")
def found(curve):
    """The rules along it."""
    return next(rules_along([curve]))


def cost(found, name):
    [one] = [one for one in found.costs if str(one.rule) == name]
    return one


def test_along_several_curves_on_all_cores_rules_cost_what_they_do_along_each(curve, found):
    adam_alone, untuned = [Rule("adam_sqrt")], curve_of(logged(*searched(4, 0.04, 400), path="b4.h5"))
    costs = list(rules_along([curve, untuned, *[curve] * 6]))
    assert [one is None for one in costs] == [False, True] + [False] * 6
    for one in filter(None, costs):
        assert [rate.best for rate in one.rates] == [rate.best for rate in found.rates]
        assert [cost.points[-1].loss for cost in one.costs] == [cost.points[-1].loss for cost in found.costs]
    assert list(rules_along([curve], adam_alone)) == [None]


# rules as written

@pytest.mark.parametrize("text, ratio, factor", [
    ("linear", 8, 8), ("sqrt", 16, 4), ("none", 8, 1), ("power:0.7", 2, 2 ** 0.7), ("linear<=8", 4, 4),
    ("linear<=8", 64, 8), ("power:2<=5", 9, 5), ("adam_sqrt", 16, 4), ("adam_sqrt:beta2<=3", 16, 3)])
def test_a_rule_is_read_and_written_and_gives_its_factor(text, ratio, factor):
    rule = Rule.parse(text)
    assert str(rule) == text and rule.factor(ratio) == pytest.approx(factor)


@pytest.mark.parametrize("text", ["quadratic", "tuned", "linear<=", "linear<=0", "linear<=x", "linear<=inf", "power:x",
                                  ""])
def test_what_is_no_rule_is_refused(text, worded):
    with worded.error(UsageError):
        Rule.parse(text)


# a known sweep

def test_the_exponent_is_that_of_the_linear_part_and_less_over_all(found):
    part, whole = found.exponent_perfect, found.exponent
    assert part.batches == (4, 8, 16) and part.low <= 1 <= part.high
    assert whole.batches == BATCHES and 0.1 < whole.value < 0.7 and whole.high < 1


def test_each_best_rate_lies_in_its_interval(found):
    inside = [one.best.low <= best_rate(one.global_batch) <= one.best.high for one in found.rates]
    assert sum(inside) >= len(BATCHES) - 1
    assert all(one.best.high < 4 * one.best.low for one in found.rates)


@pytest.mark.parametrize("name, power", [("linear", 1.0), ("sqrt", 0.5), ("none", 0.0)])
def test_where_a_rule_first_loses_lies_in_its_interval_and_what_is_sure_is_so(found, name, power):
    rule = cost(found, name)
    truth = {point.global_batch: math.exp(valley(math.log(point.rate / best_rate(point.global_batch)), 1.0, 3.0))
             for point in rule.points}
    first = next((batch for batch in BATCHES if truth[batch] > 1.2), math.inf)
    assert rule.first_lost.low <= first <= rule.first_lost.high
    for point in rule.points:
        assert point.rate == pytest.approx(found.base.tried * (point.global_batch / 4) ** power)
        assert point.verdict != LOST or truth[point.global_batch] > 1.2
        assert point.verdict != KEPT or truth[point.global_batch] <= 1.2
    if name == "linear":
        assert point.verdict == LOST and point.loss.low <= truth[128]
        assert point.loss.high >= truth[128] or math.isinf(point.loss.value)


def test_every_number_names_trials_that_are_in_the_logs(found):
    logs = {f"b{batch}.h5" for batch in BATCHES}
    for table in (rules_table(found), points_table(found), missing_table(found)):
        assert table.rows and all(row.trials and {log for log, _ in row.trials} <= logs for row in table.rows)
        assert as_text(table) and as_csv(table) and as_values(table)


def test_one_sentence_has_a_clause_for_each_rule_and_the_exponent(found, worded):
    said = " ".join(sentences_of(find_rules(found)))
    assert all(name in said for name in ("linear scaling", "square-root scaling", "a constant rate",
                                         "linear scaling up to 8 times"))
    lost = [one.first_lost for one in found.costs if one.first_lost.high < math.inf]
    assert len(lost) > 1 and all(f"steps from batch {first.high:.0f}" in said for first in lost)
    worded(said, about="The best")
    assert "effective" not in said and "nan" not in said and "b4.h5:" in " ".join(rules_table(found).notes)


@pytest.mark.parametrize("lost, said", [
    ({}, "linear scaling and square-root scaling need at most 20% more steps up to batch 8."),
    ({"linear": (LOST, 1.5)},
     "linear scaling surely needs over 20% more steps from batch 8; square-root scaling needs at most 20% more steps "
     "up to batch 8."),
    ({"linear": (LOST, 1.5), "sqrt": (UNKNOWN, 1.1)},
     "from batch 8; square-root scaling may need over 20% more steps from batch 8."),
    ({"linear": (LOST, 1.5), "sqrt": (UNKNOWN, math.nan)},
     "the cost of square-root scaling at batch 8 is unknown (seeds of "),
    ({"linear": (LOST, 1.5), "sqrt": (LOST, 2.5)},
     ": linear scaling and square-root scaling surely need over 20% more steps from batch 8."),
    ({"linear": (UNKNOWN, math.nan), "sqrt": (UNKNOWN, math.nan)}, "their cost at batch 8 is unknown (seeds of "),
    ({"linear": (UNKNOWN, 1.1), "sqrt": (UNKNOWN, 1.1)}, "linear scaling and square-root scaling may need over ")])
def test_the_sentence_follows_the_verdicts(lost, said):
    found = two_batches()
    costs = []
    for name in ("linear", "sqrt"):
        base, large = cost(found, name).points
        verdict, value = lost.get(name, (KEPT, 1.0))
        large.verdict, large.loss = verdict, Estimate(value, value, value, 9)
        costs.append(RuleCost(Rule(name), (base, large), 0.2))
    found.costs = tuple(costs)
    assert said in sentences_of(find_rules(found))[0]


# beyond what was seen

def two_batches():
    logs = [logged(*searched(batch, best_rate(batch), fewest(batch)), path=f"b{batch}.h5") for batch in (4, 8)]
    return next(rules_along([curve_of(*logs)]))


def test_no_loss_is_stated_beyond_the_largest_budget_over_the_best(found):
    beyond = 0
    for point in (point for rule in found.costs for point in rule.points):
        most = 8 * math.ceil(fewest(point.global_batch)) / found.rates[BATCHES.index(point.global_batch)].steps.value
        assert not most < point.loss.value < math.inf and not most < point.loss.high < math.inf
        if math.isinf(point.loss.value):
            assert point.loss.beyond <= most * 1.001 and point.loss.low <= point.loss.beyond
            assert point.steps.beyond <= 8 * math.ceil(fewest(point.global_batch)) * 1.001
            beyond += 1
    assert beyond


def test_such_a_loss_is_a_bound_in_the_tables_and_their_files(found):
    point = cost(found, "linear").points[-1]
    bound = f"> {ratio(point.loss.beyond)}"
    assert math.isinf(point.loss.value)
    [shown] = [row["cells"]["loss_linear"] for row in as_values(rules_table(found))["rows"][-1:]]
    assert shown["shown"] == f"{bound} !" and shown["value"] is None
    assert shown["low"] == point.loss.low and shown["high"] is None
    assert bound in as_text(rules_table(found)) and f"> {whole(point.steps.beyond)}" in as_text(points_table(found))
    assert f",inf,{point.loss.low},inf," in as_csv(points_table(found))


def test_a_rate_outside_those_tried_is_said_to_be_so(worded):
    logs = [logged(*searched(4, 0.04, 400), path="b4.h5"), logged(*searched(64, 0.16, 100, width=1.5), path="b64.h5")]
    found = next(rules_along([curve_of(*logs)], [Rule("power:3")]))
    point = found.costs[0].points[-1]
    assert point.how == OUTSIDE and point.verdict == LOST and math.isinf(point.loss.value)
    [row] = rules_table(found).rows[1:]
    assert (row.cells[-1].shown[0], row.cells[-1].below) == (">", "outside")
    worded(as_text(points_table(found)), about="outside what")


# what is scaled

def test_with_a_momentum_that_was_searched_the_effective_rate_is_scaled(worded):
    logs = [logged(*searched(batch, best_rate(batch), fewest(batch), count=24, momentum=True), path=f"b{batch}.h5")
            for batch in (4, 8, 16)]
    curve = curve_of(*logs)
    found, study = next(rules_along([curve])), curve.searched[0].study
    trial = [study.key(at) for at in range(len(study))].index(found.base.keys[0])
    lr, momentum = (study.metaparameters[name][trial] for name in ("learning_rate", "momentum"))
    assert found.effective and found.base.tried == pytest.approx(lr / (1 - momentum))
    assert all(one.best.low < 2 * best_rate(one.global_batch) and one.best.high > best_rate(one.global_batch) / 2
               for one in found.rates)
    for rule in found.costs:
        for missing in rule.missing:
            assert missing.values["momentum"] == momentum
            assert missing.values["learning_rate"] / (1 - momentum) == pytest.approx(missing.rate)
    worded(" ".join(rules_table(found).notes), about="since the")
    worded(sentences_of(find_rules(found))[1], about="The best")


def test_with_one_momentum_the_rate_itself_is_scaled():
    runs = {batch: searched(batch, best_rate(batch), fewest(batch)) for batch in (4, 8)}
    for one in (*runs[4], *runs[8]):
        one.momentum = 0.9
    found = next(rules_along([curve_of(*[logged(*runs[batch], path=f"b{batch}.h5") for batch in runs])]))
    assert not found.effective and found.base.tried in [one.row["metaparameters/learning_rate"] for one in runs[4]]


# runs made with a rule

MADE = (2000 * 2010 * 2020) ** (1 / 3)      # steps of the three seeds


def with_runs(steps, seeds=3, **how):
    base, large = (searched(batch, best_rate(batch), fewest(batch)) for batch in (4, 64))
    tuned = next(rules_along([curve_of(logged(*base, path="b4.h5"), logged(*large, path="b64.h5"))]))
    rate = tuned.base.tried * 4
    direct = [run(100 + seed, 64, steps + 10 * seed, every=10, budget=4000, lr=rate, searched=False,
                  rule=("sqrt", 4, tuned.base.tried), seed=seed) for seed in range(seeds)]
    return next(rules_along([curve_of(logged(*base, path="b4.h5"), logged(*large, *direct, path="b64.h5"))], **how))


@pytest.mark.parametrize("steps, mean", [(2000, MADE), (60, (60 * 70 * 80) ** (1 / 3))], ids=["lost", "the best"])
def test_runs_made_with_a_rule_are_used_as_they_are(steps, mean):
    found = with_runs(steps)
    point = cost(found, "sqrt").points[-1]
    assert point.how == RUNS and {trial for log, trial in point.keys if log == "b64.h5"} >= {100, 101, 102}
    assert point.loss.value == pytest.approx(mean / found.rates[-1].steps.value)
    assert (point.verdict == LOST) == (steps == 2000) and cost(found, "linear").points[-1].how != RUNS


def test_a_rules_runs_count_for_its_capped_form_below_the_cap():
    free, high, low = (rule.points[-1] for rule in with_runs(
        2000, rules=(Rule("sqrt"), Rule("sqrt", 8.0), Rule("sqrt", 2.0))).costs)
    assert high.how == RUNS and high.loss == free.loss and low.how != RUNS


def test_one_run_with_a_rule_tells_no_more_than_its_value():
    point = cost(with_runs(2000, seeds=1), "sqrt").points[-1]
    assert point.how == RUNS and point.loss.value > 1.2 and math.isnan(point.loss.low) and point.verdict == UNKNOWN
    assert point.missing


def test_a_run_with_a_rule_that_never_met_the_target_has_lost():
    point = cost(with_runs(math.inf), "sqrt").points[-1]
    assert point.how == RUNS and math.isinf(point.loss.value) and point.loss.low > 1.2 and point.verdict == LOST


# a rule that scales Adam's betas

def of_adam(rule=None, direct=(), large=32, optimizer="adam", rules=("adam_sqrt",), **asked):
    """Searches of Adam with its own moments at batch 4 and ``large``; direct: steps of runs there under ``rule``."""
    base, tuned = (searched(batch, best_rate(batch), fewest(batch), optimizer=optimizer,
                            asked_too={"optimizer": optimizer, **asked}) for batch in (4, large))

    def found(*more):
        logs = [logged(*runs, path=f"b{runs[0].row['global_batch']}.h5", **dict(zip(
            ("beta1", "beta2", "epsilon"), ([moment] * len(runs) for moment in (0.9, 0.999, 1e-8)))))
            for runs in (base, [*tuned, *more])]
        return next(rules_along([curve_of(*logs)], [*map(Rule.parse, rules)]))
    if not direct:
        return found()
    rate = found().base.tried * math.sqrt(large / 4)
    return found(*(run(100 + seed, large, steps, every=10, budget=4000, lr=rate, searched=False, seed=seed,
                       rule=(rule, 4, rate / math.sqrt(large / 4)), optimizer=optimizer)
                   for seed, steps in enumerate(direct)))


def test_adam_sqrt_is_compared_by_default_where_the_optimizer_is_adam():
    names = {optimizer: [str(one.rule) for one in of_adam(optimizer=optimizer, rules=defaults.RULES).costs]
             for optimizer in ("adam", "adamw", "nesterov", "lamb")}
    assert names["adam"] == names["adamw"] == [*names["nesterov"], "adam_sqrt"] and names["lamb"] == names["nesterov"]
    assert of_adam(optimizer="sgd") is None


def test_only_runs_made_with_adam_sqrt_show_its_cost(worded):
    found = of_adam(rules=("sqrt", "adam_sqrt"))
    point = cost(found, "adam_sqrt").points[-1]
    assert (point.how, point.verdict, point.rate) == (UNTRIED, UNKNOWN, cost(found, "sqrt").points[-1].rate)
    assert math.isnan(point.loss.value) and cost(found, "sqrt").points[-1].how != UNTRIED
    worded(" ".join(sentences_of(find_rules(found))), about="the cost")
    worded(as_text(points_table(found)), about="no run")
    worded(" ".join(rules_table(found).notes), about="only runs")


@pytest.mark.parametrize("made, other", [
    ("adam_sqrt", "sqrt"), ("sqrt", "adam_sqrt"), ("adam_sqrt:beta2", "adam_sqrt")])
def test_runs_made_with_adam_sqrt_count_for_it_and_not_for_sqrt(made, other):
    found = of_adam(made, (2000, 2010, 2020), rules=(made, other))
    point = cost(found, made).points[-1]
    assert point.how == RUNS and {trial for log, trial in point.keys if log == "b32.h5"} >= {100, 101, 102}
    assert point.loss.value == pytest.approx(MADE / found.rates[-1].steps.value)
    assert point.verdict == LOST and cost(found, other).points[-1].how != RUNS


@pytest.mark.parametrize("asked", [{}, {"beta2": 0.999}, {"beta1_half_life": 26.0, "beta2_half_life": 2.8e3}])
def test_the_missing_run_of_adam_sqrt_has_the_moments_of_the_base(asked):
    [missing] = of_adam(**asked).costs[0].missing
    kappa, values = 8, missing.values
    assert values["beta1"] == pytest.approx(1 - kappa * 0.1) and values["beta2"] == pytest.approx(1 - kappa * 0.001)
    assert values["epsilon"] == pytest.approx(1e-8 / math.sqrt(kappa))
    command = command_of(missing)
    assert "--lr-rule adam_sqrt" in command and "--base-batch 4" in command and "half_life" not in command
    assert "beta1=0.9 " in command and "beta2=0.999 " in command
    taken = Settings.build({}, {name: value for name, value in missing.asked.items() if is_key(name)})
    plan = settle(taken, WORKLOAD, TRAIN, VAL, Place())
    assert (plan.beta1, plan.beta2, plan.epsilon, plan.peak_lr) == pytest.approx(
        (values["beta1"], values["beta2"], values["epsilon"], missing.rate))


def test_where_adam_sqrt_leaves_a_beta_no_decay_there_is_no_run_to_make(worded):
    found = of_adam(large=40)
    assert found.costs[0].points[-1].how == BEYOND and not found.costs[0].missing and missing_table(found) is None
    worded(as_text(points_table(found)), about="the rule")
    assert of_adam(large=40, rules=("adam_sqrt:beta2",)).costs[0].points[-1].how == UNTRIED
    assert of_adam(large=40, rules=("adam_sqrt<=3",)).costs[0].points[-1].how == UNTRIED


def test_half_lives_and_the_decay_timescale_give_a_missing_run_its_values():
    half_life = half_life_of(0.999, 4)
    logs = [logged(*runs, path=f"b{batch}.h5", beta2=[0.999] * len(runs), weight_decay=[0.01] * len(runs))
            for batch, width in ((4, 4.6), (64, 0.6))
            for runs in [searched(batch, 0.04 * (1 if batch == 4 else 4), 400, width=width, optimizer="adamw",
                                  asked_too={"beta2_half_life": half_life, "decay_timescale": 3.0})]]
    [missing] = next(rules_along([curve_of(*logs)], [Rule("power:1.3")])).costs[0].missing
    assert missing.values["beta2"] == pytest.approx(0.999 ** 16)
    assert missing.values["weight_decay"] == pytest.approx(0.01 * 16 / 16 ** 1.3)


# what is missing

def test_the_trial_that_is_missing_is_named_with_its_values_and_its_command():
    logs = [logged(*searched(4, 0.04, 400, count=20), path="b4.h5"),
            logged(*searched(64, 0.16, 100, count=12, width=0.6), path="b64.h5")]
    found = next(rules_along([curve_of(*logs)], [Rule("power:1.3")]))
    [missing] = found.costs[0].missing
    assert missing.global_batch == 64 and missing.values["learning_rate"] == pytest.approx(found.base.tried * 16 ** 1.3)
    command = command_of(missing)
    assert command.startswith("hvdscale-train made/net --global-batch 64 --lr ") and "--lr-rule power:1.3" in command
    assert "--base-batch 4" in command and "'val/error<0.2'" in command
    assert "checkpoint" not in command and "--seed" not in command
    assert command in as_csv(missing_table(found))
    assert "1 run would show more" in " ".join(rules_table(found).notes)


def test_the_steps_of_a_schedule_are_scaled_with_the_budget():
    made = {batch: searched(batch, 0.04, 400 * 4 / batch, count=12, width=0.6) for batch in (4, 8)}
    logs = [logged(*runs, path=f"b{batch}.h5", decay_steps=[one.row["budget_steps"] * 0.75 for one in runs])
            for batch, runs in made.items()]
    found = next(rules_along([curve_of(*logs)], [Rule("power:3")]))
    budgets = [made[batch][0].row["budget_steps"] for batch in (4, 8)]
    assert [one.values["decay_steps"] for one in found.costs[0].missing] == [round(0.75 * budgets[1])]


def test_without_plans_the_missing_values_are_said_and_no_command():
    runs = {4: searched(4, 0.04, 400, width=1.0), 8: searched(8, 0.08, 200, width=0.6)}
    for one in (*runs[4], *runs[8]):
        one.row["plan"] = ""
    logs = [logged(*runs[batch], path=f"b{batch}.h5") for batch in runs]
    found = next(rules_along([curve_of(*logs)], [Rule("power:4")]))
    [missing] = found.costs[0].missing
    assert command_of(missing) == "" and missing_table(found).rows[0].cells[-1].shown == "n/a"
    assert missing.values["learning_rate"] == pytest.approx(missing.rate)


# little to go by

def test_one_tuned_batch_or_none_gives_nothing():
    tuned = logged(*searched(4, 0.04, 400), path="b4.h5")
    assert next(rules_along([curve_of(tuned)])) is None
    for diverged in (False, True):
        lost = [run(id, 8, math.inf, every=10, budget=100, lr=0.1 + id, diverged=diverged) for id in range(8)]
        assert next(rules_along([curve_of(tuned, logged(*lost, path="b8.h5"))])) is None


def test_where_few_met_the_target_nothing_is_claimed():
    few = [run(id, 16, 50 if id < 2 else math.inf, every=10, budget=100, lr=0.01 * 2 ** id) for id in range(6)]
    logs = [logged(*searched(4, best_rate(4), fewest(4)), path="b4.h5"), logged(*few, path="b16.h5")]
    found = next(rules_along([curve_of(*logs)]))
    point = cost(found, "linear").points[-1]
    assert point.how == FEW and point.verdict == UNKNOWN and math.isnan(point.loss.value)
    assert found.rates[-1].why == FEW and math.isnan(found.exponent.value)
    costs, grows = find_rules(found)
    assert costs.named == {"batch": 4, "costs": "their cost at batch 16 is unknown (too few trials met the target)"}
    assert grows.kind == "exponent_unknown" and grows.named["batches"] == 1
    assert "n/a" in as_text(rules_table(found))


def test_a_best_rate_that_the_space_cut_off_is_not_known():
    falling = [run(id, 16, math.ceil(800 * 1.6 ** -id / 10) * 10, every=10, budget=4000, lr=0.001 * 1.6 ** id)
               for id in range(9)]
    base = logged(*searched(4, best_rate(4), fewest(4)), path="b4.h5")
    found = next(rules_along([curve_of(base, logged(*falling, path="b16.h5"))]))
    assert found.rates[-1].why == OPEN and cost(found, "linear").points[-1].how == OPEN


# the landscape and the exponent

def test_trials_that_never_met_or_diverged_count():
    random = np.random.default_rng(3)
    log_rate = random.uniform(-4, 4, 40)
    steps = np.ceil(100 * np.exp(valley(log_rate, 1.0, 3.0) + random.exponential(0.1, 40)))
    known = np.where(steps < 300, steps, np.inf)
    found = landscape_of(log_rate, np.where(steps < 300, steps - 1, 300), known)
    above = np.exp(valley(1.5, 1.0, 3.0))
    assert found.loss(1.5, 0.95).low <= above <= found.loss(1.5, 0.95).high and found.loss(1.5, 0.95).low > 2
    assert found.optimum(0.95).low <= 1 <= found.optimum(0.95).high and found.bracketed
    met = steps < 300
    assert landscape_of(log_rate[met], steps[met] - 1, steps[met]).loss(1.5, 0.95).low < found.loss(1.5, 0.95).low
    assert landscape_of(log_rate[met][:3], steps[met][:3] - 1, steps[met][:3]) is None      # too few met
    assert landscape_of(np.zeros(6), np.full(6, 90.0), np.full(6, 100.0)) is None           # one rate


def test_pruned_trials_hardly_change_what_is_found():
    whole, pruned = ([logged(*searched(batch, best_rate(batch), fewest(batch), count=30, keep=keep),
                             path=f"b{batch}.h5") for batch in (4, 8, 16)] for keep in (None, 5))
    for one, other in zip(next(rules_along([curve_of(*whole)])).rates, next(rules_along([curve_of(*pruned)])).rates):
        assert other.best.low < one.best.value < other.best.high


def test_the_valley_is_0_at_its_minimum_with_slopes_on_either_side():
    assert valley(0.0, 1.0, 3.0) == pytest.approx(0) and valley(0.0, 0.7, 2.0, 0.3) == pytest.approx(0)
    grid = np.linspace(-3, 3, 601)
    assert valley(grid, 1.0, 3.0, 0.5).min() == pytest.approx(0, abs=1e-12)
    assert valley(-30.0, 1.0, 3.0) - valley(-31.0, 1.0, 3.0) == pytest.approx(-1)
    assert valley(31.0, 1.0, 3.0) - valley(30.0, 1.0, 3.0) == pytest.approx(3)


def known_rate(batch, rate, deviation):
    draws = np.log(rate) + deviation * np.random.default_rng(batch).standard_normal(1000)
    landscape = Landscape(draws, draws, np.zeros((4, 1000)), -9, 9, 10)
    return SimpleNamespace(global_batch=batch, best=Estimate(rate, rate * 0.9, rate * 1.1, 10), landscape=landscape)


def test_the_exponent_of_a_power_is_recovered_and_scatter_widens_its_interval():
    straight = exponent_of([known_rate(2 ** k, 0.1 * 2 ** (0.7 * k), 0.01) for k in range(8)])
    assert straight.value == pytest.approx(0.7, abs=0.01) and straight.low <= 0.7 <= straight.high
    scattered = exponent_of([known_rate(2 ** k, 0.1 * 2 ** (0.7 * k + (-1) ** k), 0.01) for k in range(8)])
    assert scattered.high - scattered.low > 10 * (straight.high - straight.low)
    two = exponent_of([known_rate(2, 0.1, 0.01), known_rate(4, 0.2, 0.01)])
    assert math.isnan(two.value) and two.batches == (2, 4)


@pytest.mark.slow
@pytest.mark.parametrize("shape, noise, keep", [("valley", 0.25, 5), ("valley", 0.6, None), ("squares", 0.25, 5)])
def test_intervals_of_the_loss_cover_the_truth_and_verdicts_are_seldom_wrong(shape, noise, keep, sweeps=60):
    from hvdscale.analysis.lr_response import landscapes_of
    random = np.random.default_rng(0)
    inside = known = wrong = 0
    for _ in range(sweeps):
        batches = 2.0 ** np.arange(1, 9)
        best = 0.8 * np.log(np.minimum(batches, 32) / 2)
        true = [(lambda x, b=b: 0.3 * (x - b) ** 2 if shape == "squares" else valley(x - b, 1.0, 3.0)) for b in best]
        found = landscapes_of([drawn(random, one, noise, keep) for one in true])
        for batch, one, landscape in zip(batches, true, found):
            for power in (1.0, 0.5, 0.0) if landscape is not None and landscape.bracketed else ():
                rate = power * np.log(batch / 2)
                loss, truth = landscape.loss(rate, 0.95), np.exp(one(rate))
                known += 1
                inside += loss.low <= 1.02 * truth and truth <= loss.high
                wrong += (loss.low > 1.2) != (truth > 1.2) and (loss.high <= 1.2) != (truth <= 1.2) and (
                    loss.low > 1.2 or loss.high <= 1.2)
    assert 0.9 <= inside / known and wrong / known < 0.025


@pytest.mark.parametrize("shape", ["wide flat top", "one-sided cliff", "valley"])
def test_rates_near_the_best_are_seldom_called_surely_lost_whatever_the_shape(shape):
    false, kept, unconfirmed = claims(shape, 50, 50)
    assert false <= 0.05 and kept >= 0.8 and (unconfirmed > 0.2 or shape == "valley")


def drawn(random, truth, noise, keep, count=20, every=10.0, budget=2000.0):
    log_rate = random.uniform(-5, 7, count)
    steps = np.ceil(150 * np.exp(truth(log_rate) + random.exponential(noise, count)) / every) * every
    steps = np.where(steps <= budget, steps, np.inf)
    before, met = np.where(np.isfinite(steps), steps - every, budget), []
    for at in range(count):
        limit = sorted(met)[keep - 1] if keep and len(met) >= keep else np.inf
        if steps[at] > limit:
            before[at], steps[at] = limit, np.inf
        elif np.isfinite(steps[at]):
            met.append(steps[at])
    return log_rate, before, steps


def test_the_likelihood_of_many_points_is_that_of_each_in_double_precision():
    random = np.random.default_rng(0)
    steps = np.where(random.random(70) < 0.3, np.inf, random.uniform(50, 500, 70))
    low = np.log(np.where(np.isfinite(steps), 0.8 * steps, 600))
    log_rate, high = random.uniform(-5, 0, 70), np.log(steps)
    trials = _CensoredTrials(log_rate, low, high, _PRIOR)
    points = trials.draw_prior(random)[:300]
    points[::7, 0] += 100                                               # outside the box
    best, fewest, *shape = points.T[:, :, None]
    *shape, scale = np.exp(shape)
    middle = fewest + valley(log_rate - best, *shape)
    low, high = (low - middle) / scale, (high - middle) / scale
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        share = log_expit(high) + log_expit(-low) + np.log(-np.expm1(low - high))
    plain = np.where(share > -50, share, -50).sum(-1)
    np.testing.assert_allclose(trials.likelihood(points), plain, rtol=1e-5)
    found = trials.posterior(points)
    assert np.isneginf(found[::7]).all() and np.isfinite(np.delete(found, np.s_[::7])).all()
