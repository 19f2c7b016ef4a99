"""Files with an object of JSON a line, a step or an evaluation each: metrics.jsonl of many loops, Detectron2's
metrics.json, MMEngine's scalars.json, LLaMA-Factory's trainer_log.jsonl; lines that end in one, as fairseq's do; and
the dictionaries that Hugging Face's Trainer prints. Or one array of such objects, as Chainer writes, or one object with
a list a tag, as Keras' history has it; or AllenNLP's folder, a file an epoch. Where rows name a split, tags have it.
"""

import ast
import contextlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...formatting.numbers import list_first
from ...log.directions import better
from ..files import WrongFile, as_float, is_number, json_of, number_of, text_of
from . import text_lines
from .guessing import NAMES, say, split_of
from .run import EPOCH, STEP, FoundRun, head_of, leaves, rows_by_step, series_of

NAME = "JSON lines"
ENDS = (".jsonl", ".ndjson", ".json", ".log", ".txt", ".out", "/log")
RARE = 20                   # a text with an object in fewer lines has other lines of its steps
NEAR = 0.01                 # how exactly the steps of an epoch have to be known
SETTINGS = ("config", "args", "hparams", "hyperparameters", "params")     # objects whose names stand for themselves
UNNAMED = *SETTINGS, "history", "metrics", "log", "logs"
OF_SPLIT, COUNT, OF_ROWS, COUNTED, CLOCK, EPOCH_FILE = map(re.compile, NAMES["json"].values())


def recognises(path: str, losses: bool = False) -> bool:
    """Whether objects near a file's start have a count that changes, of steps or what else shows how far a run is; or,
    with ``losses``, a loss, so that what counts has to be said."""
    if os.path.isdir(path):
        return any(map(EPOCH_FILE.fullmatch, os.listdir(path)))
    head = head_of(path, ENDS)
    whole = bool(head) and head[0][:1] in ("[", "{") and (len(head) == 1 or not any(map(is_number, (
        _object_of(head[0]) or {}).values())))
    rows = _rows_of_whole(path) if whole else []
    found = rows or [one for one in map(_object_of, head) if one]
    seen: dict[str, float] = {}
    return (bool(rows) or len(found) * RARE > len(head) or bool(found) and not text_lines.recognises(path)) and any(
        seen.setdefault(OF_SPLIT.sub("", tag), value) != value for one in found for tag, value in one.items()
        if (COUNT.search(tag) or losses and "loss" in tag) and is_number(value))


def _rows_of_whole(path: str) -> list[dict[str, Any]]:
    """The objects of a file that is one array of them, or one object of lists, or Sacred's; [] of any other. Of a
    folder those of its files of an epoch each."""
    if os.path.isdir(path):
        names = sorted(filter(EPOCH_FILE.fullmatch, os.listdir(path)), key=lambda name: int(re.sub(r"\D", "", name)))
        return [_scalars_of(json_of(text_of(file := os.path.join(path, name)), file, dict)) for name in names]
    try:
        found = json_of(text_of(path), path)
    except WrongFile:
        return []
    if isinstance(found, dict) and found and all(
            isinstance(one, dict) and {"steps", "values"} <= one.keys() for one in found.values()):
        return rows_by_step((tag, value, None, step) for tag, one in found.items()
                            for step, value in zip(one["steps"], one["values"]))
    if isinstance(found, dict):
        flat = dict(leaves(found, "/", UNNAMED))
        inner = {tag: value for tag, value in flat.items() if isinstance(value, list) and value}
        lists = {tag: value for tag, value in inner.items() if all(map(is_number, value)) and (
            "/" not in tag or split_of(tag))}               # others are of several runs
        counts = [lists[name] for name in (*NAMES["step"], *NAMES["epoch"]) if name in lists]
        length = max(map(len, counts or lists.values()), default=0) if any("loss" in tag for tag in lists) else 0
        if other := [tag for tag, value in lists.items() if length and abs(len(value) - length) > 1 and better(
                f"val/{tag}")]:
            raise WrongFile(say("lengths", path=path, tags=list_first(other, 3), length=str(length)))
        found = [{EPOCH: at + 1, **{tag: value[at] for tag, value in lists.items() if at < len(value)}}
                 for at in range(length)] or next((rows for tag, rows in inner.items() if OF_ROWS.search(tag) and (
                     isinstance(rows[0], dict) and any("loss" in name for name, _ in leaves(rows[0], "/")))), [])
        found = [{tag: value for tag, value in flat.items() if tag not in inner}, *found] if found else []
    return [_scalars_of(one) for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def read(path: str) -> Iterator[FoundRun]:
    """The file's run; what never changes is a parameter, too. Raises WrongFile, naming file and line."""
    objects = _rows_of_whole(path)
    places, lines = [*range(1, len(objects) + 1)], [] if objects else text_of(path).splitlines()
    for at, line in enumerate(lines, 1):
        found = _object_of(line)
        if found:
            objects.append(found)
            places.append(at)
        elif path.endswith((".jsonl", ".ndjson")) and found is None and line.strip() and at < len(lines):
            raise WrongFile(f"{path}:{at}: is no object of JSON")      # the last one a killed writer leaves torn
    rows = [{OF_SPLIT.sub("", tag): as_float(value, f"{path}:{at}: {tag}") for tag, value in one.items()
             if is_number(value)} for at, one in zip(places, objects)]
    if len(rows) > 1 and rows[0].keys().isdisjoint(tag for row in rows[1:] for tag in row):
        rows[0] = {}                                            # settings
    splits = [next(filter(None, (split_of(one.get(name)) for name in NAMES["of_splits"])), "") for one in objects]
    if len({*splits} - {""}) > 1:
        inner = [row["iter"] for split, row in zip(splits, rows) if split == "train" and {"iter", EPOCH} <= row.keys()]
        own = any(after < one for one, after in zip(inner, inner[1:])) and "iter"     # counts those of a split
        rows = [{f"{split}/{tag}" if split and (not COUNT.search(tag) or split != "train" and tag == own) else tag:
                 value for tag, value in row.items()} for split, row in zip(splits, rows)]
    given: dict[str, Any] = {}
    changed = {tag: None for one in objects for tag, value in one.items() if given.setdefault(tag, value) != value}
    constants = {tag: value for tag, value in given.items() if tag not in changed}
    yield FoundRun(path, NAME, constants, series_of(_by_steps(path, rows)), left_out={
        tag: "its values are no numbers" for tag in changed if not any(is_number(one.get(tag)) for one in objects)})


def _object_of(line: str) -> dict[str, Any] | None:
    """The scalars of the object that a line is or ends in, those of inner ones as outer/inner; None of other lines."""
    _, mark, rest = line.strip().partition("{")
    if not rest.endswith("}"):
        return None
    text = mark + rest
    for parse in (json.loads, ast.literal_eval):            # the other as Python prints it
        with contextlib.suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            found = parse(text)
            return _scalars_of(found) if isinstance(found, dict) else None
    return None


def _scalars_of(found: Mapping[str, Any]) -> dict[str, Any]:
    scalars: dict[str, Any] = {}
    for name, value in leaves(found, "/", SETTINGS):
        if is_number(value):
            scalars[name] = value
        elif isinstance(value, list) and len(value) < 1000:
            scalars[name] = str(value)
        elif isinstance(value, str):
            plain = number_of(value.partition("/")[0] if COUNTED.fullmatch(value) else value)
            if clock := CLOCK.fullmatch(value):
                plain = sum(scale * float(part or 0) for scale, part in zip((86400, 3600, 60, 1), clock.groups()))
            scalars[name] = value if plain is None else plain
    return scalars


def _by_steps(path: str, rows: Sequence[Mapping[str, float]]) -> Sequence[Mapping[str, float]]:
    """The rows, with evaluations in steps where MMEngine counts them in epochs: of each epoch the first row comes as
    late as that of the first one. Raises WrongFile where the rows leave open how many steps an epoch has."""
    trained = [row for row in rows if {STEP, "iter", EPOCH} <= row.keys() and row[STEP] == row["iter"]
               and row[EPOCH] >= 1]
    epochs = max((row[EPOCH] for row in trained), default=0)
    counted = [row for row in rows if STEP in row and "iter" not in row]
    if not counted or not trained or max(row[STEP] for row in counted) > epochs:
        return rows
    least = max(math.ceil(row[STEP] / row[EPOCH]) for row in trained)
    ends = [math.ceil(row[STEP] / (row[EPOCH] - 1)) - 1 for row in trained if row[EPOCH] > 1]
    most = min(ends, default=math.inf)
    first = {row[EPOCH]: row[STEP] for row in reversed(trained)}
    each = {(step - first[1]) / (epoch - 1) for epoch, step in first.items() if epoch > 1} if 1 in first else set()
    if len(each) == 1 and least <= (even := each.pop()) <= most and even == int(even):
        least = most = int(even)
    if most - least > NEAR * least:
        raise WrongFile(say("epoch_of_many", path=path, least=least))
    length = (least + most) // 2
    return [{**row, STEP: length * row[STEP]} if "iter" not in row and STEP in row else row for row in rows]
