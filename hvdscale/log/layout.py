"""Whether a log file's columns are laid out as the schema says, so that what is read is what was meant, and claim no
more than the file can hold.

    refuse_wrong_layout(path, "steps", spec, dataset, rows, size)           for each column that is read
"""
from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np

from ..errors import LogError
from .schema import LogColumn, known_column
from .stored import Stored

KINDS = {"int": "iu", "float": "f", "status": "iu", "text": "iu"}
DENSEST = 1100              # bytes that one byte of gzip may expand to (1,032), and some more
SMALL_BYTES = 1 << 20       # columns up to this size are not held against their file's
SMALL_ROWS, ROW_BYTES = 1 << 20, 2      # a row takes at least so many bytes of the file, in a table of more rows
HELD_BYTES, DENSE = 1 << 27, 64         # a file's columns have this many bytes, or this many times as many as the file


def refuse_wrong_layout(path: str, table: str, found: LogColumn, dataset: Stored, rows: int, there: int) -> int:
    """LogError where a column holds what does not belong there or says another unit than the schema's, and where there
    is less in the file, of ``there`` bytes, than the rows it claims; else the bytes of the rows."""
    what, wanted = f"{table}/{found.name}", known_column(table, found.name)
    refuse_wrong_type(path, what, dataset, found.type)
    if wanted and found.type != wanted.type:
        raise LogError(f"{path}: {what} holds {found.type} entries ({dataset.dtype}) where {wanted.type} belongs")
    if wanted and found.unit and found.unit != wanted.unit:
        raise LogError(f"{path}: {what} is in {found.unit} where {wanted.unit} belongs; units are not converted, as "
                       "nothing says that the rest of the log is in them")
    size = refuse_hollow(path, what, dataset, rows, there)
    if size < rows * dataset.dtype.itemsize * (1 + (found.type == "text")):
        raise LogError(f"{path}: {what} has {len(dataset)} rows where {rows} were committed; "
                       f"'hvdscale-log repair {path}' saves what is left")
    return size


def refuse_wrong_type(path: str, what: str, dataset: h5py.Dataset | Stored, kind: str) -> None:
    """LogError where a dataset cannot be a column of this type."""
    shape, of_row = dataset.shape, (2,) if kind == "text" else ()
    if dataset.dtype.kind not in KINDS[kind] or not shape or shape[1:] != of_row:
        raise LogError(f"{path}: {what} holds {dataset.dtype} entries in the shape {shape}, as no column of a log does")


def refuse_hollow(path: str, what: str, dataset: h5py.Dataset | Stored, rows: int, there: int) -> int:
    """LogError where a column claims more rows than its bytes in the file can expand to, or, but for the texts, than a
    file of this size has: reading it would take memory out of all proportion. Else the bytes of the rows that it has.

    there   bytes of the file
    """
    shape = dataset.shape
    rows = min(rows, shape[0])
    size = rows * dataset.dtype.itemsize * math.prod(shape[1:])
    if size <= SMALL_BYTES:
        return size
    stored = min(dataset.id.get_storage_size(), there)
    if size > DENSEST * stored:
        raise LogError(f"{path}: {what} claims {rows:,} rows, but has {stored:,} bytes in the file; "
                       f"'hvdscale-log repair {path}' saves what there is")
    if rows > SMALL_ROWS and rows * ROW_BYTES > there and what != "text":
        raise LogError(f"{path}: {what} claims {rows:,} rows, but the file has {there:,} bytes; a row takes "
                       f"{ROW_BYTES} or more")
    return size


def refuse_inflated(path: str, size: int, there: int) -> None:
    """LogError where the columns of a file, of ``there`` bytes, together unpack to more than a log of its size has."""
    if size > HELD_BYTES + DENSE * there:
        raise LogError(f"{path}: its columns claim over {size:,} bytes, but the file has {there:,}; no log is so dense")


def known_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Root attributes without those that are of another type than they are written with; arrays as text."""
    wrong = [name for name in ("versions", "changes", "imported") if not isinstance(attributes.get(name, {}), dict)]
    if not isinstance(attributes.get("merged", 0), int):
        wrong.append("merged")
    return {name: str(value) if isinstance(value, np.ndarray) else value for name, value in attributes.items()
            if name not in wrong}


def as_column(kind: str, values: np.ndarray) -> np.ndarray:
    """Values in the type that every reader counts on: int64, float64 or int8; the same array where they are so."""
    if kind == "status":
        return values.astype(np.int8, copy=False)
    return values.astype(np.float64 if kind == "float" else np.int64, copy=False)
