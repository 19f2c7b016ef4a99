"""What a learning-rate rule cost, in tables and sentences.

    found = rules_of(curve)
    print(*rules_said(found), sep="\\n"); print(as_text(rules_table(found)))
"""
from __future__ import annotations

import math
import shlex

from ..analysis.rules import FEW, FITTED, KEPT, LOST, NEAR, OPEN, OUTSIDE, RUNS, UNKNOWN
from ..config import KEYS
from .numbers import capital, counted, in_brackets, listed, number, percent, ratio, span, whole
from .tables import BATCH, SHALLUE, STEPS, Cell, Column, Row, Table

MARKS = {LOST: "!", UNKNOWN: "?", KEPT: ""}
NAMES = {"linear": "linear scaling", "sqrt": "square-root scaling", "none": "a constant rate"}
MOST_MISSING = 3            # runs that are named in sentences
DROPPED = ("workload", "checkpoint", "checkpoint_every", "resume", "log", "seed", "config", "noise_every", "keep_going",
           "lr_per_example", "save_model")      # of what a trial was asked, not for another run
FIRST = ("global_batch", "optimizer", "lr", "base_batch", "lr_rule", "max_lr_factor", "momentum")
PROBLEMS = {FEW: "too few trials met the target to tell", OPEN: "the trials do not bracket the best rate",
            OUTSIDE: "no trial was run near the rule's rate"}


def rules_said(found) -> tuple[str, ...]:
    """Where each rule first loses, how the best rate grows, and which trials are missing; () for None."""
    if found is None:
        return ()
    return (_start_said(found), *(_cost_said(found, cost) for cost in found.costs), *_from_fitted_said(found),
            *_exponent_said(found), *missing_said(found))


def rule_name(rule) -> str:
    """``linear scaling, at most 8 times``."""
    word, _, power = rule.name.partition(":")
    said = NAMES.get(rule.name) or f"scaling by the power {power}"
    return said if rule.cap is None else f"{said}, at most {rule.cap:g} times"


def rate_name(found) -> str:
    """What is scaled."""
    return "effective learning rate" if found.effective else "learning rate"


def _start_said(found):
    log, trial = found.base.key(found.base_trial)
    best = found.rates[0].best
    beside = (f". The trials there put the best rate at {number(best.value)}{in_brackets(best.low, best.high)}, so "
              "rules start beside it" if best.low > found.base_rate or best.high < found.base_rate else "")
    why = ", lr / (1 - momentum) because the momentum was searched too" if found.effective else ""
    return (f"Learning-rate rules, from the best of batch {found.base_batch:,} ({rate_name(found)} "
            f"{number(found.base_rate)}{why}; {log}:{trial}), against the tuned optimum of each larger batch{beside}.")


def _cost_said(found, cost):
    name, most = capital(rule_name(cost.rule)), percent(found.tolerance)
    lost, last = cost.first_lost, cost.points[-1]
    if math.isinf(lost.low):
        return f"{name} stays within {most} at every batch up to {last.global_batch:,}."
    if math.isinf(lost.high):
        held = [point.global_batch for point in cost.points if point.global_batch < lost.low]
        kept = f"stays within {most} up to batch {held[-1]:,}" if len(held) > 1 else f"may lose more than {most}"
        return (f"{name} {kept}: from batch {lost.low:,.0f} on the trials do not exclude it, and at none do they make "
                f"it sure{_at_largest(last)}.")
    sure = next(point for point in cost.points if point.global_batch == lost.high)
    where = f"at batch {lost.high:,.0f}"
    if lost.low < lost.high:
        where = f"somewhere from batch {lost.low:,.0f} to {lost.high:,.0f}"
        where += f" (by the best estimate at {lost.value:,})" if lost.value < lost.high else ""
        where += f"; at {lost.high:,.0f}"
    return (f"{name} first loses more than {most} {where}{':' if lost.low == lost.high else ' it takes'} "
            f"{_loss_said(sure)}{_at_largest(last) if sure is not last else ''}.")


def _from_fitted_said(found):
    """Where each rule would first lose from the fitted best rate of the base."""
    if not found.costs_from_fitted:
        return []
    said = [f"{rule_name(cost.rule)} {_first_short(cost.first_lost)}" for cost in found.costs_from_fitted]
    return [f"Started there from {number(found.rates[0].best.value)} instead, they first lose more than "
            f"{percent(found.tolerance)}: {'; '.join(said)}."]


def _first_short(lost):
    """Where a rule first loses, in few words."""
    if math.isinf(lost.low):
        return "at no batch"
    if math.isinf(lost.high):
        return f"at batch {lost.low:,.0f} at the earliest, surely at none"
    return f"at batch {lost.low:,.0f}" + (f" to {lost.high:,.0f}" if lost.low < lost.high else "")


def _loss_said(point):
    if math.isinf(point.loss.value):
        return f"more than {ratio(point.loss.beyond)} times the steps"
    return f"{ratio(point.loss.value)} times the steps{in_brackets(point.loss.low, point.loss.high, ratio)}"


def _at_largest(point):
    known = point.loss.value == point.loss.value
    return f"; at batch {point.global_batch:,} it takes {_loss_said(point)}" if known else ""


def _exponent_said(found):
    whole_range, perfect = found.exponent, found.exponent_perfect
    if not math.isfinite(whole_range.value):
        return [f"How the best {rate_name(found)} grows with the batch is not known: the trials bracket it at "
                f"{counted(len(whole_range.batches), 'batch').replace('batchs', 'batches')}, and a power needs three."]
    said = (f"The best {rate_name(found)} grows as batch^{_power(whole_range)} from batch {whole_range.batches[0]:,} "
            f"to {whole_range.batches[-1]:,}")
    if perfect is not None and math.isfinite(perfect.value) and perfect.batches != whole_range.batches:
        said += (f", as batch^{_power(perfect)} up to {perfect.batches[-1]:,}, where steps still fall in proportion")
    return [said + ". (Linear scaling is 1, square root 0.5, constant 0.)"]


def _power(exponent):
    return f"{exponent.value:.2f} ({exponent.low:.2f} to {exponent.high:.2f})"


def missing_said(found, most=MOST_MISSING) -> tuple[str, ...]:
    """The runs that would tell where each rule first loses, the first of each rule before others."""
    by_rule = [cost.missing for cost in found.costs]
    runs = [missing[at] for at in range(max(map(len, by_rule), default=0)) for missing in by_rule if at < len(missing)]
    points = {(cost.rule, point.global_batch): point for cost in found.costs for point in cost.points}
    said = [_missing_one(found, run, points[run.rule, run.global_batch]) for run in runs[:most]]
    rest = len(runs) - most
    return (*said, f"The table of missing runs has {rest} more.") if rest > 0 else tuple(said)


def _missing_one(found, run, point):
    rate = f"within a factor of {NEAR:g} of {rate_name(found)} {number(run.rate)}"
    near = point.near.trials
    said = f"no trial lies {rate}" if not near else f"{counted(near, 'trial')} {'lies' if near == 1 else 'lie'} {rate}"
    said += f", and {PROBLEMS[point.how]}" if point.how in (FEW, OPEN) else "" if not near else ", too few to tell"
    return f"Not known for {rule_name(run.rule)}: at batch {run.global_batch:,} {said}. {run_said(run)}"


def run_said(run) -> str:
    """``Run under three seeds: hvdscale-train ...``, or the values to run with where the logs do not say how."""
    command = command_of(run)
    if command:
        return f"Run under three seeds: {command}"
    values = listed(f"{name.replace('_', ' ')} {number(value)}" for name, value in run.values.items())
    return f"Run it under three seeds: {values}."


def command_of(run) -> str:
    """The command that makes a missing run; empty where the logs do not say how their trials were made."""
    asked = {name: value for name, value in run.asked.items() if name not in DROPPED and value is not None}
    if not run.asked.get("workload"):
        return ""
    words = ["hvdscale-train", str(run.asked["workload"])]
    for name in [*(name for name in FIRST if name in asked), *(name for name in asked if name not in FIRST)]:
        words += _option(name, asked[name])
    return shlex.join(words)


def _option(name, value):
    if isinstance(value, dict):
        return [word for entry, inner in value.items() for word in ("--set", f"{name}.{entry}={_text(inner)}")]
    if name not in KEYS or not KEYS[name].metadata["flag"]:
        return ["--set", f"{name}={_text(value)}"]
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [flag] if value else []
    return [flag, _text(value)]


def _text(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    return ",".join(map(_text, value)) if isinstance(value, (list, tuple)) else str(value)


def rules_table(found) -> Table:
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
            Cell(f"{one.global_batch:,}", one.global_batch),
            Cell(whole(steps.value), steps.value, steps.low, steps.high, span(steps.low, steps.high, whole)),
            Cell(number(one.tried), one.tried),
            Cell(number(one.best.value), one.best.value, one.best.low, one.best.high,
                 span(one.best.low, one.best.high)),
            *map(_loss_cell, points)),
            tuple(dict.fromkeys((*one.keys, *(key for point in points for key in point.keys)))), (),
            (found.base.key(found.base_trial),)))
    return Table("lr-rules", f"What a learning-rate rule costs: {found.target}", columns, tuple(rows), notes(found))


def points_table(found) -> Table:
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
        Cell(str(cost.rule)), Cell(f"{point.global_batch:,}", point.global_batch), Cell(number(point.rate), point.rate),
        Cell(f"{point.near.trials:,}", point.near.trials, below=f"{point.near.met} met" if point.near.trials else ""),
        Cell(whole(point.near.fewest) if point.near.met else "n/a", point.near.fewest), _loss_cell(point),
        Cell(whole(point.steps.value) if point.steps.met else "n/a", point.steps.value, point.steps.low,
             point.steps.high, span(point.steps.low, point.steps.high, whole)),
        Cell(_how(point))), point.keys, (), point.near.keys) for cost in found.costs for point in cost.points]
    return Table("lr-rule-points", f"Learning-rate rules point by point: {found.target}", columns, tuple(rows),
                 notes(found))


def missing_table(found) -> Table | None:
    """The runs that would tell; None where none is missing."""
    runs = [run for cost in found.costs for run in cost.missing]
    if not runs:
        return None
    names = list(dict.fromkeys(name for run in runs for name in run.values))
    columns = (Column("rule", "rule"), BATCH, Column("rate", rate_name(found), "1", _formula(found)),
               *(Column(name, name.replace("_", " "), "1", "of the base's best trial; a rate scaled by the rule, a "
                        "schedule's steps by the budget") for name in names), Column("command", "command"))
    rows = tuple(Row((Cell(str(run.rule)), Cell(f"{run.global_batch:,}", run.global_batch),
                      Cell(number(run.rate), run.rate),
                      *(Cell(number(run.values[name]), run.values[name]) if name in run.values else Cell("n/a")
                        for name in names), Cell(command_of(run) or "n/a")),
                     (found.base.key(found.base_trial),), ()) for run in runs)
    return Table("lr-rule-missing", f"Runs that would tell where a rule first loses: {found.target}", columns, rows, ())


def notes(found) -> tuple[str, ...]:
    """What must be known to read the tables."""
    log, trial = found.base.key(found.base_trial)
    said = [f"Rules start from {log}:{trial}, the best of batch {found.base_batch:,}. What is scaled: "
            f"{_formula(found)}."]
    hows = {point.how for cost in found.costs for point in cost.points}
    if FITTED in hows:
        said.append("Loss: steps at the rule's rate over steps at the best rate of the same batch, from a smooth curve "
                    "through all the search's trials there (those that did not meet the target count as needing more "
                    "than they ran), the other metaparameters as drawn; its shape is shared between batches as far as "
                    "they agree.")
    if RUNS in hows:
        said.append("Runs: made with the rule, over their seeds, against the tuned point over its own.")
    said.append(f"{MARKS[LOST]} surely more than {percent(found.tolerance)}; {MARKS[UNKNOWN]} the "
                f"{found.confidence:.0%} interval under it does not tell; n/a: nothing is known.")
    return tuple(said)


def _formula(found):
    return "lr / (1 - momentum)" if found.effective else "lr"


def _key(rule):
    return str(rule).replace("<=", "_max_").replace(":", "_").replace(".", "p")


def _heading(rule):
    return str(rule).replace("<=", ", at most x") if rule.cap else rule.name


def _loss_cell(point):
    loss, mark = point.loss, MARKS[point.verdict]
    if loss.value != loss.value:
        return Cell("n/a", math.nan, math.nan, math.nan)
    if math.isinf(loss.value):
        return Cell(f"> {ratio(loss.beyond)} {mark}".strip(), loss.value, loss.low, loss.high)
    below = "base" if point.how == "base" else span(loss.low, loss.high, ratio)
    return Cell(f"{ratio(loss.value)} {mark}".strip(), loss.value, loss.low, loss.high, below)


def _how(point):
    return {RUNS: "runs", FITTED: "fit", "base": "base"}.get(point.how) or PROBLEMS[point.how]
