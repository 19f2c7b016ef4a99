"""What a search over metaparameters says of itself, in sentences.

    print(*lines(search), sep="\\n")
"""
from __future__ import annotations

import math
from collections.abc import Sequence

from ...analysis.search import IMPROVED, NEAR, Bound, Search
from ...formatting.numbers import counted, exact, in_brackets, listed, number, percent, spread, whole
from ...plan.search_space import STEPS_TO_TARGET, DrawEnd, Parameter

MOST_LISTED = 6         # values of a discrete dimension, beyond which only the ends are named
FLAG = "!"              # marks what the search should be asked next


def lines(search: Search) -> list[str]:
    """The study in a line: its trials and the best one; under it, indented, what the search should be asked next."""
    return [f"{search.optimizer}, B = {search.global_batch:,}: {trials_said(search)}. {best_said(search)}",
            *(f"  {said}" for said in hygiene(search))]


def trials_said(search: Search) -> str:
    """``12 feasible of 15 draws (3 diverged, 20%), 5 pruned: 41% of the steps saved at most``."""
    if not search.draws:
        return f"no trial has ended yet, of {search.wanted} feasible ones wanted"
    feasible = len(search.feasible)
    wanted = "" if feasible >= search.wanted else f" of {search.wanted} wanted"
    diverged, failed = (len(search.of_kind(kind)) for kind in (DrawEnd.DIVERGED, DrawEnd.FAILED))
    lost = [f"{diverged} diverged, {percent(search.diverged_share)}"] if diverged else []
    lost += [f"{failed} failed"] if failed else []
    said = f"{feasible} feasible{wanted}{',' * bool(wanted)} of {counted(len(search.draws), 'draw')}"
    said += f" ({'; '.join(lost)})" if lost else ""
    if search.prune_keep is None:
        return said
    pruned = len(search.of_kind(DrawEnd.PRUNED))
    share = search.saved_share
    saved = f": {percent(share)} of the steps saved at most" if pruned and share == share else ""
    return f"{said}, {pruned or 'none'} pruned{saved}"


def best_said(search: Search) -> str:
    """``Best: trial 7, 420 steps (not by 380), lr 0.31, momentum 0.974.``, or that there is none."""
    best = search.best
    if best is None and search.objective == STEPS_TO_TARGET:
        return f"No trial met {search.target}."
    if best is None:
        return f"No trial has a {search.objective}."
    point = "".join(f", {bound.parameter.name} {value_said(bound.parameter, bound.value)}" for bound in search.bounds)
    if search.objective != STEPS_TO_TARGET:
        return f"Best: trial {best.number}, {search.objective} {number(best.value)} at step {best.step:,.0f}{point}."
    steps, before = counted(round(best.value), "step"), f" ({not_by(best.before)})" * (best.before >= 0)
    return f"Best: trial {best.number}, {steps}{before}{point}.{_seeds_said(search)}"


def not_by(before: float) -> str:
    """``not by 380``: the last evaluation that did not meet the target, in other words than an interval's; empty where
    it is unknown."""
    return "" if math.isnan(before) else f"not by {exact(before, 0)}"


def value_said(parameter: Parameter, value: object) -> str:
    """A value of a dimension to three digits; on a reverse log scale of its distance from 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return exact(value)
    if parameter.scale == "reverse_log" and value < 1:
        return f"{1 - float(f'{1 - value:.2e}'):.12g}"
    return f"{value:.3g}"


def hygiene(search: Search) -> tuple[str, ...]:
    """Where the space may have cut the best point off, how far others lie from its ends, and whether more trials
    promise a better best."""
    if search.best is None or search.points_are_equal:
        return ()
    cut = [_cut_said(bound) for bound in search.bounds if bound.near]
    inside = [f"{bound.parameter.name} {percent(bound.distance)} ({end_name(bound)})" for bound in search.bounds
              if not (bound.near or bound.final or math.isnan(bound.position) or bound.parameter.values)]
    said = [f"Distance from the nearer end of the space: {', '.join(inside)}."] if inside else []
    return (*cut, *said, *_more_said(search))


def _cut_said(bound: Bound) -> str:
    parameter, value = bound.parameter, value_said(bound.parameter, bound.value)
    if parameter.values:
        ordered = sorted(set(parameter.values))
        shown = [value_said(parameter, one) for one in ordered]
        shown = shown if len(shown) <= MOST_LISTED else [shown[0], "...", shown[-1]]
        return (f"{parameter.name} {value} is the {'largest' if bound.upper else 'smallest'} of the values tried "
                f"({', '.join(shown)}): add {'larger' if bound.upper else 'smaller'} ones.")
    scale = parameter.scale.replace("_", " ")
    return (f"{parameter.name} {value} lies {percent(bound.distance)} from the {end_name(bound)} bound "
            f"{value_said(parameter, bound.end)} ({scale} scale): widen the space.")


def end_name(bound: Bound) -> str:
    """Of the end of a dimension that the best point is nearer to."""
    return "upper" if bound.upper else "lower"


def _more_said(search: Search) -> list[str]:
    half = search.half
    if half is None:
        return [] if not search.done else ["One feasible trial: nothing is known of what more would find."]
    whole_study = f"Going from {half.n} to {len(search.curve)} trials"
    if math.isinf(half.low):
        return [f"{whole_study} was needed to find any: at least half of all sets of {half.n} have none that met the "
                "target; more trials would still improve it."]
    word = "bettered" if search.objective != STEPS_TO_TARGET else "lowered"
    if math.isnan(search.lowered):
        return []
    amount = percent(search.lowered)
    if search.improving:
        least = "" if half.known else "at least "
        return [f"{whole_study} {word} the median best by {least}{amount}: more trials would still improve it."]
    if not half.known:
        return [f"{whole_study} {word} the median best by an amount that pruning leaves unknown: prune_keep = "
                f"{search.prune_keep} is too small to say."]
    if search.lowered > IMPROVED:
        return [f"{whole_study} {word} the median best by {amount}, no more than the steps between two evaluations: "
                "it is unclear whether more trials would improve it."]
    return [f"{whole_study} {word} the median best by {amount}: more trials would hardly improve it."]


def points_differ(searches: Sequence[Search]) -> bool:
    """Whether any of them searched a space; else their trials differ by seeds alone."""
    return not all(search.points_are_equal for search in searches)


def notes(searches: Sequence[Search]) -> tuple[str, ...]:
    """How to read the table of studies."""
    steps = searches[0].objective == STEPS_TO_TARGET
    said = ["Feasible: finite up to its stop. A draw that diverged or failed was replaced by the next one."]
    if points_differ(searches):
        said += ["Nearest bound: of the best point to an end of its space, as a share of the space in the scale of the "
                 f"search. {FLAG} within {NEAR:.0%}, or the last of the values tried where those nearer to it did "
                 "better than by chance: it may have been cut off.",
                 "Still improving: by how much the best of all feasible trials is "
                 f"{'below' if steps else 'better than'} the median best of half of them. {FLAG} by more than "
                 f"{IMPROVED:.0%}{' and than the steps between two evaluations' * steps}: more trials would still "
                 "improve it."]
    if steps:
        said.append("Not by: the evaluation before, which did not meet the target. It bounds this one trial; the "
                    "interval of what other draws would have found is under the steps by batch.")
    if any(search.of_kind(DrawEnd.PRUNED) for search in searches):
        said.append("Pruned: stopped once they could not be among the "
                    f"{listed(sorted({search.prune_keep for search in searches}), 'or')} with the fewest steps. Steps "
                    "saved: at most, as if each had run to the end of its budget.")
    return tuple(said)


def warnings(searches: Sequence[Search]) -> tuple[str, ...]:
    """Of the table of studies: those that are not done, or fell short of their trials."""
    said = []
    unfinished = [f"{search.global_batch:,} ({len(search.feasible)} of {search.wanted} feasible)" for search in searches
                  if not search.done]
    if unfinished:
        said.append(f"Not done yet: batch {listed(unfinished)}.")
    short = [f"{search.global_batch:,} ({len(search.feasible)} of {search.wanted})" for search in searches
             if search.done and len(search.feasible) < search.wanted]
    if short:
        said.append(f"Fewer feasible trials than wanted within max_draws: batch {listed(short)}.")
    return tuple(said)


def summary(searches: Sequence[Search]) -> tuple[str, ...]:
    """What the searches should be asked next, and at which batches; that there is nothing to ask where there is not."""
    cut: dict[str, list[str]] = {}
    improving = []
    searches = [search for search in searches if not search.points_are_equal]
    for search in searches:
        batch = f"{search.global_batch:,}"
        for bound in search.bounds if search.best else ():
            if bound.near:
                value = "" if bound.parameter.values else f" ({value_said(bound.parameter, bound.value)})"
                cut.setdefault(_asked_said(bound), []).append(batch + value)
        if search.best and search.improving:
            improving.append(f"{batch} ({_improved_said(search)})")
    asked = [f"{said}: batch {listed(batches)}." for said, batches in cut.items()]
    if improving:
        asked.append("More trials would help: from half of them to all, the best still improved at batch "
                     f"{listed(improving)}.")
    if asked or not all(search.best and search.done and search.half and search.half.known for search in searches):
        return tuple(asked)
    counts = [len(search.feasible) for search in searches]
    coarse = [f"{search.global_batch:,}" for search in searches if search.lowered > IMPROVED]
    unsure = f" (evaluations at batch {listed(coarse)} are too far apart to be sure)" if coarse else ""
    return (f"Search: at every batch the best of {spread(counts)} feasible trials lies inside its space, and more "
            f"would hardly improve it{unsure}.",) if searches else ()


def _asked_said(bound: Bound) -> str:
    """The same words for every batch at which a dimension may have cut the best point off."""
    parameter = bound.parameter
    end = value_said(parameter, bound.end)
    if parameter.values:
        return (f"Add {'larger' if bound.upper else 'smaller'} values of {parameter.name}: the best trial has the "
                f"{'largest' if bound.upper else 'smallest'} one tried, {end}")
    return f"Widen the space: the best {parameter.name} lies within {NEAR:.0%} of its {end_name(bound)} bound, {end}"


def _improved_said(search: Search) -> str:
    """``-21%``, of a value that is to be large ``+3%``; ``from none`` where most halves had none."""
    half = search.half
    if half is None or math.isinf(half.low):
        return "from none"
    return f"{'' if half.known else 'at least '}{'+' if search.maximizes else '-'}{percent(search.lowered)}"


def tuned_at_each(searches: Sequence[Search], confidence: float) -> str:
    """What the rows of these studies are based on in a table by batch or by workers."""
    names = dict.fromkeys(one.name for search in searches for one in search.space)
    return (f"Tuned at each batch: {listed(names)}, {spread([len(search.feasible) for search in searches])} feasible "
            f"trials; met: how many of them did. Steps are the median best of as many trials as every batch has; the "
            f"rest of the row is {_row_said(searches)}. Under it: {best_of_interval(confidence)}")


def best_of_each(confidence: float) -> str:
    """What a table of such rows shows, for its title."""
    return f"median best of as many trials at each batch, with its {confidence:.0%} interval"


def best_of_interval(confidence: float) -> str:
    """What goes under a value that is the best of a search."""
    return (f"the {confidence:.0%} interval of that median, since other draws of the same space would have found "
            "another best.")


def _row_said(searches: Sequence[Search]) -> str:
    """Which of the trials the row is; a search for the best metric may have found another one."""
    sought = dict.fromkeys(search.objective for search in searches if search.objective != STEPS_TO_TARGET)
    if not sought:
        return "the best of them"
    return (f"the one with the fewest steps to the target, where the search was for the best {listed(sought)} and may "
            "have found another trial the best")


def _seeds_said(search: Search) -> str:
    over = search.over_seeds
    diverged = len(search.repeats) - (over.runs - 1 if over else 0)
    lost = f" {counted(diverged, 'more seed')} of it diverged." if diverged > 0 else ""
    if over is None:
        return lost
    if not over.met:
        return f" Most of its {over.runs} seeds did not meet the target.{lost}"
    return f" Over its {over.runs} seeds: {whole(over.value)} steps{in_brackets(over.low, over.high, whole)}.{lost}"
