"""A candidate's logs held against a baseline's: tables, verdicts, decisions and files; what differences runs see."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ..analysis.compare import (BEST, OK, REGRESSION, SECONDS, STEPS, UNDECIDED, Alone, ComparedCell, Comparison, Pair,
                                Test, worst_of)
from ..analysis.decide import LAST, RUNS, Decided, Floor, chances_to_pass, worst
from ..analysis.decision.sequence import MOST_MORE, OPEN
from ..analysis.intervals import Estimate
from ..analysis.steps import SPEED, RunCell
from ..analysis.studies import group_by
from ..analysis.trials import Trial
from ..formatting.numbers import NARROWEST, capital, list_first, listed, percent, ratio, span, whole
from ..formatting.screen import wrap
from ..log.schema import UNKNOWN_SEED
from .output import head_of
from .table import Cell, Column, Row, Table, TrialKeys, as_values, cell_of, encode, pick, steps_cell
from .texts import COMPARE, Cells
from .views.cells import how_they_differ

NAMES = {STEPS: "steps", SECONDS: "time", SPEED: "throughput", BEST: "best metric"}
CHANGES = {STEPS: "steps_ratio", SECONDS: "seconds_ratio", SPEED: "speed_ratio", BEST: "best_difference"}
MOST_NAMED = 6                  # of what the verdict names
MOST_ROWS, MOST_SEEN = 40, 10.0         # of the noise on a screen; difference that is shown as a number
ALL = "all"
_some = partial(list_first, most=MOST_NAMED, joint="; ")
DETAILS = "workload target workers global_batch measure baseline candidate change verdict reason"


def comparison_table(comparison: Comparison) -> Table:
    """One workload's cells, a row each, and what they say together: of no cell."""
    target = comparison.target
    measures = tuple(NAMES) if target else (SPEED,)

    def met(cell: ComparedCell) -> Cell:
        """Of seeds, or where it is searched of its draws: in the baseline, then in the candidate."""
        said = []
        for side in (cell.baseline, cell.candidate):
            steps = [run.steps for run in side.draws] if side.searched else side.samples.steps
            said.append(f"{sum(map(math.isfinite, steps))}/{len(steps)}" if target else f"{len(side.samples.seeds)}")
        lost = [len(side.diverged) for side in (cell.baseline, cell.candidate)]
        return Cell(", ".join(said), ", ".join(said), below=f"{lost[0]}, {lost[1]} div." if any(lost) else "")

    def verdict(tests: Sequence[Test]) -> Cell:
        worst = worst_of(test.verdict for test in tests)
        partial = target and STEPS not in [test.measure for test in tests]      # no cell's steps could be compared
        about = [NAMES[test.measure] for test in tests if test.verdict == worst and (worst != OK or partial)]
        return Cell(worst, worst, below=", ".join(about[:2]) + (" ..." if len(about) > 2 else ""))
    steps: Cells = {"steps_before": lambda cell: _steps(cell.baseline),
                    "steps_after": lambda cell: _steps(cell.candidate)} if target else {}
    table = COMPARE.table("compare", comparison.cells, {
        "workers": lambda cell: cell.workers, "global_batch": lambda cell: cell.global_batch, "met": met,
        **steps, **{CHANGES[name]: partial(lambda name, cell: _change(name, cell.tests), name) for name in measures},
        "verdict": lambda cell: verdict(cell.tests)}, lambda cell: cell.candidate.keys,
        diverged=lambda cell: tuple(trial.key for trial in cell.candidate.diverged),
        baseline=lambda cell: cell.baseline.keys, notes=_notes(comparison), workload=str(comparison.workload),
        changed_to=comparison.changed_to and str(comparison.changed_to), what=target or "throughput")
    if not comparison.overall:
        return table
    together = (*[Cell(ALL, ALL)] * 2, *[Cell("")] * (3 if target else 1),
                *(_change(name, comparison.overall) for name in measures), verdict(comparison.overall))
    return replace(table, rows=(*table.rows, Row(together, (), ())))


def detail_table(comparisons: Sequence[Comparison]) -> Table:
    """Every test, and every cell that the candidate lacks, for a CSV."""
    rows = []
    for comparison in comparisons:
        about = str(comparison.workload), str(comparison.target or "")
        found = [((workers, batch, test.measure, test.before, test.after, test.change, test.verdict or "", test.reason),
                  trials) for workers, batch, test, trials in _all_tests(comparison)]
        lacking = [((*place, "", "", "", "", UNDECIDED, "not in the candidate"), ()) for place in comparison.missing]
        rows += [Row(tuple(map(cell_of, (*about, *values))), trials, ()) for values, trials in (*found, *lacking)]
    return Table("compare", "", tuple(Column(key, key) for key in DETAILS.split()), tuple(rows))


def _all_tests(comparison: Comparison) -> Iterator[tuple[int | str, int | str, Test, TrialKeys]]:
    """(workers, batch, test, trials behind it) of each cell, then of all cells together."""
    for cell in comparison.cells:
        for test in cell.tests:
            yield cell.workers, cell.global_batch, test, (*cell.baseline.keys, *cell.candidate.keys)
    for test in comparison.overall:
        yield ALL, ALL, test, ()


def verdict_line(comparisons: Sequence[Comparison]) -> str:
    """What the gate says, in one line; of several workloads each by its name."""
    verdict, tolerances = worst_of(one.verdict for one in comparisons), comparisons[0].tolerances
    judged = sum(test.verdict is not None for comparison in comparisons for *_, test, _ in _all_tests(comparison))
    several = len({comparison.workload for comparison in comparisons}) > 1
    told = {name: _some([f"{comparison.workload}: {text}" if several else text
                         for comparison in comparisons for text in _describe_tests(comparison, name)])
            for name in (REGRESSION, UNDECIDED)}
    kind = {REGRESSION: "regression", UNDECIDED: "undecided", OK: "ok"}[verdict]
    return COMPARE.say(kind, regressions=told[REGRESSION], undecided=told[UNDECIDED], tests=judged,
                       tolerances=COMPARE.say("tolerances", **vars(tolerances)))


def _describe_tests(comparison: Comparison, verdict: str) -> list[str]:
    """What has this verdict, in words: tests of which the same is to be said are named together."""
    same: dict[str, dict[str, list[str]]] = {}      # how it came to the verdict -> measure -> where
    for workers, batch, test, _ in _all_tests(comparison):
        if test.verdict == verdict:
            where = "all cells together" if workers == ALL else _place(workers, batch)
            same.setdefault(_how(test), {}).setdefault(test.measure, []).append(where)
    said = []
    for how, places_of in same.items():
        alike = group_by(places_of, lambda measure: _some(places_of[measure], joint=" and "))
        for where, measures in alike.items():       # steps and time to val/error<0.1, throughput and best metric
            goals = listed([NAMES[name] for name in measures if name in LAST])
            what = listed([*([f"{goals} to {comparison.target}"] if goals else []),
                           *(NAMES[name] for name in measures if name not in LAST)])
            said.append(f"{what} at {where}{how}")
    if verdict == UNDECIDED:
        said += [f"{_place(*key)} is not in the candidate" for key in comparison.missing]
    return said


def _how(test: Test) -> str:
    change = test.change
    if math.isnan(change.value) or test.reason and "tolerance" not in test.reason:
        return f" ({test.reason})"
    if test.measure == BEST:
        return f" ({change.value:+.2g})"
    ends = _ends(change)
    return f" ({ratio(change.value)} times{f', {ends}' if ends else ''})"


def wrapped(text: str) -> str:
    """As wide as the tables; a worker count or a batch is on the line of its name."""
    return wrap(text.replace(" = ", "\xa0=\xa0")).replace("\xa0", " ")


def as_json(comparisons: Sequence[Comparison], paths: tuple[str, str]) -> dict[str, object]:
    tolerances = comparisons[0].tolerances
    return {**_json_head(paths, worst_of(one.verdict for one in comparisons), verdict_line(comparisons)),
            "tolerances": pick(tolerances, "steps time metric"),
            "confidence": tolerances.confidence,
            "comparisons": [_comparison_values(one) for one in comparisons]}


def _comparison_values(comparison: Comparison) -> dict[str, object]:
    cells = {name: [{"workers": workers, "global_batch": batch} for workers, batch in getattr(comparison, name)]
             for name in ("missing", "added")}
    tests = [{"workers": workers, "global_batch": batch, **pick(test.change, "change=value low high runs"),
              **pick(test, "measure baseline=before candidate=after verdict reason")}
             for workers, batch, test, _ in _all_tests(comparison)]
    return {**pick(comparison, "workload target verdict"), **cells, "table": as_values(comparison_table(comparison)),
            "tests": tests}


def _json_head(paths: tuple[str, str], verdict: str, said: str) -> dict[str, object]:
    return {**head_of("compare"), "baseline": paths[0], "candidate": paths[1], "verdict": verdict, "said": said}


def equality_line(pairs: Sequence[Pair], alone: Alone) -> str:
    """Whether exact runs have the same bits, in a line; where they differ first, if they do."""
    differ = [f"first at step {found.step:,} in {found.column}: {found.before!r} in {_name(pair.baseline)}, "
              f"{found.after!r} in {_name(pair.candidate)}" for pair in pairs if (found := pair.difference)]
    differ += [COMPARE.say("alone", run=_name(trial), other=_name(other),
                           how=how_they_differ(other.setting, trial.setting) or f"seed {other.seed}, then {trial.seed}")
               for trial, other in alone]
    if differ:
        return f"Verdict: NOT the same bits: {_some(differ)}."
    return COMPARE.say("equal", pairs=len(pairs), steps=max(pair.baseline.last_step for pair in pairs),
                       columns=min(len(pair.columns) for pair in pairs))


def equality_json(pairs: Sequence[Pair], alone: Alone, paths: tuple[str, str]) -> dict[str, object]:
    """The same for JSON; a value that a run has not, or that is not finite, is null."""
    equal = not alone and not any(pair.difference for pair in pairs)
    return {**_json_head(paths, OK if equal else REGRESSION, equality_line(pairs, alone)), "equal": equal,
            "alone": [_name(trial) for trial, _ in alone],
            "pairs": [{"baseline": _name(pair.baseline), "candidate": _name(pair.candidate), "columns": pair.columns,
                       "difference": pair.difference and pick(
                           pair.difference, "step column baseline=before candidate=after")} for pair in pairs]}


def _name(trial: Trial) -> str:
    return f"{trial.log}:{trial.id}"


def _steps(cell: RunCell) -> Cell:
    return Cell(steps_cell(cell.steps, whole).shown, cell.steps.value) if cell.runs else Cell("diverged", math.nan)


def _change(name: str, tests: Sequence[Test]) -> Cell:
    if (test := next((test for test in tests if test.measure == name), None)) is None:
        return Cell("")
    change, write, ends = test.change, ratio, _ends(test.change)
    if name == BEST:
        write, ends = "{:+.2g}".format, "" if math.isnan(change.low) else f"{change.low:+.2g}..{change.high:+.2g}"
    return Cell("n/a" if math.isnan(change.value) else write(change.value), change.value, change.low, change.high, ends)


def _ends(change: Estimate) -> str:
    """The interval of a ratio; empty where it has no width."""
    return "" if math.isclose(change.low, change.high, rel_tol=NARROWEST) else span(change.low, change.high, ratio)


def _notes(comparison: Comparison) -> tuple[str, ...]:
    """How to read the table; what is in one log alone, and where settings differ."""
    cells, tolerances = comparison.cells, comparison.tolerances
    pairings, differ = group_by(cells, _pairing_of), group_by(cells, lambda cell: "" if cell.pairing == "draw" else (
        how_they_differ(cell.baseline.setting, cell.candidate.setting)))
    sides = [side for cell in cells for side in (cell.baseline, cell.candidate)]
    # what a run that ended where it met the target would still have reached is not known
    stopped = any(run.steps == run.last_step and not run.trial.measurement.get("keep_going")
                  for side in sides for run in side.runs)

    tests = [test for cell in cells for test in cell.tests if test.measure != BEST]
    single = [math.isnan(test.change.low) for test in tests if "one run" in test.reason]
    sharp = any(math.isclose(test.change.low, test.change.high, rel_tol=NARROWEST) for test in tests)
    reasons = ["all runs give this ratio to the last digit"] if sharp else []
    reasons += ["either side has one run"] if any(single) else []

    def places(some: Sequence[ComparedCell]) -> str:
        return _some([_place(cell.workers, cell.global_batch) for cell in some])
    return (COMPARE.say("ratios", confidence=tolerances.confidence, target=comparison.target,
                        tolerances=COMPARE.say("tolerances", **vars(tolerances))),
            *(COMPARE.say(pairing, places=places(some) if len(pairings) > 1 else "")
              for pairing, some in pairings.items()),
            COMPARE.say_if("stopped", stopped and comparison.target), COMPARE.say_if("one_run", not all(single)),
            COMPARE.say_if("no_interval", reasons, reasons=reasons), COMPARE.say_if("all", comparison.overall),
            *(COMPARE.say("only_baseline", place=_place(*key)) for key in comparison.missing),
            COMPARE.say_if("only_candidate", comparison.added, places=_some([_place(*at) for at in comparison.added])),
            *(f"The settings differ ({how}) at {places(some)}." for how, some in differ.items() if how),
            COMPARE.say_if("crowded", any(side.oversubscribed for side in sides)))


def _pairing_of(cell: ComparedCell) -> str:
    """The text on how the runs of a cell are paired."""
    sides = cell.baseline, cell.candidate
    if cell.pairing == "search" and not all(side.searched for side in sides):
        return "mixed"
    unknown = any(seed == UNKNOWN_SEED for side in sides for seed, *_ in side.samples.seeds)
    return cell.pairing or ("unknown" if unknown else "unpaired")


def _place(workers: int | str, batch: int | str) -> str:
    return COMPARE.say("place", workers=workers, batch=batch)


def decision_lines(found: Sequence[Decided], within: float, ledger: str | None, both: bool = True) -> list[str]:
    """The decision, a line a cell, and what the chance is of."""
    return [COMPARE.say("decision", decision=worst(found), within=within),
            *(f"{place_of(one)}: {describe(one, both)}" for one in found),
            COMPARE.say("chance_of_all" if ledger else "chance_alone", ledger=ledger)]


def place_of(one: Decided) -> str:
    return _place(one.cell.workers, one.cell.global_batch)


def describe(one: Decided, both: bool = True) -> str:
    """What is decided of a cell, by what runs, and how many more decide; both: whether also of the baseline."""
    more = ""               # 3 to 5, 38 to over 50
    if one.decision == OPEN and not np.isnan(one.runs_more).any():
        ends = [f"{end:.0f}" if math.isfinite(end) else f"over {MOST_MORE}" for end in one.runs_more]
        more = capital(" to ".join(dict.fromkeys(ends)))
    return COMPARE.say("decided", measure=NAMES[one.measure], target=one.measure in LAST and one.comparison.target,
                       decision=one.decision, ratio=None if one.reason else one.ratio, before=one.sides.runs[0],
                       after=one.sides.runs[1], why=one.reason and COMPARE.say(f"why_{one.reason}"),
                       unmet=any(one.unmet) and one.unmet, base=more and not both and one.runs_more[0] == math.inf,
                       chance=percent(one.chance) if one.decision != OPEN and not one.reason else "", more=more,
                       both=both, hours=one.hours if more and math.isfinite(one.hours) else None,
                       smallest=one.smallest if 0 < one.smallest < math.inf else None)


def decision_values(found: Sequence[Decided], within: float, ledger: str | None) -> dict[str, object]:
    return {"decision": worst(found), "chance": max(one.chance for one in found), "within": within, "ledger": ledger,
            "runs_more": encode([*np.max([one.runs_more for one in found], 0)]),
            "smallest_difference": encode(max(one.smallest for one in found)), "decisions": [
                {**pick(one.comparison, "workload target"), **pick(one.cell, "workers global_batch"),
                 **pick(one, "measure decision"), "reason": one.reason or None, **pick(one, "chance"),
                 **pick(one.ratio, "ratio=value low high"), **pick(one.sides, "runs"),
                 **pick(one, "unmet runs_more smallest_difference=smallest loss worker_hours=hours")} for one in found]}


def noise_values(found: Sequence[Floor]) -> list[dict[str, object]]:
    return [{"workload": str(one.workload), "workers": one.cell.workers[0], **pick(one.cell, "global_batch"),
             **pick(one, "measure spread in_steps worker_hours=hours"),
             "smallest": dict(zip(map(str, RUNS), encode([*one.smallest])))} for one in found]


def noise_tables(found: Sequence[Floor]) -> Iterator[Table]:
    """A table a cell; of many measures those that see most of each kind."""
    def share(value: float) -> Cell:
        if not math.isfinite(value):
            return Cell("n/a", value)
        return Cell(percent(value) if value < MOST_SEEN else f"> {percent(MOST_SEEN)}", value)
    columns: Cells = {
        "measure": lambda one: Cell(one.measure, one.measure), "spread": lambda one: share(one.spread),
        **{COMPARE.column("seen", f"seen_{runs}", runs=runs): partial(lambda at, one: share(one.smallest[at]), at)
           for at, runs in enumerate(RUNS)}, "seen_steps": lambda one: share(one.in_steps)}
    for floors in group_by(found, lambda one: id(one.cell)).values():
        kinds, cell = group_by(floors, lambda one: one.measure.partition(" at ")[0]).values(), floors[0].cell
        shown = floors if len(found) <= MOST_ROWS else [min(kind, key=_sees) for kind in kinds]
        yield COMPARE.table("noise", shown, columns, lambda one: one.cell.keys, workload=str(floors[0].workload),
                            place=_place(cell.workers[0], cell.global_batch), hours=floors[0].hours)


def _sees(one: Floor) -> tuple[float, ...]:
    """The less, the smaller a change in steps it sees, or in itself."""
    return math.isnan(one.in_steps), np.nan_to_num(one.in_steps), *one.smallest


def noise_lines(found: Sequence[Floor]) -> list[str]:
    """What sees a change with the fewest runs; MLPerf's check."""
    lines = []
    for workload, floors in group_by(found, lambda one: str(one.workload)).items():
        best = min(floors, key=_sees)
        lines.append(COMPARE.say("blind" if math.isnan(best.in_steps) else "fewest", workload=workload,
                                 measure=best.measure, share=best.in_steps, hours=best.hours,
                                 place=_place(best.cell.workers[0], best.cell.global_batch)))
    for one in {id(one.cell): one for one in found}.values():
        chances = [f"{percent(chance)} after {more} more" if more else f"{percent(chance)} as it is"
                   for more, chance in chances_to_pass(one.cell, one.workload).items()]
        lines += [f"MLPerf's convergence check at B = {one.cell.global_batch:,}: {listed(chances)}."] if chances else []
    return lines
