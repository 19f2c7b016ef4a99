"""hvdscale-data: fetches public data sets to disk before a job trains on them."""

import math
import sys
import time
from pathlib import Path

import click

from ..data.fetch import BY_HAND, DATA_SETS, fetch
from ..formatting.numbers import byte_size
from ..formatting.screen import Screen, time_left
from ..formatting.text_table import aligned
from .common import CONTEXT, CommandGroup, echo, version_option, words


@click.group(cls=CommandGroup, context_settings=CONTEXT)
@version_option
def main():
    """Fetch data sets to disk. Training never downloads anything."""


@main.command("list")
def list_data_sets():
    """List the data sets that can be fetched, with size and terms, and how to get the others."""
    rows = [("data set", "", "size", "terms")]
    for name, data_set in DATA_SETS.items():
        sizes = [file.size for file in data_set.published]
        rows.append((name, data_set.title, byte_size(sum(sizes)) if None not in sizes else "-", data_set.terms))
    echo("\n".join(aligned(rows, left=range(len(rows[0])))) + "\n")
    for name, how in BY_HAND.items():
        echo(f"{name} {how}")


@main.command("fetch")
@click.argument("name", shell_complete=words(DATA_SETS))
@click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False),
              help="folder for the files, as in hvdscale-train's --data-dir  [default: data/NAME]")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True,
              metavar="SECONDS", help="time without data after which a connection counts as broken")
def fetch_data_set(name, data_dir, timeout):
    """Download the data set NAME and verify it; resumes an interrupted download.

    Files copied by hand are verified too.

    \b
      hvdscale-data fetch mnist
      hvdscale-data fetch wikitext-2 --data-dir /scratch/wikitext-2
    """
    bar = Bar(sys.stdout)
    try:
        fetch(name, data_dir or Path("data") / name, bar.say, bar.progress, timeout)
    except KeyboardInterrupt:
        bar.say("the part fetched so far is kept; the same command resumes")
        raise
    finally:
        bar.end()


class Bar:
    def __init__(self, out, clock=time.monotonic):
        self._clock, self._screen = clock, Screen(out, out.isatty(), (0.1, 5.0))       # seconds of bar, lines
        self._name, self._started, self._first = "", 0.0, 0

    def say(self, text: str) -> None:
        self.end()
        self._screen.say(text)

    def progress(self, name: str, done: int, total: int | None) -> None:
        now = self._clock()
        if name != self._name or done < self._first:
            self._name, self._started, self._first = name, now, done
            self._screen.drawn = -math.inf if self._screen.terminal else now
        if self._screen.due(now):
            indent = "" if self._screen.terminal else "  "
            text = f"{indent}{name}  {byte_size(done)}" + ("" if total is None else f" of {byte_size(total)}")
            if now > self._started and done > self._first:
                rate = (done - self._first) / (now - self._started)
                text += f"  {byte_size(round(rate))}/s" + (f"  {time_left((total - done) / rate)}" if total else "")
            self._screen.line(text, now, done / total if total else 0)

    def end(self) -> None:
        self._screen.erase()
        self._name = ""


if __name__ == "__main__":
    main()
