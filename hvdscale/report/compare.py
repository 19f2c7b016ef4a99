"""A candidate's logs held against a baseline's: one table a workload and target, one line of verdict, and files.

    comparisons = compare_trials(baseline, candidate)
    for comparison in comparisons:
        print(as_text(comparison_table(comparison)))
    print(verdict_line(comparisons))
"""
from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from .. import __version__
from ..analysis.compare import (BEST, OK, REGRESSION, SECONDS, STEPS, UNDECIDED, ComparedCell, Comparison, Test,
                                Tolerances)
from ..analysis.equality import Alone, Difference, Pair
from ..analysis.intervals import Estimate
from ..analysis.steps import SPEED, RunCell
from ..analysis.trials import Trial
from ..formatting.lines import wrap
from ..formatting.numbers import NARROWEST, listed, ratio, span, whole
from ..log.schema import UNKNOWN_SEED
from ..target import Target
from .differences import how_they_differ
from .table import BATCH, Cell, Table, TrialKeys, as_values, count_cell, number_cell, pick
from .texts import COMPARE, Cells

NAMES = {STEPS: "steps", SECONDS: "time", SPEED: "throughput", BEST: "best metric"}
CHANGES = {STEPS: "steps_ratio", SECONDS: "seconds_ratio", SPEED: "speed_ratio", BEST: "best_difference"}
GOALS = (STEPS, SECONDS)        # measured up to the target
MOST_NAMED = 6                  # of what the verdict names
ALL = "all"
DETAILS = {"workload": "1", "target": "1", "workers": "1", "global_batch": "examples", "measure": "1", "baseline": "",
           "candidate": "", "change": "", "verdict": "1", "reason": "1"}        # and their units


@dataclass(frozen=True)
class ComparedRow:
    """What is in a row of the table: a cell, or (None) what all cells say together."""

    cell: ComparedCell | None
    tests: Sequence[Test]
    verdict: str


def comparison_table(comparison: Comparison) -> Table:
    """One workload's cells, a row each, and what they say together."""
    target = comparison.target
    rows = [ComparedRow(cell, cell.tests, cell.verdict) for cell in comparison.cells]
    if comparison.overall:
        worst = max((test.verdict for test in comparison.overall if test.verdict), default=OK,
                    key=(OK, UNDECIDED, REGRESSION).index)
        rows.append(ComparedRow(None, comparison.overall, worst))
    steps: Cells = {
        "steps_before": lambda row: _steps(row.cell.baseline) if row.cell else Cell(""),
        "steps_after": lambda row: _steps(row.cell.candidate) if row.cell else Cell("")}
    return COMPARE.table("compare", rows, {
        "workers": lambda row: count_cell(row.cell.workers) if row.cell else Cell(ALL, ALL),
        BATCH: lambda row: count_cell(row.cell.global_batch) if row.cell else Cell(ALL, ALL),
        "met": lambda row: _met_cell(row.cell, target) if row.cell else Cell(""), **(steps if target else {}),
        **{CHANGES[name]: partial(_change, name=name) for name in (tuple(NAMES) if target else (SPEED,))},
        "verdict": _verdict}, lambda row: row.cell.candidate.keys if row.cell else (),
        diverged=lambda row: tuple(trial.key for trial in row.cell.candidate.diverged) if row.cell else (),
        baseline=lambda row: row.cell.baseline.keys if row.cell else (), notes=_notes(comparison),
        workload=str(comparison.workload), what=target or "throughput")


def detail_table(comparisons: Sequence[Comparison]) -> Table:
    """Every test of every comparison, a row each."""
    rows: list[tuple[dict[str, Cell], TrialKeys]] = []
    for comparison in comparisons:
        about: dict[str, str | int] = {"workload": str(comparison.workload), "target": str(comparison.target or "")}
        for cell in comparison.cells:
            where = {**about, "workers": cell.workers, "global_batch": cell.global_batch}
            trials = (*cell.baseline.keys, *cell.candidate.keys)
            rows += [(_detail(where, test), trials) for test in cell.tests]
        where = {**about, "workers": ALL, "global_batch": ALL}
        rows += [(_detail(where, test), ()) for test in comparison.overall]
        rows += [(_named({**about, "workers": workers, "global_batch": batch, "verdict": UNDECIDED,
                          "reason": "not in the candidate"}), ()) for workers, batch in comparison.missing]

    def cell_of(row: tuple[dict[str, Cell], TrialKeys], key: str) -> Cell:
        return row[0].get(key, Cell(""))
    return COMPARE.table("compare-details", rows, {
        COMPARE.column("detail", key, title=key.replace("_", " "), unit=unit): partial(cell_of, key=key)
        for key, unit in DETAILS.items()}, lambda row: row[1], file="compare")


def verdict_of(comparisons: Sequence[Comparison]) -> str:
    """The worst verdict of all."""
    return max((comparison.verdict for comparison in comparisons), key=(OK, UNDECIDED, REGRESSION).index)


def verdict_line(comparisons: Sequence[Comparison]) -> str:
    """What the gate says, in one line; of several workloads each by its name."""
    verdict, tolerances = verdict_of(comparisons), comparisons[0].tolerances
    judged = sum(comparison.judged for comparison in comparisons)
    several = len({comparison.workload for comparison in comparisons}) > 1
    told = {name: _some([f"{comparison.workload}: {text}" if several else text
                         for comparison in comparisons for text in _describe_tests(comparison, name)])
            for name in (REGRESSION, UNDECIDED)}
    kind = {REGRESSION: "regression", UNDECIDED: "undecided", OK: "ok"}[verdict]
    return COMPARE.say(kind, regressions=told[REGRESSION], undecided=told[UNDECIDED], tests=judged,
                       tolerances=_describe_tolerances(tolerances))


def verdict_text(comparisons: Sequence[Comparison]) -> str:
    """The same, as wide as the tables; a worker count or a batch is on the line of its name."""
    line = verdict_line(comparisons).replace(" = ", "\xa0=\xa0")
    return wrap(line).replace("\xa0", " ")


def as_json(comparisons: Sequence[Comparison], paths: tuple[str, str]) -> dict[str, object]:
    """All of it for JSON."""
    tolerances = comparisons[0].tolerances
    return {
        **_json_head(paths, verdict_of(comparisons), verdict_line(comparisons)),
        "tolerances": pick(tolerances, "steps time metric"), "confidence": tolerances.confidence,
        "comparisons": [{
            **pick(comparison, "workload target verdict"), "missing": [_where(key) for key in comparison.missing],
            "added": [_where(key) for key in comparison.added], "table": as_values(comparison_table(comparison)),
            "tests": [_test_values(cell.workers, cell.global_batch, test)
                      for cell in comparison.cells for test in cell.tests]
            + [_test_values(ALL, ALL, test) for test in comparison.overall]} for comparison in comparisons],
    }


def _json_head(paths: tuple[str, str], verdict: str, said: str) -> dict[str, object]:
    return {"format": "hvdscale-compare", "version": 1, "creator": f"hvdscale {__version__}", "baseline": paths[0],
            "candidate": paths[1], "verdict": verdict, "said": said}


def equality_line(pairs: Sequence[Pair], alone: Alone) -> str:
    """Whether exact runs have the same bits, in a line; where they differ first, if they do."""
    differ = [COMPARE.say("differs_at", step=pair.difference.step, column=pair.difference.column,
                          before=f"{pair.difference.before!r} in {_name(pair.baseline)}",
                          after=f"{pair.difference.after!r} in {_name(pair.candidate)}")
              for pair in pairs if pair.difference]
    differ += [COMPARE.say("alone", run=_name(trial), other=_name(other),
                           how=how_they_differ(other.setting, trial.setting) or f"seed {other.seed}, then {trial.seed}")
               for trial, other in alone]
    if differ:
        return COMPARE.say("differs", places=_some(differ))
    return COMPARE.say("equal", pairs=len(pairs), steps=max(pair.baseline.last_step for pair in pairs),
                       columns=min(len(pair.columns) for pair in pairs))


def equality_json(pairs: Sequence[Pair], alone: Alone, paths: tuple[str, str]) -> dict[str, object]:
    """The same for JSON; a value that a run has not, or that is not finite, is null."""
    equal = not alone and not any(pair.difference for pair in pairs)
    return {**_json_head(paths, OK if equal else REGRESSION, equality_line(pairs, alone)), "equal": equal,
            "alone": [_name(trial) for trial, _ in alone],
            "pairs": [{"baseline": _name(pair.baseline), "candidate": _name(pair.candidate), "columns": pair.columns,
                       "difference": _difference_values(pair.difference)} for pair in pairs]}


def _difference_values(found: Difference | None) -> dict[str, object] | None:
    return None if found is None else pick(found, "step column baseline=before candidate=after")


def _name(trial: Trial) -> str:
    return f"{trial.log}:{trial.id}"


def _where(key: tuple[int, int]) -> dict[str, int]:
    return {"workers": key[0], "global_batch": key[1]}


def _test_values(workers: int | str, batch: int | str, test: Test) -> dict[str, object]:
    return {"workers": workers, "global_batch": batch, **pick(test, "measure baseline=before candidate=after"),
            **pick(test.change, "change=value low high runs"), **pick(test, "verdict reason")}


def _met_cell(cell: ComparedCell, target: Target | None) -> Cell:
    """Of the baseline, then of the candidate."""
    sides = cell.baseline, cell.candidate
    met, lost = ", ".join(_met(one, target) for one in sides), [len(one.diverged) for one in sides]
    return Cell(met, met, below=f"{lost[0]}, {lost[1]} div." if any(lost) else "")


def _met(cell: RunCell, target: Target | None) -> str:
    """Of seeds, or where it is searched of its draws."""
    steps = [run.steps for run in cell.draws] if cell.searched else cell.samples.steps
    return f"{sum(map(math.isfinite, steps))}/{len(steps)}" if target else f"{len(cell.samples.seeds)}"


def _steps(cell: RunCell) -> Cell:
    steps = cell.steps
    if not cell.runs:
        return Cell("diverged", math.nan)
    if not steps.met:
        return Cell(f"> {whole(steps.beyond)}" if not math.isnan(steps.beyond) else "n/a", steps.value)
    return Cell(whole(steps.value), steps.value)


def _change(row: ComparedRow, name: str) -> Cell:
    test = next((test for test in row.tests if test.measure == name), None)
    if test is None:
        return Cell("")
    change = test.change
    if test.measure == BEST:
        ends = "" if math.isnan(change.low) else f"{_signed(change.low)}..{_signed(change.high)}"
        return Cell("n/a" if math.isnan(change.value) else _signed(change.value), change.value, change.low, change.high,
                    ends)
    shown = ratio(change.value) if not math.isnan(change.value) else "n/a"
    return Cell(shown, change.value, change.low, change.high, _ends(change))


def _ends(change: Estimate) -> str:
    """The interval of a ratio; empty where it has no width."""
    return "" if _is_sharp(change) else span(change.low, change.high, ratio)


def _is_sharp(change: Estimate) -> bool:
    return math.isclose(change.low, change.high, rel_tol=NARROWEST)


def _signed(value: float) -> str:
    return f"{value:+.2g}"


def _verdict(row: ComparedRow) -> Cell:
    about = [NAMES[test.measure] for test in row.tests if test.verdict == row.verdict != OK]
    return Cell(row.verdict, row.verdict, below=", ".join(about[:2]) + (" ..." if len(about) > 2 else ""))


def _named(values: Mapping[str, str | int]) -> dict[str, Cell]:
    return {key: Cell(str(value), value) for key, value in values.items()}


def _detail(where: Mapping[str, str | int], test: Test) -> dict[str, Cell]:
    """The cells of a test by column."""
    write = _signed if test.measure == BEST else ratio
    change = test.change
    return {**_named({**where, "measure": test.measure, "verdict": test.verdict or "", "reason": test.reason}),
            "baseline": number_cell(test.before), "candidate": number_cell(test.after),
            "change": Cell(write(change.value), change.value, change.low, change.high)}


def _notes(comparison: Comparison) -> Iterator[str]:
    """How to read the table; what is in one log alone, and where settings differ."""
    cells = comparison.cells
    yield COMPARE.say("ratios", confidence=comparison.tolerances.confidence, target=comparison.target,
                      tolerances=_describe_tolerances(comparison.tolerances))
    pairings: dict[str, list[str]] = {}
    differ: dict[str, list[str]] = {}
    for cell in cells:
        pairings.setdefault(_pairing(cell), []).append(_place(cell.workers, cell.global_batch))
        how = how_they_differ(cell.baseline.setting, cell.candidate.setting) if cell.pairing != "draw" else ""
        if how:
            differ.setdefault(how, []).append(_place(cell.workers, cell.global_batch))
    for pairing, places in pairings.items():
        yield COMPARE.say(pairing, places=_some(places) if len(pairings) > 1 else "")
    if any(_stopped_at_target(cell, comparison.target) for cell in cells):
        yield COMPARE.say("stopped")
    yield from _describe_intervals([test for cell in cells for test in cell.tests if test.measure != BEST])
    if comparison.overall:
        yield COMPARE.say("all")
    for key in comparison.missing:
        yield COMPARE.say("only_baseline", place=_place(*key))
    if comparison.added:
        yield COMPARE.say("only_candidate", places=_some([_place(*key) for key in comparison.added]))
    for how, places in differ.items():
        yield COMPARE.say("settings", how=how, places=_some(places))
    if any(cell.baseline.oversubscribed or cell.candidate.oversubscribed for cell in cells):
        yield COMPARE.say("crowded")


def _pairing(cell: ComparedCell) -> str:
    """How the runs of both sides belong together: the kind of the note that says so."""
    if cell.pairing == "search" and not (cell.baseline.searched and cell.candidate.searched):
        return "mixed"
    unknown = any(seed == UNKNOWN_SEED for side in (cell.baseline, cell.candidate) for seed, *_ in side.samples.seeds)
    return cell.pairing or ("unknown" if unknown else "unpaired")


def _describe_intervals(tests: Sequence[Test]) -> Iterator[str]:
    """What the intervals of single runs are, and where there are none."""
    single = [math.isnan(test.change.low) for test in tests if "one run" in test.reason]
    if not all(single):
        yield COMPARE.say("one_run")
    reasons = ["all runs give this ratio to the last digit"] if any(_is_sharp(test.change) for test in tests) else []
    reasons += ["either side has one run"] if any(single) else []
    if reasons:
        yield COMPARE.say("no_interval", reasons=reasons)


def _stopped_at_target(cell: ComparedCell, target: Target | None) -> bool:
    """Whether a run ended where it met the target, so that what it would still have reached is not known."""
    runs = (*cell.baseline.runs, *cell.candidate.runs) if target else ()
    return any(run.steps == run.last_step and not run.trial.measurement.get("keep_going") for run in runs)


def _describe_tolerances(tolerances: Tolerances) -> str:
    return COMPARE.say("tolerances", steps=tolerances.steps, time=tolerances.time, metric=tolerances.metric)


def _describe_tests(comparison: Comparison, verdict: str) -> list[str]:
    """What has this verdict, in words: tests of which the same is to be said are named together."""
    places = [(_place(cell.workers, cell.global_batch), cell.tests) for cell in comparison.cells]
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
        said += [COMPARE.say("missing", place=_place(*key)) for key in comparison.missing]
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


def _place(workers: int, batch: int) -> str:
    return COMPARE.say("place", workers=workers, batch=batch)


def _some(texts: Sequence[str], joint: str = "; ") -> str:
    """The first of them, and how many more there are."""
    more = [f"{len(texts) - MOST_NAMED} more"] if len(texts) > MOST_NAMED else []
    return joint.join([*texts[:MOST_NAMED], *more])
