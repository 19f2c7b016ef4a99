"""The formats of runs, and what lies in folders of them."""
from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import ModuleType

from ...errors import LogError
from . import event_files, json_lines, mlflow_store, text_lines, trainer_state, wide_csv
from .run import FoundRun, RunPath, settings_beside

# each recognises a path and reads its runs; of the first that does, a folder is read whole
FORMATS: tuple[ModuleType, ...] = trainer_state, mlflow_store, event_files, wide_csv, json_lines, text_lines
SETTLED = event_files, wide_csv, json_lines, text_lines         # whose settings may lie in files beside a run
DEEPEST = 8                 # of folders in folders
KNOWN = ("TensorBoard's event files, trainer_state.json of Hugging Face, MLflow's folder or SQLite, CSV files with a "
         "row or JSON with an object a step, or logs with lines such as 'step 250: val loss 2.6'")

NONE = (f"no run in a known format: {KNOWN}; lines of another form need a file for --map with their pattern, lines = "
        r"'it (?P<step>\d+) .* loss (?P<val_loss>\S+)'. Nor are there tables (trials.csv) or an archive (study.json)")


def find(path: str, lines: re.Pattern | None = None) -> Iterator[tuple[ModuleType, str]]:
    """(format, path) of what lies at a path and below, in order of names; raises LogError for what cannot be read.

    lines   a pattern that the lines of text files have
    """
    try:
        yield from _find(RunPath(path), 0, lines)
    except OSError as error:
        raise LogError(f"{error.filename or path}: cannot be read: {error.strerror}") from None


def _find(path: RunPath, depth: int, lines: re.Pattern | None) -> Iterator[tuple[ModuleType, str]]:
    found = next((form for form in FORMATS if form.recognises(path)), None)
    if lines and text_lines.recognises(path, lines):
        found = text_lines
    if found:
        yield found, path
    if os.path.isdir(path) and depth < DEEPEST and found in (None, event_files):
        of_run = event_files.parts_of(path) if found else []
        for name in sorted(set(os.listdir(path)) - {*of_run}):
            inner = RunPath(os.path.join(path, name))
            if not name.startswith((".", event_files.EVENTS)) and not os.path.islink(inner):
                yield from _find(inner, depth + 1, lines)


def is_archive(path: str) -> bool:
    """Whether a folder is an archive in the layout of Shallue et al. 2019, which has CSV files of its own."""
    return any("study.json" in names for _, _, names in os.walk(path))


def has_runs(path: str) -> bool:
    """Whether there is any run at a path or below."""
    return next(find(path), None) is not None


def read_runs(paths: Iterable[str], lines: re.Pattern | None = None, left_out: list[str] | None = None
              ) -> list[FoundRun]:
    """The runs at these paths that logged anything; raises LogError where there is none, or a file is wrong.

    lines       a pattern of the lines of text files, with groups named after tags
    left_out    takes what is wrong with a file, which is then left out
    """
    paths, runs = list(paths), []
    for form, place in (found for path in paths for found in find(path, lines)):
        try:
            folder = place if os.path.isdir(place) else os.path.dirname(place)
            beside = settings_beside(folder) if form in SETTLED else {}
            found = form.read(place, lines) if lines and form is text_lines else form.read(place)
            runs += [replace(run, parameters={**beside, **run.parameters}) for run in found if run.rows]
        except LogError as error:
            if left_out is None:
                raise
            left_out.append(str(error))
    if not runs:
        raise LogError("\n".join([f"{', '.join(paths)}: {NONE}", *(left_out or ())]))
    return runs
