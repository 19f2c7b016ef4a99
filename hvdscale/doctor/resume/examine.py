"""All checks of a script that is stopped and started again."""
from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from ...formatting.lines import wrap
from ...formatting.numbers import list_first, listed
from ...watch.place import place_for
from ...workers.launch import Process
from ..finding import Finding, Verdict, trace_cause
from ..script.examine import SHOWN, ScriptJudged, instead_of
from .checks import CHECKS
from .runs import KINDS, Both, ResumeRequest, run_all

EXPLAINS = {"files": ("parameters", "optimizer"), "optimizer": ("schedule",), "saved values": ("updates",)}


@dataclass(frozen=True)
class ResumeExamination(ScriptJudged):
    """What was found of a script that was stopped and started again."""

    must = {"load": "the load of a checkpoint", "parameters": "the parameters after it",
            "examples": "the training examples"}

    both: Both
    findings: tuple[Finding, ...]

    @property
    def about(self) -> dict[str, object]:
        both, asked = self.both, self.both.asked
        seen = {"stopped_after": both.stop, "held": both.held, "redone": both.redone} if both.stopped else {}
        return {"script": asked.script.script, "arguments": asked.script.arguments, "again": asked.again,
                "workers": asked.workers, "then": asked.then, "updates": both.made, "how": asked.how, **seen,
                "instead": instead_of(both.first), "written": both.written, "verdict": self.verdict}

    def texts(self) -> list[str]:
        both, asked = self.both, self.both.asked
        headline = KINDS.sentence(
            "report", "headline", both, script=asked.script.script, workers=asked.workers, asked=asked.stop,
            then=asked.then if both.other_count else None, stop=both.stop, held=both.held,
            stopped=bool(both.stopped), moved=both.stop_at != asked.stop)
        written = [] if asked.in_place else both.written
        return [" ".join([headline, *instead_of(both.first)]), *(
            wrap(KINDS.sentence("report", name, both, paths=list_first(paths, SHOWN)))
            for name, paths in (("written", written), ("left", both.left)) if paths)]


def examine(asked: ResumeRequest, process: Process, say: Callable[[str], None],
            checks: Collection[str] = tuple(CHECKS)) -> ResumeExamination:
    """Run the script, and compare; raises ScriptError and UsageError as run_all does."""
    with place_for(process, asked.script.seconds) as place:
        both = run_all(asked, place, say)
    return ResumeExamination(both, compare(both, checks))


def compare(both: Both, checks: Collection[str]) -> tuple[Finding, ...]:
    loaded, judged, why = CHECKS["load"](both), {*CHECKS}, ""
    if loaded.verdict != Verdict.PASSED and not loaded.differs.startswith("a checkpoint"):
        judged, why = {"load", "files"} if both.stopped else {"load"}, "no_load" if both.stopped else "no_save"
    elif not all(record.updates for record in both.resumed):
        judged, why = {"load", "files", "updates"}, "no_update"
    found = {check: each(both) if check in judged else Finding(check, Verdict.UNSEEN, KINDS.sentence("report", why))
             for check, each in CHECKS.items()}
    failed = [check for check, one in found.items() if one.verdict in (Verdict.FAILED, Verdict.WARNED)]
    for check, of in KINDS.checks["explained"].items():
        causes = listed([one for one in failed if one in of["by"]])
        if causes and found[check].differs.startswith(of["begins"]):
            found[check] = Finding(check, Verdict.UNSEEN, f"{found[check].differs}: explained by {causes}")
    return tuple(trace_cause(found[check], [*found.values()], EXPLAINS) for check in checks)
