"""All checks of a script that is stopped and started again."""
from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from ...formatting.lines import wrap
from ...formatting.numbers import counted, list_first, listed
from ...watch.place import place_for
from ...workers.launch import Process
from ..finding import Finding, Verdict, trace_cause
from ..formats import join_blocks
from ..script.examine import Judged, instead_of
from .checks import (examples, files, load, loss_scale, optimizer, parameters, printed, random_numbers, saved_values,
                     schedule, updates)
from .runs import Both, ResumeRequest, run_all

CHECKS = {"load": load, "files": files, "parameters": parameters, "optimizer": optimizer, "schedule": schedule,
          "loss scale": loss_scale, "examples": examples, "random numbers": random_numbers,
          "saved values": saved_values, "printed": printed, "updates": updates}
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

    both: Both
    findings: tuple[Finding, ...]

    @property
    def about(self) -> dict[str, object]:
        both, asked = self.both, self.both.asked
        seen = {}
        if both.stopped:
            seen = {"stopped_after": both.stop, "held": both.held, "redone": max(0, both.stop - both.held)}
        return {"script": asked.script.script, "arguments": asked.script.arguments, "again": asked.again,
                "workers": asked.workers, "then": asked.then, "updates": both.made, "how": asked.how, **seen,
                "instead": instead_of(both.first), "written": both.written, "verdict": self.verdict}

    def render(self, seconds: float, colour: bool) -> str:
        both, asked = self.both, self.both.asked
        on = counted(asked.workers, "worker") + (f", then {asked.then}" if both.other_count else "")
        said = f"{asked.script.script} on {on}: {both.made} updates without a stop"
        if both.stopped:
            chosen = "" if both.stop_at == asked.stop else f" (the update of a checkpoint, in place of {asked.stop})"
            said += f"; stopped after update {both.stop}{chosen}, and started again from update {both.held}"
        blocks = []
        if both.written and not asked.in_place:
            blocks.append("The script ran in copies of this folder, which are removed. There it wrote "
                          f"{list_first(both.written, 6)}.")
        if both.left:
            blocks.append(f"Left out of the copies: {list_first(both.left, 6)}.")
        headline = " ".join([f"{said}.", *instead_of(both.first)])
        return f"{wrap(self.verdict)}\n\n{join_blocks(headline, self.findings, seconds, colour, *map(wrap, blocks))}"


def examine(asked: ResumeRequest, process: Process, say: Callable[[str], None],
            checks: Collection[str] = tuple(CHECKS)) -> ResumeExamination:
    """Run the script, and compare; raises ScriptError and UsageError as run_all does."""
    with place_for(process, asked.script.seconds) as place:
        both = run_all(asked, place, say)
    return ResumeExamination(both, compare(both, checks))


def compare(both: Both, checks: Collection[str]) -> tuple[Finding, ...]:
    if not both.stopped:
        return tuple(both.finding("load", "no_save") if check == "load" else
                     Finding(check, Verdict.UNSEEN, "the script saved nothing") for check in checks)
    loaded, judged, why = load(both), {*CHECKS}, ""
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
