"""From logs to a report: on screen the verdict, the tables and how to read them; then the files.

    make(["runs"], targets=[Target.parse("val/error<0.01")], out="report")
"""
from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack

import numpy as np

from ..analysis.defaults import Options
from ..formatting.numbers import counted
from ..formatting.progress import Tell, quiet
from ..system.importing import uncollected
from ..target import Target
from . import FORMATS
from .document import Document, Path
from .output import on_screen, refuse_no_folder, write
from .runs import read
from .request import StudyRequest


@np.errstate(over="ignore")         # what is beyond the largest float counts as inf
def make(paths: Iterable[Path], targets: Sequence[Target] = (), out: Path | None = None, *,
         options: Options = Options(), formats: Sequence[str] = FORMATS, skip_broken: bool = False,
         every_figure: bool = False, whole: bool = False, asked: StudyRequest = StudyRequest(),
         echo: Callable[[str], object] = print, tell: Tell = quiet) -> Document:
    """Print the report of these logs, and write its files under the directory ``out`` where one is given.

    paths        logs, or directories of logs
    targets      to hold the trials against; none: each against its own
    skip_broken  leave out the logs that cannot be read, and say so; else the first raises its LogError
    whole        print every table, and how to read them
    every_figure draw every figure, rather than the main ones of each workload
    asked        what is to be shown of studies, beside the targets
    echo         takes each piece of text for the screen as soon as it is known
    tell         is told what is being done, see progress.Progress
    """
    refuse_no_folder(out)
    with ExitStack() as opened:
        with uncollected():
            runs = opened.enter_context(read(paths, skip_broken=skip_broken, tell=tell))
            document = runs.document(targets, options, asked, tell)
        for text in on_screen(document, whole):
            echo(text)
        if out is not None:
            written = list(write(document if every_figure else document.with_main_figures(), out, formats, tell))
            echo(f"wrote {counted(len(written), 'file')}: {written[-1]}"
                 + (f", and more beside it ({', '.join(formats)})" if len(written) > 1 else "")
                 + ("" if every_figure else "; --figures all draws every figure"))
    gc.unfreeze()
    return document
