"""What the benchmarks share: two ways to do the same work timed in turn, a table of ratios, and the same as JSON.

    options = parse(__doc__, parser)
    blocks = in_turn({"hvdscale": ours, "torch DDP": theirs}, blocks=9)     seconds by way
    case = Case("digits/fc", "hvdscale", "torch DDP", blocks, unit="ms", limit=0.85)
    show([case, ...], options.json)
"""
from __future__ import annotations

import argparse
import atexit
import contextlib
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from hvdscale.formatting.text_table import aligned  # noqa: E402

OPEN = contextlib.ExitStack()       # contexts that last as long as the process
atexit.register(OPEN.close)

# of the commands that a benchmark starts: this package and this Python's commands first, one thread a worker
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMP_NUM_THREADS": "1",
               "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
UNITS = {"s": 1.0, "ms": 1e3, "µs": 1e6, "MiB": 1 / 2**20, "B": 1.0, "1/s": 1.0, "steps": 1.0}


@dataclass(frozen=True)
class Case:
    """A measurement of hvdscale and of a peer that does the same work.

    values  by way, one for each block; values at one place belong together
    unit    in which they are shown;  limit  the largest ratio aimed at; None: none
    """

    name: str
    ours: str
    peer: str
    values: Mapping[str, Sequence[float]]
    unit: str = "ms"
    limit: float | None = None

    @property
    def ratios(self) -> list[float]:
        """Ours over the peer's, block by block, in ascending order."""
        return sorted(a / b for a, b in zip(self.values[self.ours], self.values[self.peer]))

    @property
    def ratio(self) -> float:
        """The median of the ratios."""
        return statistics.median(self.ratios)

    def row(self) -> tuple[str, ...]:
        """Case, medians, ratio, its range over the blocks, limit."""
        ours, peer = (f"{statistics.median(self.values[way]) * UNITS[self.unit]:.4g} {self.unit}"
                      for way in (self.ours, self.peer))
        within = "" if self.limit is None else f"{self.limit:g}" + " missed" * (self.ratio > self.limit)
        return (self.name, ours, peer, f"{self.ratio:.2f}", f"{self.ratios[0]:.2f} - {self.ratios[-1]:.2f}",
                within, self.peer)


HEADINGS = ("case", "hvdscale", "peer", "ratio", "range", "limit", "peer is")


def in_turn(ways: Mapping[str, Callable[[int], object]], blocks: int,
            clock: Callable[[], float] = time.perf_counter) -> dict[str, list[float]]:
    """Seconds of each way at each block; each is called with the block's number, the first in turn rotates."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for block in range(blocks):
        for name in names[block % len(names):] + names[:block % len(names)]:
            started = clock()
            ways[name](block)
            found[name].append(clock() - started)
    return found


def parse(description: str, parser: argparse.ArgumentParser | None = None) -> argparse.Namespace:
    """The command line of a benchmark, whose docstring is its help."""
    parser = parser or argparse.ArgumentParser()
    parser.description, parser.formatter_class = description, argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", metavar="FILE", help="write the measurements there, too")
    return parser.parse_args()


def machine() -> str:
    """Processor, cores and date, as the page of the benchmarks names them."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return f"{len(os.sched_getaffinity(0))} cores of {model}, Python {platform.python_version()}, {date.today()}"


def show(title: str, cases: Sequence[Case], path: str | None = None) -> None:
    """Print a table of the cases, and write them to a JSON file if a path is given."""
    print(f"{title}\n{machine()}\n")
    print("\n".join(aligned([HEADINGS, *(case.row() for case in cases)], left=(0, 6))), flush=True)
    if path:
        record = {"title": title, "machine": machine(),
                  "cases": [{**asdict(case), "ratio": case.ratio} for case in cases]}
        Path(path).write_text(json.dumps(record, indent=1) + "\n")
