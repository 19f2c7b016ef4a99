"""What one rank's process saw of a run that is stopped, or started again: the record of doctor/script, and its
checkpoints."""
from __future__ import annotations

from dataclasses import dataclass, field

from ..script.record import Record

SAVED, WRITTEN, LOADED, READ = "saved", "written", "loaded", "read"


@dataclass
class FileUse:
    """A file or folder that was used.

    act      one of the above: SAVED and LOADED by a function for checkpoints
    path     in the script's folder a relative one; of what was saved, the name that it was given afterwards
    updates  made before;  passes  made of the next update
    values   of what was saved: each number and text as it prints, and a digest of each tensor, by its keys
    """

    act: str
    path: str
    updates: int
    passes: int
    line: str
    values: dict[str, str] = field(default_factory=dict)


@dataclass
class Start:
    """What an update begins from, at the first call of a module after the update before.

    updates     made before
    tensors     a digest of each parameter and buffer of the process's modules;
    states      of each optimizer's state, by key and parameter: its kind of number, and a digest, or 0 for zeros
    generators  a digest of each global one's state
    printed     words such as "epoch", each with the whole number behind it, printed since the start before
    """

    updates: int
    tensors: dict[str, str]
    states: dict[str, str]
    generators: dict[str, str]
    printed: list[str]


@dataclass
class ResumeRecord(Record):
    """All that one rank's process saw.

    trained  the names of the tensors that an optimizer has;  scales: by which each update's gradients were multiplied
    """

    files: list[FileUse] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    trained: list[str] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)

    def start(self, updates: int) -> Start | None:
        """What the update after so many began from; None where it was not seen."""
        return next((one for one in self.starts if one.updates == updates), None)

    def uses(self, *acts: str) -> list[FileUse]:
        return [one for one in self.files if one.act in acts]
