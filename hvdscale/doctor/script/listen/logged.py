"""Losses and norms that a script prints, or gives to TensorBoard, W&B or Lightning's loggers."""
from __future__ import annotations

import re
import sys

from ....watch.listener import Listener
from ..record import Logged
from .session import Session

NAMED = r"(?i)\b([\w/]*(?:loss|norm)\w*)"
SHOWN = re.compile(NAMED + r"\W{1,4}?(-?\d+\.(\d+)(?:e(-?\d+))?)")
EVALUATED = re.compile("(?i)val|eval|test")
EXACT = 1e-6            # relative, of a value that is logged with all its digits


class Logs(Listener):
    """The values that this rank shows, each with the updates that were made before."""

    def __init__(self, session: Session):
        self.session = session
        self._read = {session.folder / f"rank{session.record.rank}.{name}": 0 for name in ("stdout", "stderr")}

    def forward_begins(self):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for path, begin in self._read.items():
            text = path.read_bytes()[begin:] if path.exists() else b""
            self._read[path] = begin + len(text)
            for name, value, digits, power in SHOWN.findall(text.decode(errors="replace")):
                self._keep(name, float(value), 0.51 * 10.0 ** (int(power or 0) - len(digits)))

    def logged(self, values):
        for name, value in values.items():
            if re.search(NAMED, str(name)) and hasattr(value, "__float__"):
                self._keep(name, float(value), EXACT * abs(float(value)))

    def _keep(self, name: str, value: float, within: float) -> None:
        if not EVALUATED.search(name):
            self.session.record.logged.append(Logged(name, value, within, self.session.record.made))
