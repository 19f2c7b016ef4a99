"""The formats of runs, and what lies in folders of them."""

import os
import re
from collections import ChainMap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from types import ModuleType

from ...analysis.studies import group_by
from ...errors import LogError
from ...log.directions import better
from ...system.inputs import refusal
from . import event_files, json_lines, mlflow_store, text_lines, trainer_state, wide_csv
from .guessing import NAMES, say, split_of
from .run import SETTINGS_FILE, FoundRun, settings_beside, with_short_names

# each recognises a path and reads its runs; of the first that does, a folder is read whole
FORMATS: tuple[ModuleType, ...] = trainer_state, mlflow_store, event_files, wide_csv, json_lines, text_lines
SETTLED = event_files, wide_csv, json_lines, text_lines        # whose settings may lie in files beside a run
FILES = (".csv", ".tsv", ".json", ".jsonl", ".log", ".txt", ".out")
DEEPEST = 8                 # of folders in folders
WORD = re.compile(r"[a-zA-Z]+(?=[^/]*(?:/[^/]*)?$)")       # of the names of a file and its folder
Place = tuple[ModuleType, str, dict[str, str]]      # format, path, other forms of the run with why they are not read


def find(path: str, lines: re.Pattern | None = None, left_out: list[str] | None = None, depth: int = 0
         ) -> Iterator[Place]:
    """What lies at a path and below, in order of names; raises LogError for what cannot be read, or notes it in
    ``left_out``. ``lines``: a pattern that the lines of text files have."""
    try:
        found, names = _form_of(path, lines, not depth), sorted(os.listdir(path)) if os.path.isdir(path) else []
        kept = _one_of(path, names) if found in (None, event_files) and not lines else []
        if found and not kept:
            beside = [name for name in names if found is trainer_state and name.endswith(("runs", "_results.json"))]
            kept = [(found, path, dict.fromkeys(beside, f"another form of the run in {trainer_state.NAME}"))]
        if found not in (None, event_files) or depth >= DEEPEST:
            names = []
        of_run = event_files.parts_of(path) if found is event_files and names else []
    except (OSError, LogError) as error:
        return _leave_out(error, path, left_out)
    yield from kept
    for name in names:
        inner = os.path.join(path, name)
        if not (name.startswith((".", event_files.EVENTS)) or SETTINGS_FILE.fullmatch(name) or name in of_run
                or os.path.islink(inner) or kept and (
                    name in (*NAMES["beside"], *kept[0][2], os.path.basename(kept[0][1])))):
            yield from find(inner, lines, left_out, depth + 1)


def _form_of(path: str, lines: re.Pattern | None = None, named: bool = False) -> ModuleType | None:
    found = next((form for form in FORMATS if form.recognises(path)), None)
    found = json_lines if not found and named and json_lines.recognises(path, losses=True) else found
    return text_lines if lines and text_lines.recognises(path, lines) else found


def _one_of(folder: str, names: Sequence[str]) -> list[Place]:
    """The file that is read of a folder with one run in several forms: one that programs write for that, else the only
    one in its format beside the only ones in others."""
    there = [*names, *(os.path.join(below, name) for below in NAMES["beside"] for name in NAMES["main_files"])]
    there = [name for name in there if name.lower().endswith(FILES) and os.path.isfile(os.path.join(folder, name))
             or name in NAMES["of_events"] and event_files.recognises(os.path.join(folder, name))]
    chosen = next((name for main in NAMES["main_files"] for name in there if os.path.basename(name) == main), None)
    if not chosen and len(there) > 1:
        forms = {name: form for name in there if not SETTINGS_FILE.fullmatch(name)
                 and (form := _form_of(os.path.join(folder, name)))}
        if len({*forms.values()}) == len(forms) > 1:
            chosen = min(forms, key=lambda name: (name not in NAMES["log_files"], FORMATS.index(forms[name])))
    path = os.path.join(folder, chosen or "")
    form = _form_of(path) if chosen else None
    others = [name for name in names if name != chosen and not SETTINGS_FILE.fullmatch(name)
              and (name in (*there, "wandb") or name.startswith(event_files.EVENTS))]
    return [(form, path, dict.fromkeys(others, f"another form of the run in {chosen}"))] if form else []


def is_archive(path: str) -> bool:
    """Whether a folder has the layout of Shallue et al. 2019, with CSV files of its own."""
    return any("study.json" in names for _, _, names in os.walk(path))


def has_runs(path: str) -> bool:
    return next(find(path), None) is not None


def read_runs(paths: Iterable[str], lines: re.Pattern | None = None, left_out: list[str] | None = None
              ) -> list[FoundRun]:
    """The runs at these paths that logged anything; raises LogError where there is none, or a file is wrong, unless
    ``left_out`` takes that. ``lines``: a pattern of the lines of text files, with groups named after tags."""
    paths, runs = list(paths), []
    for cached in (settings_beside, event_files.events_of):     # of files that may have changed since
        cached.cache_clear()
    for source in paths:
        for form, place, others in find(source, lines, left_out):
            runs += [replace(run, left_out={**(run.left_out or {}), **others})
                     for run in _read(form, place, source, lines, left_out)]
    runs = _of_splits(runs)
    if not runs:
        binary = [f"{name} is W&B's own file, which is not read: export the run's history as CSV" for path in paths
                  for _, _, names in os.walk(path) for name in names if name.endswith(".wandb")]
        raise LogError("\n".join([say("none", paths=", ".join(paths)), *binary[:1], *(left_out or ())]))
    return runs


def _of_splits(runs: Iterable[FoundRun]) -> list[FoundRun]:
    """The runs; as one those of files that only the last split in their paths tells apart, such as train.log and
    valid.log, with the split before tags that name none."""
    parted, found = [], []
    for run in runs:
        word = next((word for word in [*WORD.finditer(run.path)][::-1] if split_of(word[0])), None)
        start, end = word.span() if word else (len(run.path), len(run.path))
        parted.append((run, run.path[:start], run.path[start:end], run.path[end:]))
    for (_, start, end), own in group_by(parted, lambda part: (part[0].format, part[1], part[3])).items():
        counters = set.intersection(*({*run.series} for run, *_ in own)) & {*NAMES["epoch"], *NAMES["step"]}
        whole = any({split_of(tag) for tag in run.series if better(f"val/{tag}")} not in ({""}, {split_of(word)})
                    for run, _, word, _ in own)             # such as a log of training that ends with an evaluation
        if own[0][0].format == event_files.NAME or whole or not counters or len({
                split_of(word) for _, _, word, _ in own}) < max(2, len(own)):
            found += [run for run, *_ in own]
            continue
        series, first = {}, 0
        for run, _, word, _ in own:
            for tag, (rows, values) in run.series.items():
                name = tag if split_of(tag) or json_lines.COUNT.search(tag) else f"{split_of(word)}/{tag}"
                series.setdefault(name, []).append((rows + first, values))
            first += run.rows
        found.append(replace(own[0][0], path=f"{start}{{{','.join(word for _, _, word, _ in own)}}}{end}",
                             parameters=dict(ChainMap(*({**run.parameters} for run, *_ in own))),
                             series={tag: text_lines.joined(parts) for tag, parts in series.items()}))
    return found


def _read(form: ModuleType, place: str, source: str, lines: re.Pattern | None, left_out: list[str] | None
          ) -> Iterator[FoundRun]:
    """The runs of a path, with the settings beside them: in their folder, else in the nearest above it."""
    try:
        folder = place if os.path.isdir(place) else os.path.dirname(place)
        beside, files = settings_beside(folder) if form in SETTLED else ({}, ())
        while form in SETTLED and not files and len(os.path.abspath(folder)) > len(os.path.abspath(source)):
            folder = os.path.dirname(folder)
            beside, files = settings_beside(folder)
        for run in form.read(place, lines) if lines and form is text_lines else form.read(place):
            if run.series:
                yield replace(run, parameters={**beside, **with_short_names(run.parameters)}, files=files)
    except (OSError, LogError) as error:
        _leave_out(error, place, left_out)


def _leave_out(error: OSError | LogError, path: str, left_out: list[str] | None) -> None:
    """Notes what cannot be read; without a list, raises LogError."""
    message = str(error) if isinstance(error, LogError) else f"{error.filename or path}: {refusal(error)}"
    if left_out is None:
        raise LogError(message) from None
    left_out.append(message)
