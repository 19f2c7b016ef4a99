"""Logs of lines such as ``step 250: train loss 2.51, val loss 2.63``: of nanoGPT and its kin, Megatron-LM, torchtitan,
fairseq, DeepSpeed; or ``Epoch 3: train loss 0.21, test acc 97.1`` where no line names a step. Lines with an indent
below such a line, as OLMo and Composer print them, are of the same step.

Evaluations there count the steps done; nanoGPT's loss of ``iter 0`` is that of the first step, which is left out. Where
no such line has a metric of validation or test, a line that names one is of the step, or the epoch, before it.
"""
from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from .run import STEP, FoundRun, RunPath, constants, number, text_of, value_of

NAME = "lines"
_LINE = r"^(?P<before>(?:.*[\s|\[])?)(?:{})[ :=#\[]+(?P<step>\d+)(?:\s*/\s*\d+)?\]?\s*[:|,]?\s*(?P<rest>.*)$"
LINE = re.compile(_LINE.format(r"steps?|iter(?:ation)?|num_updates|(?<!eval )batch(?==)"), re.I)
EPOCH = re.compile(_LINE.format("epoch"), re.I)
NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|nan|inf"
PAIR = re.compile(rf"([A-Za-z_][\w/@ ]*?)(?: \((ms|s)\))?\s*[ :=]\s*({NUMBER})(?: ?(ms)\b)?(?![\w./])", re.I)
SPLIT = re.compile(r"\b(?:(?P<val>val|valid(?:at(?:e|ion))?|eval(?:uation)?)|test)\b", re.I)
NAMED = re.compile(r"(?:val|valid(?:ation)?|eval|test)(?=[_/ ])", re.I)      # a tag with its split
PROGRESS = re.compile(r"\[\s*\d+\s*/\s*\d+\]")                # of an evaluation that is not at its end
SUMMARY = " * "             # begins what torch's ImageNet example prints at its end
SETTING = re.compile(r"^\s*(\w+) \.{3,} (\S.*)$", re.M)         # of Megatron-LM's arguments


def recognises(path: RunPath, line: re.Pattern | None = None) -> bool:
    """Whether a text file has such a line near its start."""
    forms = (line,) if line else (LINE, EPOCH)
    return any(form.search(text) for text in path.head((".log", ".txt", ".out")) for form in forms)


def read(path: str, line: re.Pattern | None = None) -> Iterator[FoundRun]:
    """The file's run: each name before a number is a tag, a time in ms becomes seconds of the step.

    line    another pattern than these lines have: its groups are the tags, as far as they are numbers
    """
    text = text_of(path)
    lines = text.splitlines()
    steps = line is None and any(map(LINE.search, lines))
    if line:
        rows = [_groups(found) for found in map(line.search, lines) if found]
    else:
        rows = _rows(lines, *((LINE, STEP) if steps else (EPOCH, "epoch")))
    given = {name: value_of(value) for name, value in SETTING.findall(text)}
    yield FoundRun(path, NAME, {**constants(rows), **given}, rows, steps)


def _rows(lines: Sequence[str], form: re.Pattern, tag: str) -> list[dict[str, float]]:
    matches = [form.search(text) for text in lines]
    rows = [found and {tag: float(found["step"]), **_pairs(found)} for found in matches]
    above: dict[str, float] | None = None
    for text, row in zip(lines, rows):
        above = row or (above if text[:1].isspace() else None)
        if above and not row:
            above |= _named(text, "")
    names = {name for row in rows if row for name in row}
    if not any(map(NAMED.match, names)):
        at: dict[str, float] = {}
        for place, (text, row) in enumerate(zip(lines, rows)):
            if row:
                at = {tag: row[tag]}
            elif at and not PROGRESS.search(text):
                more = _named(text, "val" if text.startswith(SUMMARY) else text)
                rows[place] = {**at, **more} if any(map(NAMED.match, more)) else None
    return [row for row in rows if row]


def _pairs(found: re.Match) -> dict[str, float]:
    return _named(f"{found['before']}\n{found['rest']}", found["before"])


def _named(text: str, before: str) -> dict[str, float]:
    """The numbers of a line by their names, of the split that is named before them."""
    row = {}
    split = SPLIT.search(before)
    of_split = ""
    if split:
        of_split = "val " if split["val"] else "test "
    for name, unit, digits, ms in PAIR.findall(text):
        value, name = number(digits.replace(",", "")), name.strip()
        if unit or ms:
            row[f"{name} step_seconds"] = (value or 0.0) / (1 if unit == "s" else 1000)
        else:
            row[name if NAMED.match(name) else of_split + name] = value
    return row


def _groups(found: re.Match) -> dict[str, float]:
    values = {name: number(text.replace(",", "")) for name, text in found.groupdict().items() if text}
    return {name: value for name, value in values.items() if value is not None}
