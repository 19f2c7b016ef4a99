"""Logs of lines such as ``step 250: train loss 2.51, val loss 2.63``: of nanoGPT and its kin, Megatron-LM, torchtitan,
fairseq, DeepSpeed.

Evaluations there count the steps done; nanoGPT's loss of ``iter 0`` is that of the first step, which is left out.
"""
from __future__ import annotations

import os
import re
from collections.abc import Iterator

from .run import STEP, FoundRun, constants, number, text_of, value_of

NAME = "lines"
LINE = re.compile(r"^(?P<before>(?:.*[\s|])?)(?:steps?|iter(?:ation)?|num_updates)[ :=]+(?P<step>\d+)(?:\s*/\s*\d+)?"
                  r"\s*[:|,]?\s*(?P<rest>.*)$", re.I)
NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|nan|inf"
PAIR = re.compile(rf"([A-Za-z_][\w/@ ]*?)(?: \((ms|s)\))?\s*[ :=]\s*({NUMBER})(?: ?(ms)\b)?(?![\w.])", re.I)
SPLIT = re.compile(r"\b(?:(?P<val>val|valid(?:at(?:e|ion))?|eval(?:uation)?)|test)\b", re.I)
SETTING = re.compile(r"^\s*(\w+) \.{3,} (\S.*)$", re.M)         # of Megatron-LM's arguments
HEAD = 1 << 16          # characters in which a log must have such a line


def recognises(path: str, line: re.Pattern = LINE) -> bool:
    """Whether a text file has such a line near its start."""
    if not path.endswith((".log", ".txt", ".out")) or not os.path.isfile(path):
        return False
    with open(path, encoding="utf-8", errors="replace") as file:
        return any(map(line.search, file.read(HEAD).splitlines()))


def read(path: str, line: re.Pattern = LINE) -> Iterator[FoundRun]:
    """The file's run: each name before a number is a tag, a time in ms becomes seconds of the step.

    line    another pattern than these lines have: its groups are the tags, as far as they are numbers
    """
    text = text_of(path)
    found = filter(None, map(line.search, text.splitlines()))
    rows = [_pairs(one) if line is LINE else _groups(one) for one in found]
    given = {name: value_of(value) for name, value in SETTING.findall(text)}
    yield FoundRun(path, NAME, {**constants(rows), **given}, rows, line is LINE)


def _pairs(found: re.Match) -> dict[str, float]:
    row = {STEP: float(found["step"])}
    split = SPLIT.search(found["before"])
    of_split = "" if split is None else "val " if split["val"] else "test "
    for name, unit, text, ms in PAIR.findall(f"{found['before']}\n{found['rest']}"):
        value, name = number(text.replace(",", "")), name.strip()
        if unit or ms:
            row[f"{name} step_seconds"] = (value or 0.0) / (1 if unit == "s" else 1000)
        else:
            row[name if SPLIT.match(name) else of_split + name] = value
    return row


def _groups(found: re.Match) -> dict[str, float]:
    values = {name: number(text.replace(",", "")) for name, text in found.groupdict().items() if text}
    return {name: value for name, value in values.items() if value is not None}
