"""The examination of a script as text, in the form of the doctor's report on a workload."""
from __future__ import annotations

from ...formatting.lines import wrap
from ...formatting.numbers import counted, list_first, number
from ..report import NOTES, join_blocks, render_list, render_table
from .examine import ScriptExamination, instead_of
from .folder import LARGEST
from .record import Record

NOT_CHECKED = "Not checked, as it cannot be seen from outside or did not happen in these updates:"
SHOWN = 6               # updates in the table of losses;  files that are named


def render(examination: ScriptExamination, seconds: float, colour: bool) -> str:
    """The whole report, in lines of ``line_width()`` characters where words allow."""
    report = join_blocks(_headline(examination), examination.findings, seconds, colour, _losses(examination),
                         render_list(NOTES, examination.notes), render_list(NOT_CHECKED, examination.unseen),
                         *map(wrap, files_of(examination)))
    return f"{wrap(examination.verdict)}\n\n{report}"


def _headline(examination: ScriptExamination) -> str:
    asked, pair = examination.asked, examination.pair
    batch = f"global batch {asked.global_batch} in both runs" if asked.global_batch else "each run with its own batch"
    checks = counted(len(examination.findings), "check")
    said = (f"{asked.script} on 1 worker and on {pair.workers}, {batch}: {checks} over "
            f"{counted(pair.updates, 'update')}")
    instead = instead_of(pair.many)
    return " ".join([f"{said}.", *instead]) if instead else said


def _losses(examination: ScriptExamination) -> str:
    pair = examination.pair
    shown = range(min(pair.updates, SHOWN))
    rows = [("update", *(f"{at + 1}" for at in shown)),
            ("1 worker", *(number(_loss([pair.one], at), 4) for at in shown)),
            (f"{pair.workers} workers", *(number(_loss(pair.many, at), 4) for at in shown))]
    return f"loss (the mean of the ranks' own)\n{render_table(rows, (0,))}"


def _loss(records: list[Record], at: int) -> float:
    """The loss of an update as the script differentiates it: summed over passes, the mean over ranks."""
    return sum(one.loss for record in records for one in record.updates[at].passes) / len(records)


def files_of(examination: ScriptExamination) -> list[str]:
    """Where the script ran, and which files it wrote."""
    found = []
    if examination.in_copy:
        found.append("The script ran in a copy of this folder, which is removed. There it wrote "
                     f"{list_first(examination.in_copy, SHOWN)}.")
    if not examination.copied:
        found.append(f"The script ran in this folder itself, which has more than {LARGEST >> 20} MiB to copy.")
    if examination.written:
        outside = " outside of that copy" if examination.copied else ""
        found.append(f"The script wrote{outside}: {list_first(examination.written, SHOWN)}.")
    return found
