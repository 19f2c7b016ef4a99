"""All checks of a script that is stopped and started again."""
from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from ...formatting.lines import wrap
from ...formatting.numbers import counted, list_first, listed
from ...watch.place import place_for
from ...workers.launch import Process
from ..finding import Finding, Verdict, trace_cause
from ..script.examine import SHOWN, Judged, instead_of
from .checks import CHECKS
from .runs import Both, ResumeRequest, run_all

STATE = {"parameters", "optimizer", "schedule", "loss scale", "examples", "random numbers"}
EXPLAINS = {"files": ("parameters", "optimizer"), "optimizer": ("schedule",), "saved values": ("updates",)}
# check -> how its finding begins, and the checks of which a failure explains it
EXPLAINED = {"saved values": ("the checkpoint of", STATE), "printed": ("update", {"examples"}),
             "updates": ("from update", {*STATE, "saved values"})}


@dataclass(frozen=True)
class ResumeExamination(Judged):
    """What was found of a script that was stopped and started again."""

    must = {"load": "the load of a checkpoint", "parameters": "the parameters after it",
            "examples": "the training examples"}

    findings: tuple[Finding, ...]
    headline: str
    blocks: tuple[str, ...]
    of: dict[str, object]

    @property
    def about(self) -> dict[str, object]:
        return {**self.of, "verdict": self.verdict}


def examine(asked: ResumeRequest, process: Process, say: Callable[[str], None],
            checks: Collection[str] = tuple(CHECKS)) -> ResumeExamination:
    """Run the script, and compare; raises ScriptError and UsageError as run_all does."""
    with place_for(process, asked.script.seconds) as place:
        both = run_all(asked, place, say)
    script = asked.script
    of = {"script": script.script, "arguments": script.arguments, "again": asked.again, "workers": asked.workers,
          "then": asked.then, "updates": both.made, "how": asked.how, "instead": instead_of(both.first),
          "written": both.written}
    headline = (f"{script.script} on {counted(asked.workers, 'worker')}{f', then {asked.then}' if both.other_count else ''}: "
                f"{both.made} updates without a stop")
    if both.stopped:
        of |= {"stopped_after": both.stop, "held": both.held, "redone": both.redone}
        chosen = "" if both.stop_at == asked.stop else f" (the update of a checkpoint, in place of {asked.stop})"
        headline += f"; stopped after update {both.stop}{chosen}, and started again from update {both.held}"
    blocks = [f"{text} {list_first(paths, SHOWN)}." for text, paths in (
        ("The script ran in copies of this folder, which are removed. There it wrote", not asked.in_place and both.written),
        ("Left out of the copies:", both.left)) if paths]
    return ResumeExamination(compare(both, checks), " ".join([f"{headline}.", *instead_of(both.first)]),
                             tuple(map(wrap, blocks)), of)


def compare(both: Both, checks: Collection[str]) -> tuple[Finding, ...]:
    if not both.stopped:
        return tuple(both.finding("load", "no_save") if check == "load" else
                     Finding(check, Verdict.UNSEEN, "the script saved nothing") for check in checks)
    loaded, judged, why = CHECKS["load"](both), {*CHECKS}, ""
    if loaded.verdict != Verdict.PASSED and not loaded.differs.startswith("a checkpoint"):
        judged, why = {"load", "files"}, "nothing was loaded, so there is nothing to compare"
    elif not all(record.updates for record in both.resumed):
        judged, why = {"load", "files", "updates"}, "started again, the script made no update"
    found = {check: each(both) if check in judged else Finding(check, Verdict.UNSEEN, why)
             for check, each in CHECKS.items()}
    failed = [check for check, one in found.items() if one.verdict in (Verdict.FAILED, Verdict.WARNED)]
    for check, (kinds, by) in EXPLAINED.items():
        if found[check].differs.startswith(kinds) and (why := listed([one for one in failed if one in by])):
            found[check] = Finding(check, Verdict.UNSEEN, f"{found[check].differs}: explained by {why}")
    return tuple(trace_cause(found[check], [*found.values()], EXPLAINS) for check in checks)
