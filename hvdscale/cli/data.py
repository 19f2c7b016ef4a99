"""hvdscale-data: data sets with a public address, brought to disk before a job trains on them."""
from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import click

from ..data.download import mebibytes
from ..data.fetch import fetch, find
from ..data.published import BY_HAND, DATA_SETS
from ..formatting.escaping import printable
from .common import Group, version_option

BAR_SECONDS, LINE_SECONDS, WIDTH = 0.1, 5.0, 24


@click.group(cls=Group, context_settings=dict(help_option_names=["-h", "--help"], max_content_width=110))
@version_option
def main():
    """Bring data sets to disk. A job that trains never fetches anything."""


@main.command("list")
def list_data_sets():
    """What can be fetched, with size and terms; and how the others are had."""
    rows = [("data set", "", "size", "terms")]
    for name, data_set in DATA_SETS.items():
        sizes = [file.size for file in data_set.published]
        rows.append((name, data_set.title, mebibytes(sum(sizes)) if None not in sizes else "-", data_set.terms))
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        click.echo("  ".join(f"{text:<{width}}" for text, width in zip(row, widths)).rstrip())
    click.echo()
    for name, how in BY_HAND.items():
        click.echo(f"{name} {how}")


@main.command("fetch")
@click.argument("name")
@click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False),
              help="where the files go, and what hvdscale-train takes as its --data-dir  [default: data/NAME]")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True,
              metavar="SECONDS", help="how long a server may be silent")
def fetch_data_set(name, data_dir, timeout):
    """Bring the data set NAME to disk: checked, and gone on with where an earlier attempt broke off.

    Files that were placed by hand are checked, and count.

    \b
      hvdscale-data fetch mnist
      hvdscale-data fetch wikitext-2 --data-dir /scratch/wikitext-2
    """
    find(name)
    bar = Bar(sys.stdout)
    try:
        fetch(name, data_dir or Path("data") / name, bar.say, bar.progress, timeout)
    except KeyboardInterrupt:
        bar.say("what came so far is kept; the same command goes on")
        raise
    finally:
        bar.end()


class Bar:
    """Progress of a file: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, out, clock=time.monotonic):
        self._out, self._clock, self._terminal = out, clock, out.isatty()
        self._name, self._started, self._first, self._shown = "", 0.0, 0, float("-inf")

    def say(self, text: str) -> None:
        """A line of text."""
        self.end()
        print(printable(text), file=self._out, flush=True)

    def progress(self, name: str, done: int, total: int | None) -> None:
        """So many bytes of the file are done, of so many in all where that is known."""
        now = self._clock()
        if name != self._name or done < self._first:
            self._name, self._started, self._first, self._shown = name, now, done, now if not self._terminal else 0.0
        if now - self._shown < (BAR_SECONDS if self._terminal else LINE_SECONDS):
            return
        self._shown = now
        text = f"{printable(name)}  {_amount(done, total)}{self._speed(done, total, now)}"
        if not self._terminal:
            print(f"  {text}", file=self._out, flush=True)
            return
        filled = int(WIDTH * done / total) if total else 0
        line = f"[{'#' * filled}{'-' * (WIDTH - filled)}] {text}"
        self._out.write("\r\x1b[K" + line[:shutil.get_terminal_size().columns - 1])       # one more would wrap
        self._out.flush()

    def end(self) -> None:
        """No progress follows."""
        if self._terminal and self._name:
            self._out.write("\r\x1b[K")
            self._out.flush()
        self._name = ""

    def _speed(self, done, total, now):
        seconds = now - self._started
        if seconds <= 0 or done <= self._first:
            return ""
        rate = (done - self._first) / seconds
        left = round((total - done) / rate) if total else None
        return f"  {mebibytes(round(rate))}/s" + (f"  {left // 60}:{left % 60:02d} left" if left is not None else "")


def _amount(done, total):
    return mebibytes(done) if total is None else f"{done / 2**20:,.1f} of {mebibytes(total)}"


if __name__ == "__main__":
    main()
