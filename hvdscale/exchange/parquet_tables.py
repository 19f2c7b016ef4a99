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

from ..log.reader import Log, LogTable
from ..system.importing import import_extra
from .csv_tables import export_each, plain_values

NEED, OTHERWISE = "--as parquet", "--as csv does without it"
ROWS = 1 << 18                  # converted at a time: a row group


def export_parquet(path, out, progress: Callable[[float], None] = lambda share: None) -> dict[str, int]:
    """Write the tables as export_tables does; raises UsageError without pyarrow."""
    arrow, parquet = (import_extra(name, NEED, OTHERWISE) for name in ("pyarrow", "pyarrow.parquet"))
    return export_each(path, out, partial(_write_table, arrow, parquet), progress)


def _write_table(arrow: Any, parquet: Any, log: Log, table: LogTable, folder: str) -> Iterator[int]:
    types = {"int": arrow.int64(), "float": arrow.float64(), "text": arrow.string(), "status": arrow.string()}
    fields = [arrow.field(name, types[spec.type], metadata={
        "unit": spec.unit, "meaning": spec.meaning, **({"better": spec.better} if spec.better else {})})
        for name, spec in table.specs.items()]
    schema = arrow.schema(fields, metadata={"hvdscale": json.dumps(log.attributes)})
    with (open(os.path.join(folder, f"{table.name}.parquet"), "wb") as file,      # arrow's names are UTF-8
          parquet.ParquetWriter(file, schema) as writer):
        for first in range(0, table.rows, ROWS):
            rows = min(ROWS, table.rows - first)
            arrays = [arrow.array(plain_values(table.read_rows(name, first, first + rows), spec), types[spec.type])
                      for name, spec in table.specs.items()]
            writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))
            yield rows
