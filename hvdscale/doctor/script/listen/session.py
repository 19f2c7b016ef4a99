"""What one process has seen so far, and when it has seen enough; and the calls that are only counted or named."""

import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch.distributed import distributed_c10d

from ....watch.lines import TORCH, caller, line_of_call
from ....watch.listener import Listener
from ....watch.runner import RUNNING, STOPPED, file_of
from ..record import WRITTEN, FileUse, Logged, Record

LIBRARIES = {"transformers.trainer": "transformers", "lightning.pytorch": "lightning", "pytorch_lightning": "lightning",
             "accelerate.accelerator": "accelerate"}           # by module: whose options findings name
NAMED = r"(?i)\b([\w/]*(?:loss|norm)\w*)"
NUMBERED = re.compile(r"(?i)\b(epoch|step|iter|iteration|update|global_step)s?\b\W{0,8}(\d+)(?![\d.]*\d)")
SHOWN = re.compile(NAMED + r"\W{1,4}?(-?\d+\.(\d+)(?:e(-?\d+))?)")
EVALUATED = re.compile("(?i)val|eval|test")
SHARDS = os.path.join(TORCH, "distributed/fsdp")           # which gathers parameters by the same calls
EVERY = 1.0             # seconds between records of batches; an update is always recorded
AFTER_THE_CUT = 3       # updates at most, while the next epoch has not begun


class Session(Listener):
    """The record of this process, shared by all listeners; it listens to collectives, batch-norm's batches, losses and
    norms that are shown, files that are written, and what was changed so that the script can run. Of its task,
    ``updates`` are to be watched before the epoch is cut short, so that evaluation and the next epoch are seen as well;
    ``leave`` ends the process."""

    def __init__(self, record: Record, folder: Path, task: Mapping[str, Any], leave: Callable[[], None]):
        self.record, self.folder, self.task, self.wanted = record, folder, task, task["updates"]
        self.at_end: Callable[[], None] = lambda: None          # reads what only the end of a script allows
        self.updates: Any = None                                # the listener of optimizers
        paths = [file_of(folder, record.rank, name) for name in ("stdout", "stderr")]
        self._printed = [open(path, encoding="utf-8", errors="replace") for path in paths if path.exists()]
        self._inside, self._place = (os.path.join(os.path.realpath(one), "") for one in (Path.cwd(), folder))
        self.leave, self.process, self._saved = leave, os.getpid(), 0.0

    def end(self, state: str, error: str = "") -> None:
        """Keep the state of this rank, and the error that the script failed with."""
        if state != RUNNING:
            self.at_end()
        self.record.state, self.record.error = state, error
        self.save()

    def save(self, soon: bool = False) -> None:
        """Write the record; ``soon``: only if the last time was a while ago."""
        now = time.monotonic()
        if not soon or now - self._saved > EVERY:
            self._saved = now
            self.record.library = next((name for one, name in LIBRARIES.items() if one in sys.modules), "")
            self.record.save(self.folder)

    def note(self, act: str, path: str, values: Mapping[str, str] = {}) -> bool:
        """Keep the use of a file, if it is none of ours, and give back whether it is kept."""
        of_place = path.startswith(self._place) and not path.startswith(self._inside)
        kept = bool(path) and not of_place and os.getpid() == self.process      # and no loader worker that it forked
        if kept:
            passes = max((len(optimizer.passes) for optimizer in self.updates.optimizers.values()), default=0)
            self.record.files.append(FileUse(act, self.shorten(path), self.record.made, passes, line_of_call(), values))
        return kept

    def shorten(self, path: str) -> str:
        """A relative path of what is in the folder that the script began in."""
        return os.path.relpath(path, self._inside) if path.startswith(self._inside) else path

    def written(self, path):
        self.note(WRITTEN, path)

    def stepped(self) -> None:
        """An update has been made: stop after the first one of the epoch after the cut."""
        made = self.record.made
        if made > self.wanted:
            trained = [iteration for iteration in self.record.iterations if iteration.trained]
            if not trained or trained[-1].updates >= self.wanted or made > self.wanted + AFTER_THE_CUT:
                self.end(STOPPED)
                self.leave()
        self.save()

    def wrapped(self, broadcast_buffers, ranks):
        self.record.broadcasts_buffers |= broadcast_buffers
        self.record.group, self.record.wrapped = min(ranks, self.record.group or ranks), line_of_call()

    def combined(self, call):
        if not caller(distributed_c10d.__file__).startswith(SHARDS):
            self.record.combined.append((self.record.fetched, call))

    def batch_norm(self, examples):
        self.record.batch_norms[examples] = self.record.batch_norms.get(examples, 0) + 1

    def sharded(self, by):
        self.record.sharded, self.record.wrapped = by, line_of_call()

    def instead(self, text):
        if text not in self.record.instead:
            self.record.instead.append(text)

    def forward_begins(self, module):
        """Read what this rank has printed meanwhile."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for printed in [file.read() for file in self._printed]:
            self.record.printed += [(self.record.made, f"{word.lower()} {number}")
                                    for word, number in NUMBERED.findall(printed)]
            for name, value, digits, power in SHOWN.findall(printed):
                self.logged({name: float(value)}, 0.51 * 10.0 ** (int(power or 0) - len(digits)))

    def logged(self, values, within=0.0):
        for name, value in values.items():
            if re.search(NAMED, str(name)) and not EVALUATED.search(name) and hasattr(value, "__float__"):
                self.record.logged.append(Logged(name, float(value), within, self.record.made))

    def remark(self, text):
        if text not in self.record.remarks:
            self.record.remarks.append(text)
