"""What searches over metaparameters say of themselves: tables, findings, and what to ask next."""

import math
import re
from collections.abc import Iterator, Sequence
from functools import partial

from ...analysis.curves import CurvePoint
from ...analysis.search import IMPROVED, NEAR, BestOfTrials, Bound, Search
from ...analysis.studies import group_by, is_measured
from ...formatting.numbers import exact, percent, spread
from ...plan.search_space import STEPS_TO_TARGET, DrawEnd, Parameter
from ..document import Figures, Finding, Part, column_name
from ..subject import Subject
from ..table import Cell, Table, TrialKeys, cell_of, no_cell
from ..texts import SEARCH, Cells
from .curves import best_of_figure

MOST_LISTED = 6         # values of a discrete dimension, beyond which only the ends are named
FLAG = "!"              # marks what the search should be asked next


def lines(search: Search) -> list[str]:
    """The study in a line: its trials and the best one; under it, indented, what the search should be asked next."""
    return [f"{search.workload.optimizer}, B = {search.global_batch:,}: {describe_trials(search)}. "
            f"{describe_best(search)}", *(f"  {said}" for said in hygiene(search))]


def describe_trials(search: Search) -> str:
    """``12 feasible of 15 draws (3 diverged, 20%), 5 pruned: 41% of the steps saved at most``."""
    if not search.draws:
        return f"no trial has ended yet, of {search.wanted:,} feasible ones wanted"
    feasible, saved = len(search.feasible), search.saved_share
    diverged, failed, pruned = (len(search.of_kind(kind)) or None for kind in (DrawEnd.DIVERGED, DrawEnd.FAILED,
                                                                               DrawEnd.PRUNED))
    return SEARCH.say("study_trials", feasible=feasible, wanted=search.wanted if feasible < search.wanted else None,
                      draws=len(search.draws), lost=diverged or failed, diverged=diverged, share=search.diverged_share,
                      failed=failed, searched=search.prune_keep is not None, pruned=pruned,
                      saved=saved if pruned and not math.isnan(saved) else None)


def describe_best(search: Search) -> str:
    """``Best: trial 7, 420 steps (> 380), lr 0.31, momentum 0.974.``, or that there is none."""
    best, over = search.best, search.over_seeds
    if best is None:
        met = f"met {search.target}" if search.objective == STEPS_TO_TARGET else f"has a {search.objective}"
        return f"No trial {met}."
    point = "".join(f", {bound.parameter.name} {format_value(bound.parameter, bound.value)}" for bound in search.bounds)
    if search.objective != STEPS_TO_TARGET:
        return SEARCH.say("best_value", trial=str(best.number), objective=search.objective, value=best.value,
                          step=f"{best.step:,.0f}", point=point)
    diverged = len(search.repeats) - (over.runs - 1 if over else 0)
    return SEARCH.say("best_steps", trial=str(best.number), steps=round(best.value), point=point,
                      before=not_by(best.before) if best.before >= 0 else "", over=over, runs=over and over.runs,
                      met=over and over.met, diverged=diverged if diverged > 0 else None)


def not_by(before: float) -> str:
    """``> 380``: the last evaluation that did not meet the target; empty where it is unknown."""
    return "" if math.isnan(before) else f"> {exact(before, 0)}"


def format_value(parameter: Parameter, value: object) -> str:
    """A value of a dimension to three digits; on a reverse log scale of its distance from 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return exact(value)
    if parameter.scale == "reverse_log" and value < 1:
        return f"{1 - float(f'{1 - value:.2e}'):.12g}"
    return f"{value:.3g}"


def hygiene(search: Search) -> tuple[str, ...]:
    """Where the space may have cut the best point off, how far others lie from its ends, whether more trials help."""
    if search.best is None or search.points_are_equal:
        return ()
    cut, inside = [], []
    for bound in search.bounds:
        parameter = bound.parameter
        if bound.near:
            shown = [format_value(parameter, one) for one in sorted(set(parameter.values or ()))]
            shown = shown if len(shown) <= MOST_LISTED else [shown[0], "...", shown[-1]]
            cut.append(SEARCH.say(
                "cut_value" if parameter.values else "cut_bound", name=parameter.name, upper=bound.upper,
                value=format_value(parameter, bound.value), values=", ".join(shown), distance=bound.distance,
                end=end_name(bound), bound=format_value(parameter, bound.end), scale=parameter.scale.replace("_", " ")))
        elif not (bound.final or math.isnan(bound.position) or parameter.values):
            inside.append(f"{parameter.name} {percent(bound.distance)} ({end_name(bound)})")
    half, kind = search.half, "more_pruned"
    if half is None:
        kind = "more_unknown" if search.done else ""
    elif math.isinf(half.low):
        kind = "more_needed"
    elif math.isnan(search.lowered):
        kind = ""
    elif half.known or search.improving:
        kind = "more"
    more = SEARCH.say(kind, half=half and half.n, all=len(search.curve), least=half and not half.known,
                      amount=search.lowered, improving=search.improving, keep=search.prune_keep,
                      bettered="bettered" if search.objective != STEPS_TO_TARGET else "lowered",
                      coarse=search.lowered > IMPROVED) if kind else ""     # by the second half of the trials
    return tuple(filter(None, (*cut, SEARCH.say_if("inside", inside, distances=", ".join(inside)), more)))


def end_name(bound: Bound) -> str:
    return "upper" if bound.upper else "lower"


def notes(searches: Sequence[Search]) -> tuple[str, ...]:
    steps = searches[0].objective == STEPS_TO_TARGET
    varied = not all(search.points_are_equal for search in searches)         # else they differ by seeds alone
    pruned = any(search.of_kind(DrawEnd.PRUNED) for search in searches)
    keep = sorted({search.prune_keep for search in searches if search.prune_keep})
    return (SEARCH.say("feasible_note"), SEARCH.say_if("nearest", varied, flag=FLAG, near=NEAR),
            SEARCH.say_if("improving", varied, flag=FLAG, improved=IMPROVED, steps=steps),
            SEARCH.say_if("not_by_of", steps), SEARCH.say_if("pruned_note", pruned, keep=keep))


def warnings(searches: Sequence[Search]) -> Iterator[str]:
    short = [search for search in searches if search.done and len(search.feasible) < search.wanted]
    for kind, word, found in (("not_done", " feasible", [search for search in searches if not search.done]),
                              ("fell_short", "", short)):
        yield SEARCH.say_if(kind, found, batches=[
            f"{one.global_batch:,} ({len(one.feasible):,} of {one.wanted:,}{word})" for one in found])


def own_searches(subject: Subject, to_target: bool) -> Iterator[Part]:
    if bool(subject.target) is to_target:
        searches = subject.searches
        yield from tables_of_searches(searches)
        yield Figures(lambda: (best_of_figure([
            BestOfTrials(search.global_batch, search.objective, search.target, search.curve,
                         tuple(draw.trial.key for draw in search.feasible if draw.trial)) for search in found])
            for found in group_by(searches, lambda search: search.objective).values()))


def find_next(searches: Sequence[Search]) -> Iterator[Finding]:
    """What the searches should be asked next, and at which batches; that there is nothing to ask where there is not."""
    searches = [search for search in searches if not search.points_are_equal]
    cut: dict[tuple[str, ...], list[str]] = {}       # of the same words: the batches
    for search in searches:
        for bound in search.bounds if search.best else ():
            if bound.near:
                parameter = bound.parameter
                value = "" if parameter.values else f" ({format_value(parameter, bound.value)})"
                key = ("add_values" if parameter.values else "widen", parameter.name, end_name(bound),
                       format_value(parameter, bound.end))
                cut.setdefault(key, []).append(f"{search.global_batch:,}{value}")
    for (kind, name, end, bound_at), batches in cut.items():
        yield SEARCH.find(kind, name=name, upper=end == "upper", end=end, bound=bound_at, near=NEAR, batches=batches)
    improving = []
    for search in searches:
        if search.half and search.improving:
            least, sign = "" if search.half.known else "at least ", "+" if search.maximizes else "-"
            by = "from none" if math.isinf(search.half.low) else f"{least}{sign}{percent(search.lowered)}"
            improving.append(f"{search.global_batch:,} ({by})")
    if improving:
        yield SEARCH.find("more_trials", batches=improving)
    known = all(search.best and search.done and search.half and search.half.known for search in searches)
    if searches and known and not cut and not improving:
        yield SEARCH.find("settled", trials=spread([len(search.feasible) for search in searches]),
                          coarse=[search.global_batch for search in searches if search.lowered > IMPROVED])


def tuned_at_each(searches: Sequence[Search], confidence: float) -> str:
    """What rows of these studies are based on; a search for the best metric may have found another trial."""
    sought = dict.fromkeys(search.objective for search in searches if search.objective != STEPS_TO_TARGET)
    return SEARCH.say("tuned", names=list(dict.fromkeys(one.name for search in searches for one in search.space)),
                      trials=spread([len(search.feasible) for search in searches]), sought=list(sought),
                      interval=SEARCH.say("best_of_interval", confidence=confidence))


def tables_of_searches(searches: Sequence[Search]) -> tuple[Table, ...]:
    """For each objective the table of its studies, and one of their best points for each set of dimensions."""
    return tuple(table for found in group_by(searches, lambda search: search.objective).values()
                 for table in _tables(found))


def _tables(searches: Sequence[Search]) -> Iterator[Table]:
    objective = searches[0].objective
    goal, of_steps = str(searches[0].target or f"best {objective}"), objective == STEPS_TO_TARGET
    suffix = "" if of_steps else f"-{objective.replace('/', '-')}"
    varied = not all(search.points_are_equal for search in searches)

    def behind(search: Search) -> TrialKeys:
        found = (search.best.trial, *search.repeats) if search.best else ()
        return tuple(trial.key for trial in found if trial)

    def lost(search: Search) -> TrialKeys:
        return tuple(draw.trial.key for draw in search.of_kind(DrawEnd.DIVERGED) if draw.trial)

    def counted(search: Search, kind: DrawEnd, below: str = "") -> Cell:
        count = len(search.of_kind(kind))
        return cell_of(count, below if count else "")

    def draws(search: Search) -> Cell:
        failed = len(search.of_kind(DrawEnd.FAILED))
        return cell_of(len(search.draws), f"{failed} failed" if failed else "")

    def pruned(search: Search) -> Cell:
        saved = "" if math.isnan(search.saved_share) else f"{percent(search.saved_share)} saved"
        return Cell("off", 0) if search.prune_keep is None else counted(search, DrawEnd.PRUNED, saved)

    def nearest(search: Search) -> Cell:
        bound = search.nearest
        flag = f" {FLAG}" if bound and bound.near else ""
        return Cell("n/a", math.nan) if bound is None else Cell(
            f"{percent(bound.distance)} {end_name(bound)}{flag}", bound.distance, below=bound.parameter.name)

    def best(search: Search) -> Cell:
        if search.best is None:
            return Cell("not met" if of_steps else "n/a", math.nan)
        value, before = search.best.value, search.best.before
        return (Cell(f"{value:,.0f}", value, before, value, not_by(before)) if of_steps else
                cell_of(value, f"step {search.best.step:,.0f}"))
    yield SEARCH.table("search", searches, {
        "global_batch": lambda search: search.global_batch, "draws": draws,
        "feasible": lambda search: len(search.feasible),
        "diverged": lambda search: counted(search, DrawEnd.DIVERGED, percent(search.diverged_share)), "pruned": pruned,
        "best_trial": lambda search: Cell(str(search.best.number), search.best.number) if search.best else Cell("none"),
        "fewest_steps" if of_steps else "best_value": best,
        **({"nearest_bound": nearest, "still_improving": _improving} if varied else {})}, behind, diverged=lost,
        file=f"search{suffix}", goal=goal, notes=notes(searches), warnings=warnings(searches))
    spaces = group_by((search for search in searches if search.best),
                      lambda search: tuple(one.name for one in search.space))
    for at, (names, found) in enumerate(spaces.items()):
        idle = any(len(search.bounds) < len(names) for search in found)
        yield SEARCH.table("best-points", found, {
            "global_batch": lambda search: search.global_batch,
            **{SEARCH.column("dimension", name, title=re.sub("[_.]", " ", name)): partial(_point, name=name)
               for name in names}}, behind, diverged=lost, goal=goal,
            file=f"best-points{suffix}{f'-{at + 1}' if at else ''}", notes=[SEARCH.say("idle")] * idle)


def _improving(search: Search) -> Cell:
    share, half = search.lowered, search.half
    if half is None or math.isnan(share) or not (half.known or search.improving):
        return Cell("n/a", math.nan)
    shown = "from none" if math.isinf(half.low) else f"{'' if half.known else 'over '}{percent(share)}"
    return Cell(shown + (f" {FLAG}" if search.improving else ""), share, below=f"{half.n} to {len(search.curve)}")


def _point(search: Search, name: str) -> Cell:
    bound = next((bound for bound in search.bounds if bound.parameter.name == name), None)
    if bound is None:
        return Cell("n/a")
    parameter, shown = bound.parameter, format_value(bound.parameter, bound.value)
    value = bound.value if isinstance(bound.value, (int, float, str)) else None
    if parameter.values:
        return Cell(shown, value, below=f"of {len(parameter.values)}")
    ends = [format_value(parameter, end) for end in (parameter.low, parameter.high)]
    return Cell(shown, value, parameter.low, parameter.high, "-".join(ends))


def results(subject: Subject) -> Iterator[Part]:
    """The fewest steps as published; a search's own table has them."""
    if not subject.searches and is_measured(subject.studies, subject.goal.column):
        yield steps_table([CurvePoint(study, subject.goal) for study in subject.studies
                           if subject.goal.column in study.evaluations.columns])


def steps_table(rows: Sequence[CurvePoint]) -> Table:
    target, workload = rows[0].target, rows[0].study.workload
    pruned = any(row.pruned for row in rows)
    stopped: Cells = {SEARCH.column("pruned_of_all", "pruned"): lambda row: row.pruned}

    def fewest(row: CurvePoint) -> Cell:
        if row.best is not None:
            return Cell(f"{row.fewest:,.0f}", row.fewest, row.before, row.fewest, not_by(row.before))
        if not row.trials:
            return no_cell("diverged" if row.infeasible else "n/a")
        if math.isnan(row.beyond):
            return no_cell("never measured")
        return Cell("not met", math.inf, row.beyond, math.inf, f"> {row.beyond:,.0f}")
    return SEARCH.table("steps-to-result", rows, {
        "global_batch": lambda row: row.global_batch,
        SEARCH.column("fewest_of_all", "fewest_steps"): fewest,
        "trial": lambda row: Cell(str(row.keys[0][1]), row.keys[0][1]) if row.keys else Cell("none"),
        "value": lambda row: row.value, "met": lambda row: Cell(f"{row.met:,}/{row.trials:,}", row.met),
        **(stopped if pruned else {}), "infeasible": lambda row: row.infeasible,
        "met_before_diverging": lambda row: row.met_before_diverging},
        lambda row: row.keys, workload=str(workload), what=target,
        file=f"steps-to-result-{column_name(target.column)}-{target.value:g}",
        notes=(SEARCH.say("of_complete", pruned=pruned),),
        warnings=[SEARCH.say_if("met_then_diverged", any(row.met_before_diverging for row in rows))])
