"""Whether a log file's columns are laid out as the schema says, so that what is read is what was meant.

    refuse_wrong_layout(path, "steps", group, specs, rows)
"""
from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np

from ..errors import LogError
from .files import refuse_elsewhere
from .schema import Column, columns, known_column

KINDS = {"int": "iu", "float": "f", "status": "iu", "text": "iu"}
DENSEST = 1100              # bytes that one byte of gzip may expand to (1,032), and some more
SMALL_BYTES = 1 << 20       # columns up to this size are not held against their file's


def refuse_wrong_layout(path: str, table: str, group: h5py.Group, specs: Mapping[str, Column], rows: int) -> None:
    """LogError where a column of the schema is missing, where one holds what does not belong there or says another unit
    than the schema's, and where there is less in the file than the rows it claims."""
    for column in columns()[table]:
        if column.name not in specs:
            raise LogError(f"{path}: {table} has no column {column.name}; is it a log of another program?")
    for name, found in specs.items():
        dataset = group[name]
        refuse_elsewhere(path, dataset)
        refuse_wrong_type(path, f"{table}/{name}", dataset, found.type)
        wanted = known_column(table, name)
        if wanted and found.type != wanted.type:
            raise LogError(f"{path}: {table}/{name} holds {found.type} entries ({dataset.dtype}) where {wanted.type} "
                           "belongs")
        if wanted and found.unit and found.unit != wanted.unit:
            raise LogError(f"{path}: {table}/{name} is in {found.unit} where {wanted.unit} belongs; units are not "
                           "converted, as nothing says that the rest of the log is in them")
        refuse_hollow(path, f"{table}/{name}", dataset, rows)


def refuse_wrong_type(path: str, what: str, dataset: h5py.Dataset, kind: str) -> None:
    """LogError where a dataset cannot be a column of this type."""
    shape = (len(dataset), 2) if kind == "text" and dataset.ndim else (dataset.size,)
    if dataset.dtype.kind not in KINDS[kind] or dataset.shape != shape:
        raise LogError(f"{path}: {what} holds {dataset.dtype} entries in the shape {dataset.shape}, as no column of a "
                       "log does")


def refuse_hollow(path: str, what: str, dataset: h5py.Dataset, rows: int) -> None:
    """LogError where a column claims more rows than its bytes in the file can expand to."""
    size = min(rows, len(dataset)) * dataset.dtype.itemsize * (dataset.shape[1] if dataset.ndim > 1 else 1)
    if size <= SMALL_BYTES:
        return
    stored = min(dataset.id.get_storage_size(), os.path.getsize(path))
    if size > DENSEST * stored:
        raise LogError(f"{path}: {what} claims {rows:,} rows, but has {stored:,} bytes in the file; "
                       f"'hvdscale-log repair {path}' saves what there is")


def known_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Root attributes without those that are of another type than they are written with; arrays as text."""
    wrong = [name for name in ("versions", "changes", "imported") if not isinstance(attributes.get(name, {}), dict)]
    wrong += [name for name in ("merged",) if not isinstance(attributes.get(name, 0), int)]
    return {name: str(value) if isinstance(value, np.ndarray) else value for name, value in attributes.items()
            if name not in wrong}


def as_column(kind: str, values: np.ndarray) -> np.ndarray:
    """Values in the type that every reader counts on: int64, float64 or int8; the same array where they are so."""
    if kind == "status":
        return values.astype(np.int8, copy=False)
    return values.astype(np.float64 if kind == "float" else np.int64, copy=False)
