"""Collectives, batch-norm's batches, files written, and what was changed so that the script can run."""
from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ....watch.listener import Listener
from .session import Session


class Calls(Listener):
    """Counts and names in the record. Files inside of the script's folder and temporary ones are left out."""

    def __init__(self, session: Session, inside: Path):
        self.record = session.record
        self._left_out = tuple(os.path.join(os.path.realpath(folder), "") for folder in (
            inside, session.folder, tempfile.gettempdir(), "/dev", "/proc", Path.home() / ".cache"))

    def wrapped(self, broadcast_buffers, ranks):
        self.record.broadcasts_buffers |= broadcast_buffers
        self.record.group = min(ranks, self.record.group or ranks)

    def combined(self, call):
        self.record.combined.append((self.record.fetched, call))

    def batch_norm(self, examples):
        self.record.batch_norms[examples] = self.record.batch_norms.get(examples, 0) + 1

    def sharded(self, by):
        self.record.sharded = by

    def written(self, path):
        if not path.startswith(self._left_out) and path not in self.record.written:
            self.record.written.append(path)

    def instead(self, text):
        if text not in self.record.instead:
            self.record.instead.append(text)

    def remark(self, text):
        if text not in self.record.remarks:
            self.record.remarks.append(text)
