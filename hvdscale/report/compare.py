"""A candidate's logs held against a baseline's: one table a workload and target, one line of verdict, and files.

    comparisons = compare_trials(baseline, candidate)
    for comparison in comparisons:
        print(as_text(comparison_table(comparison)))
    print(verdict_line(comparisons))
"""
from __future__ import annotations

import math
from collections.abc import Sequence

from .. import __version__
from ..analysis.compare import (BEST, OK, REGRESSION, SECONDS, STEPS, UNDECIDED, ComparedCell, Comparison, Test,
                                Tolerances)
from ..analysis.intervals import Estimate
from ..analysis.pooled_variance import SPEED
from ..analysis.steps import RunCell
from ..formatting.lines import wrap
from ..formatting.numbers import NARROWEST, counted, finite, listed, number, percent, ratio, span, whole
from ..log.schema import UNKNOWN_SEED
from ..target import Target
from .columns import BATCH
from .differences import how_they_differ
from .table import Cell, Column, Row, Table, TrialKeys, as_values, keys_of, number_cell

NAMES = {STEPS: "steps", SECONDS: "time", SPEED: "throughput", BEST: "best metric"}
GOALS = (STEPS, SECONDS)        # measured up to the target
MOST_NAMED = 6                  # of what the verdict names
ALL = "all"
PAIRINGS = {            # what is said of it, and why it is so
    "seed": ("Paired by seed", ""),
    "draw": ("Paired by draw", ", of those that met in both: the same points of one space"),
    "search": ("The best of either search", ", its interval that of the median best-of-n of its trials"),
    "mixed": ("The best of a search against repeats of one setting", ", which luck has not chosen: the search may look "
              "better than it is"),
    "unknown": ("Independent samples", ", as seeds are unknown"),
    "": ("Independent samples", ", as the seeds are not the same"),
}

WORKERS = Column("workers", "workers", "1", "W: workers at the trial's start")
MET = Column("met", "met", "1", "seeds that met the target / seeds that ran, in the baseline, then in the candidate; "
             "of a search its feasible trials")
BEFORE = Column("steps_before", "steps before", "steps", "S of the baseline: steps to target, geometric mean over "
                "seeds; of a search the fewest of its trials")
AFTER = Column("steps_after", "steps after", "steps", "S of the candidate", short="after")
CHANGES = {
    STEPS: Column("steps_ratio", "steps", "1", "S of the candidate over S of the baseline"),
    SECONDS: Column("seconds_ratio", "time", "1", "T: seconds to target, candidate over baseline"),
    SPEED: Column("speed_ratio", "through- put", "1", "x: examples a second, candidate over baseline"),
    BEST: Column("best_difference", "best metric", "1", "best value of the target's metric within the steps that all "
                 "runs took, mean over seeds, candidate minus baseline"),
}
VERDICT = Column("verdict", "verdict", "1", "regression: the whole interval lies beyond the tolerance; cannot tell: it "
                 "spans the tolerance, or there is none")
DETAILS = tuple(Column(key, key.replace("_", " "), unit) for key, unit in (
    ("workload", "1"), ("target", "1"), ("workers", "1"), ("global_batch", "examples"), ("measure", "1"),
    ("baseline", ""), ("candidate", ""), ("change", ""), ("verdict", "1"), ("reason", "1")))


def comparison_table(comparison: Comparison) -> Table:
    """One workload's cells, a row each, and what they say together."""
    target = comparison.target
    measures = (STEPS, SECONDS, SPEED, BEST) if target else (SPEED,)
    steps = (BEFORE, AFTER) if target else ()
    columns = (WORKERS, BATCH, MET, *steps, *(CHANGES[name] for name in measures), VERDICT)
    rows = [_row(cell, measures, target) for cell in comparison.cells]
    if comparison.overall:
        rows.append(_overall_row(comparison, measures))
    title = f"Candidate against baseline: {comparison.workload}: {target or 'throughput'}"
    return Table("compare", title, columns, tuple(rows), _notes(comparison))


def detail_table(comparisons: Sequence[Comparison]) -> Table:
    """Every test of every comparison, a row each."""
    rows = []
    for comparison in comparisons:
        about = str(comparison.workload), str(comparison.target or "")
        for cell in comparison.cells:
            trials = (*keys_of(cell.baseline), *keys_of(cell.candidate))
            rows += [_detail(*about, cell.workers, cell.global_batch, test, trials) for test in cell.tests]
        rows += [_detail(*about, ALL, ALL, test, ()) for test in comparison.overall]
        rows += [Row((*(Cell(str(value), value) for value in (*about, *key)), *[Cell("")] * 4,
                      Cell(UNDECIDED, UNDECIDED), Cell("not in the candidate", "not in the candidate")),
                     (), ()) for key in comparison.missing]
    return Table("compare", "Candidate against baseline", DETAILS, tuple(rows), ())


def verdict_of(comparisons: Sequence[Comparison]) -> str:
    """The worst verdict of all."""
    return max((comparison.verdict for comparison in comparisons), key=(OK, UNDECIDED, REGRESSION).index)


def verdict_line(comparisons: Sequence[Comparison]) -> str:
    """What the gate says, in one line; of several workloads each by its name."""
    verdict, tolerances = verdict_of(comparisons), comparisons[0].tolerances
    judged = sum(comparison.judged for comparison in comparisons)
    several = len({comparison.workload for comparison in comparisons}) > 1
    told = {name: [f"{comparison.workload}: {text}" if several else text
                   for comparison in comparisons for text in _told(comparison, name)]
            for name in (REGRESSION, UNDECIDED)}
    untold = f"; cannot tell: {_some(told[UNDECIDED])}" if told[UNDECIDED] else ""
    if verdict == REGRESSION:
        return f"Verdict: REGRESSION: {_some(told[REGRESSION])}{untold}."
    if verdict == UNDECIDED:
        return f"Verdict: no regression is certain{untold}."
    return f"Verdict: ok: {counted(judged, 'test')}, none beyond its tolerance ({_tolerances(tolerances)})."


def verdict_text(comparisons: Sequence[Comparison]) -> str:
    """The same, as wide as the tables; a worker count or a batch is on the line of its name."""
    line = verdict_line(comparisons).replace(" = ", "\xa0=\xa0")
    return wrap(line).replace("\xa0", " ")


def as_json(comparisons: Sequence[Comparison], paths: tuple[str, str]) -> dict[str, object]:
    """All of it for JSON."""
    tolerances = comparisons[0].tolerances
    return {
        "format": "hvdscale-compare", "version": 1, "creator": f"hvdscale {__version__}", "baseline": paths[0],
        "candidate": paths[1], "verdict": verdict_of(comparisons), "said": verdict_line(comparisons),
        "tolerances": {"steps": tolerances.steps, "time": tolerances.time, "metric": tolerances.metric},
        "confidence": tolerances.confidence,
        "comparisons": [{
            "workload": str(comparison.workload), "target": str(comparison.target) if comparison.target else None,
            "verdict": comparison.verdict, "missing": [_where(key) for key in comparison.missing],
            "added": [_where(key) for key in comparison.added], "table": as_values(comparison_table(comparison)),
            "tests": [_test_values(cell.workers, cell.global_batch, test)
                      for cell in comparison.cells for test in cell.tests]
            + [_test_values(ALL, ALL, test) for test in comparison.overall]} for comparison in comparisons],
    }


def _where(key: tuple[int, int]) -> dict[str, int]:
    return {"workers": key[0], "global_batch": key[1]}


def _test_values(workers: int | str, batch: int | str, test: Test) -> dict[str, object]:
    return {"workers": workers, "global_batch": batch, "measure": test.measure, "baseline": finite(test.before),
            "candidate": finite(test.after), "change": finite(test.change.value), "low": finite(test.change.low),
            "high": finite(test.change.high), "runs": test.change.runs, "verdict": test.verdict, "reason": test.reason}


def _row(cell: ComparedCell, measures: Sequence[str], target: Target | None) -> Row:
    tests = {test.measure: test for test in cell.tests}
    steps = [_steps(cell.baseline), _steps(cell.candidate)] if target else []
    met = ", ".join(_met(one, target) for one in (cell.baseline, cell.candidate))
    lost = [len(one.diverged) for one in (cell.baseline, cell.candidate)]
    return Row((Cell(f"{cell.workers:,}", cell.workers), Cell(f"{cell.global_batch:,}", cell.global_batch),
                Cell(met, met, below=f"{lost[0]}, {lost[1]} div." if any(lost) else ""), *steps,
                *(_change(tests.get(name)) for name in measures), _verdict(cell.verdict, cell.tests)),
               keys_of(cell.candidate), tuple(trial.key for trial in cell.candidate.diverged), keys_of(cell.baseline))


def _met(cell: RunCell, target: Target | None) -> str:
    """Of seeds, or where it is searched of its draws."""
    steps = [run.steps for run in cell.draws] if cell.searched else cell.samples.steps
    return f"{sum(map(math.isfinite, steps))}/{len(steps)}" if target else f"{len(cell.samples.seeds)}"


def _overall_row(comparison: Comparison, measures: Sequence[str]) -> Row:
    tests = {test.measure: test for test in comparison.overall}
    blank = [Cell("")] * (3 if comparison.target else 1)
    verdict = max((test.verdict for test in comparison.overall if test.verdict), key=(OK, UNDECIDED, REGRESSION).index,
                  default=OK)
    return Row((Cell(ALL, ALL), Cell(ALL, ALL), *blank, *(_change(tests.get(name)) for name in measures),
                _verdict(verdict, comparison.overall)), (), ())


def _steps(cell: RunCell) -> Cell:
    steps = cell.steps
    if not cell.runs:
        return Cell("diverged", math.nan)
    if not steps.met:
        return Cell(f"> {whole(steps.beyond)}" if steps.beyond == steps.beyond else "n/a", steps.value)
    return Cell(whole(steps.value), steps.value)


def _change(test: Test | None) -> Cell:
    if test is None:
        return Cell("")
    change = test.change
    if test.measure == BEST:
        ends = "" if math.isnan(change.low) else f"{_signed(change.low)}..{_signed(change.high)}"
        return Cell("n/a" if math.isnan(change.value) else _signed(change.value), change.value, change.low, change.high,
                    ends)
    shown = ratio(change.value) if change.value == change.value else "n/a"
    return Cell(shown, change.value, change.low, change.high, _ends(change))


def _ends(change: Estimate) -> str:
    """The interval of a ratio; empty where it has no width."""
    return "" if _is_sharp(change) else span(change.low, change.high, ratio)


def _is_sharp(change: Estimate) -> bool:
    return math.isclose(change.low, change.high, rel_tol=NARROWEST)


def _signed(value: float) -> str:
    return f"{value:+.2g}"


def _verdict(verdict: str, tests: Sequence[Test]) -> Cell:
    about = [NAMES[test.measure] for test in tests if test.verdict == verdict != OK]
    return Cell(verdict, verdict, below=", ".join(about[:2]) + (" ..." if len(about) > 2 else ""))


def _detail(workload: str, target: str, workers: int | str, batch: int | str, test: Test, trials: TrialKeys) -> Row:
    write = _signed if test.measure == BEST else ratio
    change = test.change
    named = [Cell(str(value), value) for value in (workload, target, workers, batch, test.measure)]
    return Row((*named, number_cell(test.before), number_cell(test.after),
                Cell(write(change.value), change.value, change.low, change.high),
                Cell(test.verdict or "", test.verdict or ""), Cell(test.reason, test.reason)), trials, ())


def _notes(comparison: Comparison) -> tuple[str, ...]:
    tolerances, cells = comparison.tolerances, comparison.cells
    spacing = " and the spacing of the evaluations" if comparison.target else ""
    notes = [f"Ratios are candidate over baseline, under them {tolerances.confidence:.0%} intervals, which hold the "
             f"spread of the runs{spacing}. Tolerances: {_tolerances(tolerances)}."]
    notes += _pairing(cells)
    if any(_stopped_at_target(cell, comparison.target) for cell in cells):
        notes.append("The best metric is taken within the steps that all runs of a cell took. Runs stopped at the "
                     "target, so it says which side was further by then, not which would end better.")
    notes += _intervals([test for cell in cells for test in cell.tests if test.measure != BEST])
    if comparison.overall:
        notes.append("All: the geometric mean over cells, its interval from the spread between them.")
    notes += [f"{_place(key)}: the baseline has it, the candidate has not (ended)." for key in comparison.missing]
    if comparison.added:
        notes.append(f"In the candidate alone: {_some([_place(key) for key in comparison.added])}.")
    differ: dict[str, list[str]] = {}
    for cell in cells:
        said = how_they_differ(cell.baseline.setting, cell.candidate.setting) if cell.pairing != "draw" else ""
        if said:
            differ.setdefault(said, []).append(_place((cell.workers, cell.global_batch)))
    notes += [f"The settings differ ({said}) at {_some(where)}." for said, where in differ.items()]
    if any(cell.baseline.oversubscribed or cell.candidate.oversubscribed for cell in cells):
        notes.append("Some ran with more workers than cores on a host: times and throughput there say little.")
    return tuple(notes)


def _intervals(tests: Sequence[Test]) -> list[str]:
    """What the intervals of single runs are, and where there are none."""
    single = [math.isnan(test.change.low) for test in tests if "one run" in test.reason]
    missing = ["all runs give this ratio to the last digit"] if any(_is_sharp(test.change) for test in tests) else []
    missing += ["either side has one run"] if any(single) else []
    return (["Of one run the spread is not known: its interval is of the spacing of evaluations alone."] * (
        not all(single)) + ([f"Where there is no interval, {listed(missing, 'or')}."] if missing else []))


def _pairing(cells: Sequence[ComparedCell]) -> list[str]:
    """How the runs of both sides belong together; with the cells, where it is not the same in all."""
    found: dict[str, list[str]] = {}
    for cell in cells:
        mixed = cell.pairing == "search" and not (cell.baseline.searched and cell.candidate.searched)
        unknown = not cell.pairing and any(seed == UNKNOWN_SEED for side in (cell.baseline, cell.candidate)
                                           for seed, *_ in side.samples.seeds)
        how = "mixed" if mixed else "unknown" if unknown else cell.pairing
        found.setdefault(how, []).append(_place((cell.workers, cell.global_batch)))
    return [f"{said}{f' at {_some(where)}' if len(found) > 1 else ''}{why}."
            for name, where in found.items() for said, why in [PAIRINGS[name]]]


def _stopped_at_target(cell: ComparedCell, target: Target | None) -> bool:
    """Whether a run ended where it met the target, so that what it would still have reached is not known."""
    runs = (*cell.baseline.runs, *cell.candidate.runs) if target else ()
    return any(run.steps == run.last_step and not run.trial.measurement.get("keep_going") for run in runs)


def _tolerances(tolerances: Tolerances) -> str:
    said = [f"steps {percent(tolerances.steps)} more"]
    said += [f"time {percent(tolerances.time)} more, throughput as much less"] if tolerances.time is not None else []
    said += [f"best metric {number(tolerances.metric)} worse"] if tolerances.metric is not None else []
    return listed(said)


def _told(comparison: Comparison, verdict: str) -> list[str]:
    """What has this verdict, in words: tests of which the same is to be said are named together."""
    places = [(_place((cell.workers, cell.global_batch)), cell.tests) for cell in comparison.cells]
    same: dict[str, dict[str, list[str]]] = {}      # how it came to the verdict -> measure -> where
    for where, tests in [*places, ("all cells together", comparison.overall)]:
        for test in tests:
            if test.verdict == verdict:
                same.setdefault(_how(test), {}).setdefault(test.measure, []).append(where)
    said = []
    for how, places_of in same.items():
        alike: dict[str, list[str]] = {}            # where -> measures
        for measure, wheres in places_of.items():
            alike.setdefault(_some(wheres, " and "), []).append(measure)
        said += [f"{_measured(names, comparison.target)} at {where}{how}" for where, names in alike.items()]
    if verdict == UNDECIDED:
        said += [f"{_place(key)} is not in the candidate" for key in comparison.missing]
    return said


def _measured(measures: Sequence[str], target: Target | None) -> str:
    """``steps and time to val/error<0.1, throughput and best metric``."""
    goals = listed([NAMES[name] for name in measures if name in GOALS])
    return listed([*([f"{goals} to {target}"] if goals else []),
                   *(NAMES[name] for name in measures if name not in GOALS)])


def _how(test: Test) -> str:
    change = test.change
    if math.isnan(change.value) or test.reason and "tolerance" not in test.reason:
        return f" ({test.reason})"
    if test.measure == BEST:
        return f" ({_signed(change.value)})"
    ends = _ends(change)
    return f" ({ratio(change.value)} times{f', {ends}' if ends else ''})"


def _place(key: tuple[int, int]) -> str:
    return f"W = {key[0]}, B = {key[1]:,}"


def _some(texts: Sequence[str], joint: str = "; ") -> str:
    """The first of them, and how many more there are."""
    more = [f"{len(texts) - MOST_NAMED} more"] if len(texts) > MOST_NAMED else []
    return joint.join([*texts[:MOST_NAMED], *more])
