"""What a learning-rate rule cost, in tables and sentences.

    found = rules_of(curve)
    print(*rules_said(found), sep="\\n"); print(as_text(rules_table(found)))
"""
from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence

from ...analysis.grouping import group_by
from ...analysis.intervals import Estimate
from ...analysis.rules import (BEYOND, FEW, FITTED, KEPT, LOST, NEAR, OPEN, OUTSIDE, RUNS, UNKNOWN, UNTRIED, Exponent,
                               Missing, Rule, RuleCost, RuleCosts, RulePoint)
from ...formatting.numbers import capital, counted, in_brackets, listed, number, percent, ratio, span, whole
from ...plan.settings import OPTIONS
from ..columns import BATCH, SHALLUE, STEPS
from ..table import Cell, Column, Row, Table, count_cell, interval_cell, interval_of, number_cell
from .words import best_of_interval

MARKS = {LOST: "!", UNKNOWN: "?", KEPT: ""}
NAMES = {"linear": "linear scaling", "sqrt": "square-root scaling", "none": "a constant rate",
         "adam_sqrt": "Adam's square-root scaling", "adam_sqrt:beta2": "Adam's square-root scaling without beta1"}
DROPPED = ("workload", "checkpoint", "checkpoint_every", "resume", "log", "seed", "config", "noise_every", "keep_going",
           "lr_per_example", "save_model")      # of what a trial was asked, not for another run
FIRST = ("global_batch", "optimizer", "lr", "base_batch", "lr_rule", "max_lr_factor", "momentum")
HOW = {RUNS: "runs", FITTED: "fit", "base": "base"}
PROBLEMS = {FEW: "too few trials met the target", OPEN: "the trials do not bracket the best rate",
            OUTSIDE: "outside what was tried", UNTRIED: "no run was made with the rule",
            BEYOND: "the rule leaves a beta no decay"}


def rules_said(found: RuleCosts | None) -> tuple[str, ...]:
    """Where each rule first loses or that it holds, then how the best rate grows; () for None."""
    return () if found is None else (
        f"Learning-rate rules from the best of batch {found.base_batch:,}, beside tuning every batch: "
        f"{'; '.join(_found_said(found))}.",
        f"{capital(_exponent_said(found))}.")


def _found_said(found: RuleCosts) -> Iterator[str]:
    """What the costs of the rules come to, in parts of a sentence."""
    last, more = f"batch {found.rates[-1].global_batch:,}", f"{percent(found.tolerance)} more steps"
    lost, held, open_, unknown = _sorted(found.costs)
    for (high, low), alike in group_by(lost, lambda cost: (cost.first_lost.high, cost.first_lost.low)).items():
        perhaps = f" (perhaps from {low:,.0f})" if low < high else ""
        yield f"{_rules(alike, 'surely need')} over {more} from batch {high:,.0f}{perhaps}"
    if held:
        yield f"{_rules(held, 'need')} at most {more} up to {last}"
    for low, alike in group_by(open_, lambda cost: cost.first_lost.low).items():
        yield f"{_rules(alike)} may need over {more} from batch {low:,.0f}"
    for how, alike in group_by(unknown, lambda cost: cost.points[-1].how).items():
        why = PROBLEMS.get(how, "seeds of the tuned trial did not meet the target")
        whose = "their cost" if len(alike) == len(found.costs) else f"the cost of {_rules(alike)}"
        yield f"{whose} at {last} is unknown ({why})"


def _sorted(costs: Sequence[RuleCost]) -> tuple[list[RuleCost], list[RuleCost], list[RuleCost], list[RuleCost]]:
    """The rules that surely lose at some batch, first lost first; that surely lose at none; whose loss at the last
    batch is known; and others."""
    lost = [cost for cost in costs if math.isfinite(cost.first_lost.high)]
    held = [cost for cost in costs if math.isinf(cost.first_lost.low)]
    rest = [cost for cost in costs if cost not in (*lost, *held)]
    known = [cost for cost in rest if not math.isnan(cost.points[-1].loss.value)]
    return (sorted(lost, key=lambda cost: cost.first_lost.high), held, known,
            [cost for cost in rest if cost not in known])


def _rules(costs: Sequence[RuleCost], verb: str = "") -> str:
    """``linear scaling needs``, ``linear scaling and a constant rate need``; the names alone without a verb."""
    names = listed(rule_name(cost.rule) for cost in costs)
    return f"{names} {verb}{'s' if len(costs) == 1 else ''}" if verb else names


def rule_name(rule: Rule) -> str:
    """``linear scaling up to 8 times``."""
    word, _, power = rule.name.partition(":")
    said = NAMES.get(rule.name) or f"scaling by the power {power}"
    return said if rule.cap is None else f"{said} up to {rule.cap:g} times"


def rate_name(found: RuleCosts) -> str:
    """What is scaled."""
    return "effective learning rate" if found.effective else "learning rate"


def _exponent_said(found: RuleCosts) -> str:
    count, name = len(found.exponent.batches), rate_name(found)
    if not math.isfinite(found.exponent.value):
        return f"how the best {name} grows cannot be estimated from {count} {'batch' if count == 1 else 'batches'}"
    return f"the best {name} grows as batch^{_power(found.exponent)}"


def _power(exponent: Exponent) -> str:
    return f"{exponent.value:.2f} ({exponent.low:.2f} to {exponent.high:.2f})"


def command_of(run: Missing) -> str:
    """The command that makes a missing run; empty where the logs do not say how their trials were made."""
    asked = {name: value for name, value in run.asked.items() if name not in DROPPED and value is not None}
    if not run.asked.get("workload"):
        return ""
    words = ["hvdscale-train", str(run.asked["workload"])]
    for name in [*(name for name in FIRST if name in asked), *(name for name in asked if name not in FIRST)]:
        words += _option(name, asked[name])
    return shlex.join(words)


def _option(name: str, value: object) -> list[str]:
    if isinstance(value, dict):
        return [word for entry, inner in value.items() for word in ("--set", f"{name}.{entry}={_text(inner)}")]
    if not any(name in names for names in OPTIONS.values()):
        return ["--set", f"{name}={_text(value)}"]
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [flag] if value else []
    return [flag, _text(value)]


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    return ",".join(map(_text, value)) if isinstance(value, (list, tuple)) else str(value)


def rules_table(found: RuleCosts) -> Table:
    """By batch: the best rate, and what each rule loses."""
    rate = rate_name(found)
    columns = (
        BATCH, STEPS,
        Column("tried_rate", f"best {rate} tried", "1", f"{_formula(found)} of the trial with the fewest "
               "steps", SHALLUE),
        Column("best_rate", "fitted", "1", "median of the best rate that the trials leave open; see the notes"),
        *(Column(f"loss_{_key(cost.rule)}", _heading(cost.rule), "1", "steps at the rule's rate over steps at the best "
                 "rate of the batch", SHALLUE) for cost in found.costs))
    rows = []
    for at, one in enumerate(found.rates):
        points = [cost.points[at] for cost in found.costs]
        steps = found.tuned_steps[at]
        rows.append(Row((
            count_cell(one.global_batch), _steps_cell(steps), number_cell(one.tried), interval_cell(one.best),
            *map(_loss_cell, points)),
            tuple(dict.fromkeys((*one.keys, *(key for point in points for key in point.keys)))), (),
            (found.base.key(found.base_trial),)))
    return Table("lr-rules", f"What a learning-rate rule costs: {found.target}", columns, tuple(rows),
                 (f"Under the steps to target: {best_of_interval(found.confidence)}", *notes(found)),
                 warnings=_from_fitted_said(found))


def points_table(found: RuleCosts) -> Table:
    """Every rule at every batch, with its rate and the trials near it."""
    columns = (
        Column("rule", "rule"), BATCH,
        Column("rate", f"{rate_name(found)} asked for", "1", f"{_formula(found)} at the base batch, times the rule's "
                                                             "factor"),
        Column("near", "trials near", "1", f"of the search, within a factor of {NEAR:g} of that rate; below: how many "
               "met the target"),
        Column("near_steps", "fewest steps of them", "steps", "of those near"),
        Column("loss", "steps over tuned", "1", "steps at the rule's rate over steps at the best rate", SHALLUE),
        Column("steps", "steps under the rule", "steps", "steps of the tuned optimum times the loss"),
        Column("how", "known from", "1", "runs made with the rule, or the landscape fitted to the search's trials"))
    rows = [Row((
        Cell(str(cost.rule)), count_cell(point.global_batch), number_cell(point.rate),
        count_cell(point.near.trials, f"{point.near.met} met" if point.near.trials else ""),
        Cell(whole(point.near.fewest) if point.near.met else "n/a", point.near.fewest), _loss_cell(point),
        _steps_cell(point.steps), Cell(HOW.get(point.how) or PROBLEMS[point.how])), point.keys, (), point.near.keys)
        for cost in found.costs for point in cost.points]
    return Table("lr-rule-points", f"Learning-rate rules point by point: {found.target}", columns, tuple(rows),
                 notes(found))


def missing_table(found: RuleCosts) -> Table | None:
    """The runs that would decide; None where none is missing."""
    runs = [run for cost in found.costs for run in cost.missing]
    if not runs:
        return None
    names = list(dict.fromkeys(name for run in runs for name in run.values))
    columns = (Column("rule", "rule"), BATCH, Column("rate", rate_name(found), "1", _formula(found)),
               *(Column(name, name.replace("_", " "), "1", "of the base's best trial; a rate scaled by the rule, a "
                        "schedule's steps by the budget") for name in names), Column("command", "command"))
    rows = tuple(Row((Cell(str(run.rule)), count_cell(run.global_batch), number_cell(run.rate),
                      *(number_cell(run.values[name]) if name in run.values else Cell("n/a") for name in names),
                      Cell(command_of(run) or "n/a")),
                     (found.base.key(found.base_trial),), ()) for run in runs)
    return Table("lr-rule-missing", f"Runs that would show where a rule first loses: {found.target}", columns, rows, ())


def notes(found: RuleCosts) -> tuple[str, ...]:
    """What must be known to read the tables."""
    said = [_start_said(found)]
    hows = {point.how for cost in found.costs for point in cost.points}
    if FITTED in hows:
        said.append("Loss: steps at the rule's rate over steps at the best rate of the same batch, from a smooth curve "
                    "through all the search's trials there (those that did not meet the target count as needing more "
                    "than they ran), the other metaparameters as drawn; its shape is shared between batches as far as "
                    "they agree.")
    if RUNS in hows:
        said.append("Runs: made with the rule, over their seeds, against the tuned point over its own.")
    said.append(f"{MARKS[LOST]} surely more than {percent(found.tolerance)}; {MARKS[UNKNOWN]} the "
                f"{found.confidence:.0%} interval under it leaves that open; >: more steps than any trial "
                "there was to run, and all that is known; outside: the rate lies outside what was tried, where it "
                "loses no less than at the end of that; n/a: nothing is known.")
    if hows & {UNTRIED, BEYOND}:
        said.append("adam_sqrt: the search's trials have other betas, so only runs made with it show what it costs; it "
                    "ends where 1 - beta, times the ratio of the batches, reaches 1.")
    said += _perfect_said(found)
    missing = sum(len(cost.missing) for cost in found.costs)
    if missing:
        said.append(f"{counted(missing, 'run')} would show more: the table lr-rule-missing, among the files of --out, "
                    "has the commands; run each with three seeds.")
    return tuple(said)


def _start_said(found: RuleCosts) -> str:
    log, trial = found.base.key(found.base_trial)
    why = ", since the momentum was searched too" if found.effective else ""
    return (f"Rules start from the best of batch {found.base_batch:,}, {log}:{trial}: {rate_name(found)} "
            f"{number(found.base_rate)}. What is scaled: {_formula(found)}{why}.")


def _from_fitted_said(found: RuleCosts) -> tuple[str, ...]:
    """Where each rule would surely lose from the fitted best rate of the base."""
    if not found.costs_from_fitted:
        return ()
    best = found.rates[0].best
    lost = [(rule_name(cost.rule), cost.first_lost.high) for cost in found.costs_from_fitted]
    said = listed(f"{name} {'at none' if math.isinf(batch) else f'from {batch:,.0f}'}" for name, batch in lost)
    return (f"At batch {found.base_batch:,} the trials put the best rate at {number(best.value)}"
            f"{in_brackets(best.low, best.high)}, not where rules start. From there they would surely lose more than "
            f"{percent(found.tolerance)}: {said}.",)


def _perfect_said(found: RuleCosts) -> list[str]:
    """How the best rate grows as far as scaling is perfect, where that rules linear scaling in or out."""
    perfect = found.exponent_perfect
    if perfect is None or not perfect.high - perfect.low < 1 or perfect.batches == found.exponent.batches:
        return []
    return [f"Up to batch {perfect.batches[-1]:,}, where steps still fall in proportion, the best rate grows as "
            f"batch^{_power(perfect)}. Linear scaling is 1, square root 0.5, constant 0."]


def _formula(found: RuleCosts) -> str:
    return "lr / (1 - momentum)" if found.effective else "lr"


def _key(rule: Rule) -> str:
    return str(rule).replace("<=", "_max_").replace(":", "_").replace(".", "p")


def _heading(rule: Rule) -> str:
    name = {"sqrt": "square root", "none": "constant"}.get(rule.name, rule.name)
    return name if rule.cap is None else f"{name} up to x{rule.cap:g}"


def _loss_cell(point: RulePoint) -> Cell:
    loss, mark = point.loss, MARKS[point.verdict]
    outside = "outside" if point.how == OUTSIDE else ""
    if loss.value != loss.value:
        return Cell(outside or "n/a", math.nan, math.nan, math.nan)
    if math.isinf(loss.value):
        below = outside or (span(loss.low, loss.high, ratio) if loss.low < loss.beyond else "")
        return Cell(f"> {ratio(loss.beyond)} {mark}".strip(), loss.value, loss.low, loss.high, below)
    below = "base" if point.how == "base" else span(loss.low, loss.high, ratio)
    return Cell(f"{ratio(loss.value)} {mark}".strip(), loss.value, loss.low, loss.high, below)


def _steps_cell(steps: Estimate) -> Cell:
    if math.isinf(steps.value) and math.isfinite(steps.beyond):
        return Cell(f"> {whole(steps.beyond)}", steps.value, steps.low, steps.high)
    return Cell(whole(steps.value) if steps.met else "n/a", steps.value, steps.low, steps.high,
                interval_of(steps, whole))
