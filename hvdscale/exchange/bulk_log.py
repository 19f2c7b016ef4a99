"""A new log written column by column in bounded memory, for imports.

    with BulkLog("archive.h5", columns(metrics=["val/error"]), {"imported": {...}}) as out:
        out.add("evaluations", "step", steps)             the column's next rows; columns need not be in step
        out.add("trials", "dataset", ["mnist", "mnist"])
    # here the log exists, closed and compressed; after an error nothing is left
"""
from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Mapping, Sequence

from ..errors import LogError
from ..log import segments
from ..log.closed_file import show
from ..log.compact_file import CompactFile
from ..log.files import make_directory
from ..log.schema import Column
from ..system.files import TEMPORARY, writing
from ..system.lock import Lock


class BulkLog(CompactFile):
    """The only writer of a new log.

    path        the log; it is created when ``with`` ends without an error
    columns     each table's (schema.columns); for more see ``add_column``
    attributes  additional root attributes
    overwrite   replace an existing log;  take_over: write even without file locks
    threads     for compression; None: one per usable core

    Raises LogError if the log exists, is being written, or cannot be written.
    """

    def __init__(self, path, columns: Mapping[str, Sequence[Column]], attributes: Mapping | None = None, *,
                 overwrite: bool = False, take_over: bool = False, threads: int | None = None):
        self.path = os.fspath(path)
        make_directory(self.path)
        self._lock = Lock.take(self.path, take_over)
        try:
            if os.path.lexists(self.path) and not overwrite:
                raise LogError(f"{self.path}: exists already; choose another name, or --overwrite it")
            identity = {"id": uuid.uuid4().hex, "segment": 0, "segments": 1}
            with writing(self.path):
                super().__init__(self.path + TEMPORARY, {**identity, **(attributes or {})}, threads)
        except BaseException:
            self._lock.release()
            raise
        for table, specs in columns.items():
            for spec in specs:
                self.add_column(table, spec)

    def close(self):
        """Write the rest, close and publish the log."""
        with writing(self.path):
            super().close()
            show(self._target, self.path, segments.beside(self.path))
        self._lock.release()

    def _abandon(self):
        super()._abandon()
        with contextlib.suppress(OSError):
            self._lock.release()

    def _refusal(self, error):
        return LogError(f"{self.path}: cannot be written: {error.strerror or error}; nothing of it was left")
