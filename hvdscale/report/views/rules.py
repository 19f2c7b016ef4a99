"""What a learning-rate rule cost, in tables and sentences."""

import math
import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from ...analysis.rules import (BEYOND, FITTED, KEPT, LOST, NEAR, OUTSIDE, RUNS, UNKNOWN, UNTRIED, Rule,
                               RuleCost, RuleCosts, RulePoint)
from ...analysis.studies import group_by
from ...formatting.numbers import number, percent, ratio, span, whole
from ...plan.settings import OPTIONS
from ..document import Details, Finding, Part
from ..subject import Subject
from ..table import Cell, Table, cell_of, keys_of, no_cell, steps_cell
from ..texts import SEARCH, Cells

MARKS = {LOST: "!", UNKNOWN: "?", KEPT: ""}
DROPPED = ("workload", "checkpoint", "checkpoint_every", "resume", "log", "seed", "config", "noise_every", "keep_going",
           "lr_per_example", "save_model")      # of what a trial was asked, not for another run
FIRST = ("global_batch", "optimizer", "lr", "base_batch", "lr_rule", "max_lr_factor", "momentum")


def rule_costs(subject: Subject) -> Iterator[Part]:
    if found := subject.costs:
        yield from find_rules(found)
        yield rules_table(found)
        yield Details(lambda: [points_table(found), missing_table(found)])


def rate_words(effective: bool) -> dict[str, Any]:
    return ({"rate": "effective learning rate", "formula": "lr / (1 - momentum)"} if effective else
            {"rate": "learning rate", "formula": "lr"})


def find_rules(found: RuleCosts) -> tuple[Finding, ...]:
    exponent, rate = found.exponent, rate_words(found.effective)["rate"]
    return (SEARCH.find("rules", batch=found.base.global_batch, costs="; ".join(_describe_costs(found))),
            SEARCH.find("exponent", exponent, rate=rate, power=exponent) if math.isfinite(exponent.value) else
            SEARCH.find("exponent_unknown", rate=rate, batches=len(exponent.batches)))


def _describe_costs(found: RuleCosts) -> Iterator[str]:
    """What the costs of the rules come to, in parts of a sentence: those that surely lose at some batch, first lost
    first; that surely lose at none; whose loss at the last batch is known; and others."""
    last, more = found.rates[-1].global_batch, percent(found.tolerance)
    lost = sorted((cost for cost in found.costs if math.isfinite(cost.first_lost.high)),
                  key=lambda cost: cost.first_lost.high)
    held = [cost for cost in found.costs if math.isinf(cost.first_lost.low)]
    rest = group_by((cost for cost in found.costs if cost not in (*lost, *held)),
                    lambda cost: math.isnan(cost.points[-1].loss.value))

    def names(costs: Sequence[RuleCost]) -> list[str]:
        return [rule_name(cost.rule) for cost in costs]
    for (high, low), alike in group_by(lost, lambda cost: (cost.first_lost.high, cost.first_lost.low)).items():
        yield SEARCH.say("rules_lost", rules=names(alike), more=more, batch=f"{high:,.0f}",
                         perhaps=f"{low:,.0f}" if low < high else None)
    if held:
        yield SEARCH.say("rules_held", rules=names(held), more=more, last=last)
    for low, alike in group_by(rest.get(False, ()), lambda cost: cost.first_lost.low).items():
        yield SEARCH.say("rules_open", rules=names(alike), more=more, batch=f"{low:,.0f}")
    for how, alike in group_by(rest.get(True, ()), lambda cost: cost.points[-1].how).items():
        yield SEARCH.say("rules_unknown", rules=names(alike), all=len(alike) == len(found.costs), last=last,
                         why=SEARCH.words("why").get(how, "seeds of the tuned trial did not meet the target"))


def rule_name(rule: Rule) -> str:
    """``linear scaling up to 8 times``."""
    word, _, power = rule.name.partition(":")
    said = SEARCH.words("rule").get(rule.name) or f"scaling by the power {power}"
    return said if rule.cap is None else f"{said} up to {rule.cap:g} times"


def command_of(run: RulePoint) -> str:
    """The command that makes a missing run; empty where the logs do not say how their trials were made."""
    asked = {name: value for name, value in run.asked.items() if name not in DROPPED and value is not None}
    if not run.asked.get("workload"):
        return ""
    words = ["hvdscale-train", str(run.asked["workload"])]
    for name in [*(name for name in FIRST if name in asked), *(name for name in asked if name not in FIRST)]:
        value, flag = asked[name], f"--{name.replace('_', '-')}"
        if isinstance(value, dict):
            words += [word for entry, inner in value.items() for word in ("--set", f"{name}.{entry}={_text(inner)}")]
        elif not any(name in names for names in OPTIONS.values()):
            words += ["--set", f"{name}={_text(value)}"]
        elif isinstance(value, bool):
            words += [flag] if value else []
        else:
            words += [flag, _text(value)]
    return shlex.join(words)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    return ",".join(map(_text, value)) if isinstance(value, (list, tuple)) else str(value)


def rules_table(found: RuleCosts) -> Table:
    columns: Cells = {}
    for cost in found.costs:
        name = {"sqrt": "square root", "none": "constant"}.get(cost.rule.name, cost.rule.name)
        key = str(cost.rule).replace("<=", "_max_").replace(":", "_").replace(".", "p")
        heading = name if cost.rule.cap is None else f"{name} up to x{cost.rule.cap:g}"
        columns[SEARCH.column("loss_of_rule", f"loss_{key}", heading=heading)] = partial(
            lambda cost, at: _loss_cell(cost.points[at]), cost)
    lost = [f"{rule_name(one.rule)} " + ("at none" if math.isinf(one.first_lost.high) else
                                         f"from {one.first_lost.high:,.0f}") for one in found.costs_from_fitted or ()]
    return SEARCH.table("lr-rules", range(len(found.rates)), {
        "global_batch": lambda at: found.rates[at].global_batch,
        "steps_to_target": lambda at: steps_cell(found.rates[at].steps, whole),
        "tried_rate": lambda at: found.rates[at].tried, "best_rate": lambda at: found.rates[at].best, **columns},
        lambda at: keys_of([found.rates[at], *(cost.points[at] for cost in found.costs)]),
        baseline=lambda at: (found.base.keys[0],), what=found.target, **rate_words(found.effective),
        notes=(f"Under the steps to target: {SEARCH.say('best_of_interval', confidence=found.confidence)}",
               *notes(found)),
        warnings=[SEARCH.say_if("from_fitted", lost, batch=found.base.global_batch, best=found.rates[0].best,
                                rules=lost, more=percent(found.tolerance))])


def _loss_cell(point: RulePoint) -> Cell:
    loss, mark, outside = point.loss, MARKS[point.verdict], "outside" if point.how == OUTSIDE else ""
    if math.isnan(loss.value):
        return no_cell(outside or "n/a")
    shown, below = ratio(loss.value), "base" if point.how == "base" else span(loss.low, loss.high, ratio)
    if math.isinf(loss.value):
        shown = f"> {ratio(loss.beyond)}"
        below = outside or (span(loss.low, loss.high, ratio) if loss.low < loss.beyond else "")
    return Cell(f"{shown} {mark}".strip(), loss.value, loss.low, loss.high, below)


def points_table(found: RuleCosts) -> Table:
    return SEARCH.table("lr-rule-points", [(cost, point) for cost in found.costs for point in cost.points], {
        "rule": lambda row: str(row[0].rule), "global_batch": lambda row: row[1].global_batch,
        SEARCH.column("rate_of_rule", "rate", **rate_words(found.effective)): lambda row: row[1].rate,
        "near": lambda row: cell_of(len(row[1].near), f"{row[1].near_met} met" if row[1].near else ""),
        "near_steps": lambda row: Cell(whole(row[1].near_fewest) if row[1].near_met else "n/a", row[1].near_fewest),
        "loss": lambda row: _loss_cell(row[1]), "steps": lambda row: steps_cell(row[1].steps, whole),
        "how": lambda row: SEARCH.words("how").get(row[1].how) or SEARCH.words("why")[row[1].how]},
        lambda row: row[1].keys, baseline=lambda row: row[1].near, notes=notes(found), what=found.target,
        factor=f"{NEAR:g}")


def missing_table(found: RuleCosts) -> Table | None:
    runs = [run for cost in found.costs for run in cost.missing]
    if not runs:
        return None
    return SEARCH.table("lr-rule-missing", runs, {
        "rule": lambda run: str(run.rule), "global_batch": lambda run: run.global_batch,
        SEARCH.column("missing_rate", "rate", **rate_words(found.effective)): lambda run: run.rate,
        **{SEARCH.column("missing_value", name, title=name.replace("_", " ")):
           partial(lambda name, run: run.values.get(name, "n/a"), name)
           for name in dict.fromkeys(name for run in runs for name in run.values)},
        "command": lambda run: command_of(run) or "n/a"}, lambda run: (found.base.keys[0],), what=found.target)


def notes(found: RuleCosts) -> tuple[str, ...]:
    log, trial = found.base.keys[0]
    hows, perfect = {point.how for cost in found.costs for point in cost.points}, found.exponent_perfect
    missing = sum(len(cost.missing) for cost in found.costs)
    return (SEARCH.say("rules_start", batch=found.base.global_batch, trial=f"{log}:{trial}",
                       value=number(found.base.tried), effective=found.effective, **rate_words(found.effective)),
            SEARCH.say_if("rules_loss", FITTED in hows), SEARCH.say_if("rules_runs", RUNS in hows),
            SEARCH.say("rules_marks", lost=MARKS[LOST], unknown=MARKS[UNKNOWN], more=percent(found.tolerance),
                       confidence=found.confidence),
            SEARCH.say_if("rules_adam", hows & {UNTRIED, BEYOND}),
            SEARCH.say("rules_perfect", batch=perfect.batches[-1], power=perfect) if perfect is not None
            and perfect.high - perfect.low < 1 and perfect.batches != found.exponent.batches else "",
            SEARCH.say_if("rules_missing", missing, runs=missing))
