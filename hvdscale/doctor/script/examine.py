"""All checks of an unmodified script, from the records of its runs on one worker and on several; their report, with
what was not checked, and why, and what depends on the number of workers without being a fault."""

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...formatting.numbers import counted, list_first, number
from ...formatting.screen import USUAL, terminal_width, wrap
from ...formatting.text_table import aligned
from ...system.cores import describe_load
from ...watch.place import place_for
from ...watch.remarks import ALONE, IN_BACKWARD, OWN_HOOK, REDRAWN
from ...watch.runner import ScriptRequest
from ...workers.launch import Process
from ..finding import Finding, Verdict, trace_cause
from ..formats import NOTES, Judged, render_list
from .compare.examples import epochs, evaluation, examples, filled_up, rounds_of
from .compare.gradient import gradient, other_divisor
from .compare.pair import KINDS, Pair, only_call, passes_of, trained
from .compare.state import (averaged, batch_norm, by_rank, join, learning_rate, parameters, random_numbers, schedule,
                            together, update)
from .record import Logged, Record, written_outside
from .runs import LARGEST, Run, ScriptError, run_here, run_launched

CHECKS = {"examples": examples, "epochs": epochs, "gradient": gradient, "update": update, "parameters": parameters,
          "batch-norm": batch_norm, "learning rate": learning_rate, "schedule": schedule,
          "random numbers": random_numbers, "evaluation": evaluation}
OF_AN_OPTIMIZER = ("gradient", "update", "parameters", "learning rate", "schedule")
BY_GRADIENTS, STILL = ("gradient", "update"), 2         # compared where random numbers are held still; updates of it
WORST_FIRST = (Verdict.FAILED, Verdict.WARNED, Verdict.UNSEEN, Verdict.PASSED, Verdict.NOT_APPLICABLE)
EXPLAINS = dict.fromkeys(("gradient", "learning rate", "examples"), ("parameters",))        # that they drift apart
REMARKS = "On one worker as on several, and in no exit code:"
NOT_CHECKED = "Not checked, as it cannot be seen from outside or did not happen in these updates:"
SHOWN = 6               # updates in the table of losses;  files that are named
UNSEEN = 4              # exit code: no finding failed, but the training was not seen, or not explained
LEAST = 2               # values of a name that are seen to be another one
TRUE, WITHIN = "logged_true", 1e-5


@dataclass(frozen=True)
class ScriptJudged(Judged):
    must: Mapping[str, str]     # by check, what of the training has to be seen

    @property
    def unseen_training(self) -> dict[str, str]:
        """By check, what of the training was not seen or not explained, without which nothing is acquitted."""
        unseen = [finding for finding in self.findings if finding.verdict == Verdict.UNSEEN]
        return {one.check: f"{one.check} (unexplained)" if one.differs else self.must[one.check]
                for one in unseen if one.differs or one.check in self.must}

    @property
    def code(self) -> int:
        """The exit code."""
        return UNSEEN if self.sound and self.unseen_training else int(not self.sound)

    @property
    def verdict(self) -> str:
        """The outcome in a line, with the meaning of the exit code."""
        failed, warned = ([finding.check for finding in self.findings if finding.verdict == verdict]
                          for verdict in (Verdict.FAILED, Verdict.WARNED))
        hidden, of = [*self.unseen_training.values()], f"of {len(self.findings)}"
        for label, names, meaning in (("FAILED", failed, "a finding failed"), (
                "not seen", hidden, "no finding failed, but what was not seen may hide one"),
                                      ("warned", warned, "no finding failed; a warning may be meant so")):
            if names:
                return f"{label}: {', '.join(names)} ({len(names)} {of}); exit code {self.code}: {meaning}"
        return f"passed ({sum(one.verdict == Verdict.PASSED for one in self.findings)} {of}); exit code 0"


def instead_of(records: list[Record]) -> list[str]:
    """What a script could not have here, such as a GPU, and what it had instead."""
    return list(dict.fromkeys(one for record in records for one in record.instead))


def examine(asked: ScriptRequest, workers: int, process: Process, say: Callable[[str], None],
            checks: Collection[str] = tuple(CHECKS)) -> ScriptJudged | None:
    """Run the script on one worker and on several, and make those of CHECKS; raises ScriptError. None on ranks above 0.
    In a launch, its workers run the script; a process alone starts ``workers`` ranks here."""
    with place_for(process, asked.seconds) as place:
        many = None
        if process.size > 1:
            say(f"running {asked.script} on {process.size} workers")
            many = run_launched(asked, process, place / "launched")
            if many is None:
                return None
        one, many = run_both(asked, place, workers, many, say)
        pair, still = paired(asked, one, many), None
        if pair.obstacles() == ["random"] and process.local_size == process.size and not many.late:
            say(f"running {asked.script} again, with its random numbers held still")
            still = held_still(asked, pair, place)
        return compare(asked, one, many, pair, checks, still)


def run_both(asked: ScriptRequest, place: Path, workers: int, many: Run | None, say: Callable[[str], None]
             ) -> tuple[Run, Run]:
    """The run on one worker, and that on several, if it is not there; of a script that ends before an update on one,
    the runs on two and on more, where these can be made. Raises the error of one worker else."""
    def run(count: int) -> Run:
        say(f"running {asked.script} on {counted(count, 'worker')}")
        return run_here(asked, count, place / str(count))
    try:
        one = run(1)
    except ScriptError as error:
        most = many.workers if many else 2 * workers
        if not error.need_more or most < 3 or (asked.global_batch or most) % most:
            raise
        with contextlib.suppress(ScriptError):
            two, many = run(2), many or run(most)
            many.records[0].instead.append(f"{error}. So two workers are compared with {most}, and \"one worker\" in "
                                           "what follows means these two.")
            return two, many
        raise
    return one, many or run(workers)


def paired(asked: ScriptRequest, one: Run, many: Run) -> Pair:
    for run in (one, many):
        join(run.records)
    base = one.records[0] if one.workers == 1 else together(one.records)
    return Pair(base, many.records, asked.global_batch, base=one.workers)


def held_still(asked: ScriptRequest, pair: Pair, place: Path) -> Pair | None:
    """Two runs whose random numbers do not depend on the number of workers; None where they cannot be compared."""
    asked = replace(asked, updates=min(asked.updates, STILL), still=True)
    with contextlib.suppress(ScriptError):
        pair = paired(asked, *(run_here(asked, count, place / f"still {count}") for count in (pair.base, pair.workers)))
        return pair if pair.both[0].comparable else None
    return None


def compare(asked: ScriptRequest, one: Run, many: Run, pair: Pair, checks: Collection[str], still: Pair | None
            ) -> ScriptJudged:
    """The findings on two runs, and on two that were held still; pure but for what the runs say they wrote."""
    late = ["; ".join(filter(None, [f"the run on {counted(run.workers, 'worker')} was ended after {asked.seconds:g} s",
                                    describe_load()])) for run in (one, many) if run.late]
    findings = [_carry_out(check, pair) for check in checks]
    if still is not None:
        findings = [_of_still(one, still) if one.check in BY_GRADIENTS else one for one in findings]
    findings = [trace_cause(one, findings, EXPLAINS) if one.differs.startswith("the same at first") else one
                for one in findings]
    if any(ALONE in record.remarks for record in pair.many):
        findings = [Finding(finding.check, Verdict.UNSEEN, ALONE) for finding in findings]
    in_copy = {path for run in (one, many) if run.workplace.copied for path in run.written}
    written = sorted({path for run in (one, many) if not run.workplace.copied for path in run.written} |
                     written_outside(pair.records))
    instead, lists = instead_of(pair.many), [notes(pair), remarks(pair), [*late, *unseen(pair, still)]]
    about = {"script": asked.script, "arguments": asked.arguments, "workers": pair.workers,
             "global_batch": asked.global_batch, "updates": pair.updates,
             **dict(zip(("notes", "remarks", "not_checked"), lists)), "instead": instead, "written": written}
    headline = KINDS.sentence("report", "headline", pair, script=asked.script, checks=len(findings),
                              size=asked.global_batch)
    texts = [" ".join([f"{headline}.", *instead]) if instead else headline, _losses(pair),
             *map(render_list, (NOTES, REMARKS, NOT_CHECKED), lists),
             *map(wrap, files_of(one.workplace.copied and many.workplace.copied, written, sorted(in_copy)))]
    return ScriptJudged(tuple(findings), about, texts, KINDS.checks["must"])


def _of_still(finding: Finding, still: Pair) -> Finding:
    """The finding, or that on the runs that were held still, where it is worse, or the first saw nothing."""
    found, seen = _carry_out(finding.check, still), finding.differs or finding.verdict != Verdict.UNSEEN
    worse = found.differs and WORST_FIRST.index(found.verdict) < WORST_FIRST.index(finding.verdict)
    if not worse and (seen or found.verdict != Verdict.PASSED):
        return finding
    name = "differs" if found.differs else "looked_at"
    return replace(found, **{name: f"random numbers held still: {getattr(found, name)}"})


def _carry_out(check: str, pair: Pair) -> Finding:
    optimizers = min(len(record.optimizers) for record in pair.records)
    if check not in OF_AN_OPTIMIZER or optimizers < 2:
        return CHECKS[check](pair)
    found = []
    for at, of in enumerate(replace(pair, optimizer=at) for at in range(optimizers)):
        if of.flat and of.updates < pair.updates:       # an outer one, whose steps are judged by the model's parameters
            continue
        name = f"optimizer {at + 1} of {optimizers} ({of.steps(pair.one).name}): "
        one = CHECKS[check](of) if of.updates else Finding(check, Verdict.UNSEEN, "it made no update on some rank")
        named = {"differs": name + one.differs} if one.differs else {"looked_at": name + one.looked_at}
        found.append(replace(one, **named))
    worst = min(found, key=lambda one: WORST_FIRST.index(one.verdict))
    of_all = f"of {optimizers} optimizers: {worst.looked_at.partition(': ')[2]}"
    return worst if worst.verdict != Verdict.PASSED else replace(worst, looked_at=of_all)


def _losses(pair: Pair) -> str:
    """The losses of updates as the script differentiates them: summed over passes, the mean over ranks."""
    if not pair.on_one(0).passes:
        return ""
    shown = range(min(pair.updates, SHOWN))
    rows = [("update", *(f"{at + 1}" for at in shown))]
    for name, records in ((counted(pair.base, "worker"), [pair.one]), (f"{pair.workers} workers", pair.many)):
        summed = [sum(one.loss for record in records for one in record.updates[at].passes) for at in shown]
        rows.append((name, *(number(loss / len(records), 4) for loss in summed)))
    return "\n  ".join(["loss (the mean of the ranks' own)", *aligned(rows, (0,), (terminal_width() or USUAL) - 2)])


def files_of(copied: bool, written: Sequence[str], in_copy: Sequence[str]) -> list[str]:
    """Where the script ran, and which files it wrote, there and elsewhere."""
    return KINDS.sentences(
        "report", None, {"in_copy": in_copy, "in_folder": not copied, "outside": written}, copied=copied,
        most=LARGEST >> 20, there=list_first(in_copy, SHOWN), paths=list_first(written, SHOWN))


def notes(pair: Pair) -> list[str]:
    """One sentence for each legitimate dependence on the number of workers."""
    first = next(iter(trained(pair.many[0])), None)
    padded, left_out, drops = (getattr(first and first.sampling, of, 0) for of in ("padded", "left_out", "drops_last"))
    repeated, rounds = 0 if padded or left_out or drops else filled_up(pair), rounds_of(pair.many)[:1]
    sampling = [one.sampling for each in rounds for rank in each.ranks for one in rank]
    return [*logged(pair), *KINDS.sentences("notes", pair, {
        "padded": padded, "left_out": left_out, "drops_last": drops, "repeated": repeated,
        "same_rate": pair.batch is None and pair.one.updates[0].rates == pair.many[0].updates[0].rates,
        "by_rank": by_rank(pair), "local_steps": averaged(pair),
        "other_order": pair.batch is not None and all(map(trained, pair.records)) and pair.keys(pair.many, 0)
        and not pair.same_examples(0),
        "may_pad": rounds and all(one.replicas and not one.padded and not one.left_out and not one.drops_last
                                  for one in sampling),
    }, padded=padded, left_out=left_out, repeated=repeated, size=first.data[1] if first else 0,
        evaluated=rounds[0].examples if rounds else 0)]


def remarks(pair: Pair) -> list[str]:
    """What looks wrong on any number of workers, each in one sentence."""
    (divisor, targets), (name, end), first = other_divisor(pair), pair.one.schedule, trained(pair.one)
    steps = {(sum(one.positions) - sum(pair.on_one(0).positions)) / at for at, one in enumerate(
        pair.steps(pair.one).updates[:3]) if at and len(one.positions) == 1}
    advance = steps.pop() if len(steps) == 1 else 0.0                           # at each of the first updates
    passes = len(pair.on_one(0).passes) // pair.base
    batches = len(first[0].batches) + len(first[0].rest) if first and (first[0].ended or first[0].rest) else 0
    epoch = int(advance * batches / max(1, len(pair.batches(pair.one, 0))))
    met = {"more_than_targets": divisor > targets, "some_of_targets": divisor < targets,
           "schedule_by_pass": passes > 1 and advance == passes, "short_schedule": 0 < end < epoch}
    return ([REDRAWN] if any(REDRAWN in record.remarks for record in pair.records) else []) + KINDS.sentences(
        "remarks", pair, met, divisor=divisor, targets=targets, schedule=name, end=end, epoch=epoch, passes=passes)


def unseen(pair: Pair, still: Pair | None = None) -> list[str]:
    """What these two runs cannot show, each in one sentence, nor two that were held ``still``."""
    passes = [one for record in pair.many for each in record.optimizers for one in passes_of(each.updates)]
    loaded, rounds = all(map(trained, pair.records)), rounds_of(pair.many)
    one, many = ([*trained(record), None][0] for record in (pair.one, pair.many[0]))
    sizes = {batch.examples for each in rounds[:1] for rank in each.ranks for one in rank for batch in one.batches}
    kept = REDRAWN, OWN_HOOK, IN_BACKWARD
    remarks = dict.fromkeys(one for record in pair.many for one in record.remarks if one not in kept)
    return [*remarks, *KINDS.sentences("not_checked", pair, {
        "other_batches": pair.batch is None,
        "first_update": pair.batch is not None and not (still or pair).both[0].comparable,
        "streams": any(iteration.iterable for record in pair.many for iteration in record.iterations),
        "own_data": loaded and one.data != many.data and not one.iterable, "no_loader": not loaded,
        "weighing": not all(map(only_call, passes)), "end_of_epoch": any(one.cut is not None for one in pair.loops),
        "second_epoch": any(len(trained(record)) < 2 for record in pair.many),
        "no_evaluation": not rounds, "metric": len(sizes) == 1, "metric_of_uneven_batches": len(sizes) > 1,
    }, why=pair.why_incomparable)]


def logged(pair: Pair) -> list[str]:
    """A sentence for each name under which rank 0 shows its own value, or a sum, and never that of all ranks."""
    found: dict[str, list[tuple[str, dict]]] = {}
    for one in pair.many[0].logged:
        kinds = [(kind, {"what": one.name, "value": one.value, "update": at + 1, "true": true,
                         "times": one.value / true}) for kind, value, at, true in _known(pair, one)
                 if true and abs(one.value - value) <= one.within + WITHIN * abs(value)]
        found.setdefault(one.name, []).extend(sorted(kinds, key=lambda each: each[0] != TRUE)[:1])
    for one in (one for record in pair.many[1:] for one in record.logged):
        found.pop(one.name, None)               # each rank shows its own
    return [KINDS.sentence("notes", each[0][0], pair, **each[0][1]) for each in found.values()
            if len(each) >= LEAST and len({kind for kind, _ in each} | {TRUE}) == 2 and each[0][0] != TRUE]


def _known(pair: Pair, one: Logged) -> Iterator[tuple[str, float, int, float]]:
    for at in (at for at in (one.made - 1, one.made) if 0 <= at < pair.updates):
        ranks = pair.at(at)
        if "norm" not in one.name.lower():
            for which in (slice(None), slice(-1, None)):        # the loss of all passes, and of the last one
                losses = [sum(each.loss for each in update.passes[which]) for update in ranks]
                for times in {1, len(ranks[0].passes)}:
                    true = times * sum(losses) / pair.workers
                    yield from ((TRUE, true, at, true), ("logged_own", times * losses[0], at, true),
                                ("logged_sum", pair.workers * true, at, true))
        parts = {update.own.tobytes(): update for update in reversed(ranks) if update.own is not None}
        for squares in ([[update.square for update in (ranks[0], *parts.values())], [
                clip.square for update in (ranks[0], *parts.values()) for clip in update.clips[:1]]]):
            if "norm" in one.name.lower() and len(squares) > 2:
                true = math.sqrt(sum(squares[1:]))
                yield from ((TRUE, true, at, true), ("logged_part", math.sqrt(squares[0]), at, true))
