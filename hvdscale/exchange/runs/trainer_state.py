"""Hugging Face's trainer_state.json, at the top of an output folder or in its furthest checkpoint.

The file has the batch of a device, not of all, and no times but those of evaluations and, once training has ended, of
the whole. Steps then count as equally long. training_args.bin is a pickle, which could run any code: it is not opened.
"""

import os
import re
from collections.abc import Iterator

from ..files import WrongFile, as_float, json_of, text_of
from .run import NAMES, SECONDS, STEP, FoundRun, series_of

NAME, SETTINGS = "trainer_state.json", NAMES["trainer_state"]


def recognises(path: str) -> bool:
    return bool(_file_of(path))


def read(path: str) -> Iterator[FoundRun]:
    file = _file_of(path)
    state = json_of(text_of(file), file)
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list) or not all(isinstance(row, dict) for row in history):
        raise WrongFile(f"{file}: has no log_history, a list of what was logged")
    rows = [{tag: as_float(value, f"{file}: entry {at} of log_history: {tag}") for tag, value in row.items()
             if isinstance(value, (int, float))} for at, row in enumerate(history)]
    if not all(STEP in row for row in rows):
        raise WrongFile(f"{file}: an entry of its log_history has no step")
    parameters = {name: state[key] for key, name in SETTINGS.items() if isinstance(state.get(key), (int, float))}
    # seconds in proportion to steps, where the time of the whole is known
    total = sum(row.get("train_runtime", 0.0) for row in rows)              # of a run that was continued, of each part
    last = max((row[STEP] for row in rows), default=0.0)
    evaluated = sum(row.get("eval_runtime", 0.0) for row in rows)
    measured = [row for row in rows if "train_runtime" not in row]
    if total and last:
        measured = [{**row, SECONDS: max(0.0, total - evaluated) * row[STEP] / last} for row in measured]
    yield FoundRun(path, NAME, parameters, series_of(measured), True)


def _file_of(path: str) -> str:
    """The path's file, or that of its last checkpoint; "" where there is none."""
    if not os.path.isdir(path):
        return path if os.path.basename(path) == NAME else ""
    if os.path.lexists(os.path.join(path, NAME)):
        return os.path.join(path, NAME)
    found = [(int(match[1]), own) for name in os.listdir(path) if (match := re.fullmatch(r"checkpoint-(\d+)", name))
             and os.path.lexists(own := os.path.join(path, name, NAME))]
    return max(found, default=(0, ""))[1]
