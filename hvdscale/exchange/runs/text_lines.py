"""Logs of lines such as ``step 250: train loss 2.51, val loss 2.63``, as nanoGPT prints them.

Evaluations there count the steps done; the loss of ``iter 0`` is that of the first step, which is left out.
"""
from __future__ import annotations

import os
import re
from collections.abc import Iterator

from .run import STEP, FoundRun, number, text_of

NAME = "lines"
LINE = re.compile(r"^(?:.*\s)?(?:step|iter(?:ation)?)[ :=]+(?P<step>\d+)(?:/\d+)?\s*[:|,]?\s*(?P<rest>.*)$", re.I)
PAIR = re.compile(r"([A-Za-z_][A-Za-z_/ ]*?)\s*[ :=]\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|nan|inf)(ms)?\b", re.I)
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
    found = filter(None, map(line.search, text_of(path).splitlines()))
    yield FoundRun(path, NAME, {}, [_pairs(one) if line is LINE else _groups(one) for one in found], line is LINE)


def _pairs(found: re.Match) -> dict[str, float]:
    row = {STEP: float(found["step"])}
    for name, text, ms in PAIR.findall(found["rest"]):
        value = number(text)
        row[name.strip() + " step_seconds" * bool(ms)] = (value or 0.0) / 1000 if ms else value
    return row


def _groups(found: re.Match) -> dict[str, float]:
    values = {name: number(text.replace(",", "")) for name, text in found.groupdict().items() if text}
    return {name: value for name, value in values.items() if value is not None}
