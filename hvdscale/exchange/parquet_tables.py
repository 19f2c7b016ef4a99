"""A log as Parquet, for pandas, polars, DuckDB, Spark and others. Needs pyarrow.

    export_parquet("w8.h5", "w8")       the folder w8: trials.parquet, restarts.parquet, evaluations.parquet and
                                        steps.parquet

Columns keep their names, order and types; a status is its name, an unknown seed null. The metadata of a field has the
column's unit and meaning, those of a file the log's root attributes, as JSON under ``hvdscale``.
"""
from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ..log.reader import Log, Table
from ..log.schema import Column
from ..system.extras import import_extra
from .csv_tables import export_each, plain_values

NEED, OTHERWISE = "--as parquet", "--as csv does without it"
ROWS = 1 << 18                  # converted at a time: a row group


def export_parquet(path, out, progress: Callable[[float], None] = lambda share: None) -> dict[str, int]:
    """As export_tables does; raises UsageError without pyarrow."""
    arrow, parquet = (import_extra(name, NEED, OTHERWISE) for name in ("pyarrow", "pyarrow.parquet"))
    return export_each(path, out, partial(_write_table, arrow, parquet), progress)


def _write_table(arrow: Any, parquet: Any, log: Log, table: Table, folder: str) -> Iterator[int]:
    schema = _schema(arrow, log, table)
    with (open(os.path.join(folder, f"{table.name}.parquet"), "wb") as file,      # arrow's names are UTF-8
          parquet.ParquetWriter(file, schema) as writer):
        for first in range(0, table.rows, ROWS):
            rows = min(ROWS, table.rows - first)
            writer.write_table(_rows(arrow, schema, table, first, first + rows))
            yield rows


def _schema(arrow: Any, log: Log, table: Table):
    types = {"int": arrow.int64(), "float": arrow.float64(), "text": arrow.string(), "status": arrow.string()}
    fields = [arrow.field(name, types[spec.type], metadata=_about(spec)) for name, spec in table.specs.items()]
    return arrow.schema(fields, metadata={"hvdscale": json.dumps(log.attributes)})


def _about(spec: Column) -> dict[str, str]:
    return {"unit": spec.unit, "meaning": spec.meaning, **({"better": spec.better} if spec.better else {})}


def _rows(arrow: Any, schema: Any, table: Table, first: int, stop: int):
    arrays = [arrow.array(plain_values(table.read_rows(name, first, stop), spec), field.type)
              for (name, spec), field in zip(table.specs.items(), schema)]
    return arrow.Table.from_arrays(arrays, schema=schema)
