"""A table of several logs as one: columns as numpy arrays, for notebooks.

    evaluations = Frame("evaluations", logs)
    evaluations["val/error"], evaluations.to_pandas()
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UnknownNameError
from ..log.reader import Columns, Log, LogTable, absent, in_order
from ..log.schema import UNKNOWN_SEED, LogColumn, Status
from ..system.importing import import_extra

if TYPE_CHECKING:
    import pandas

LOG = "log"                         # the column before those of the logs: where each row comes from
STATUS_NAMES = np.array([status.name for status in sorted(Status)], object)
WITHOUT_PANDAS = "each column is a numpy array without it, such as runs.trials['id']"


class Frame(Columns):
    """A table of one or more logs, end to end: a mapping of column names to arrays with one entry a row.

    The first column, ``log``, is the path of each row's log. A status is its name, a text a str, both in object arrays.
    A column that some of the logs lack is NaN, or empty, in their rows. Columns are read when asked for, and kept.
    """

    def __init__(self, name: str, logs: Sequence[Log]) -> None:
        self.name = name
        self._tables: list[tuple[str, LogTable]] = [(log.path, getattr(log, name)) for log in logs]
        found = {column: spec for _, table in reversed(self._tables) for column, spec in table.specs.items()}
        own = LogColumn(LOG, "text", "1", "the path of the log")
        super().__init__({LOG: own, **in_order(name, found)})
        self.rows = sum(table.rows for _, table in self._tables)

    @property
    def units(self) -> dict[str, str]:
        """The unit of each column; "1": a pure number."""
        return {name: spec.unit for name, spec in self.specs.items()}

    @property
    def meanings(self) -> dict[str, str]:
        """The meaning of each column."""
        return {name: spec.meaning for name, spec in self.specs.items()}

    def to_numpy(self, columns: Iterable[str] | None = None) -> np.ndarray:
        """The columns, by default all, as one structured array of shape (rows,)."""
        found = {name: self[name] for name in self._wanted(columns)}
        rows = np.empty(self.rows, [(name, values.dtype) for name, values in found.items()])
        for name, values in found.items():
            rows[name] = values
        return rows

    def to_pandas(self, columns: Iterable[str] | None = None) -> pandas.DataFrame:
        """The columns, by default all, as a pandas DataFrame, an unknown seed as NA; UsageError without pandas."""
        frames: Any = import_extra("pandas", "to_pandas()", WITHOUT_PANDAS)
        found = frames.DataFrame({name: self[name] for name in self._wanted(columns)})
        unknown = found.get("seed", np.empty(0)) == UNKNOWN_SEED
        if unknown.any():
            found["seed"] = found["seed"].astype("Int64").mask(unknown)
        return found

    def _wanted(self, columns: Iterable[str] | None) -> tuple[str, ...]:
        return self.columns if columns is None else (columns,) if isinstance(columns, str) else tuple(columns)

    def read(self, name: str) -> np.ndarray:
        """A column, not kept; raises UnknownNameError for one that there is not."""
        if name not in self.specs:
            raise UnknownNameError(f"{self.name} have no column {name!r}; there are {', '.join(self.specs)}")
        if name == LOG:
            paths = np.array([path for path, _ in self._tables], object)
            return np.repeat(paths, [table.rows for _, table in self._tables])
        kind = self.specs[name].type
        parts = [table[name] if name in table else absent(kind, table.rows) for _, table in self._tables]
        joined = np.concatenate(parts) if len(parts) > 1 else parts[0]
        return STATUS_NAMES[joined] if kind == "status" else joined

    def __repr__(self) -> str:
        return f"<{self.name}: {self.rows:,} rows; columns {', '.join(self.specs)}>"

    def _repr_html_(self) -> str:
        from .page.html import frame_html
        return frame_html(self)
