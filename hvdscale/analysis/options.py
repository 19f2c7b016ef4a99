"""What the user can set of the analysis."""
from __future__ import annotations

from dataclasses import dataclass

from .defaults import CONFIDENCE, FIRST, LOSS_WITHIN, PERFECT_WITHIN, USEFUL_WITHIN
from .shares import Tolerance


@dataclass(frozen=True)
class Options:
    """What the user can set of the analysis."""

    perfect_within: float = PERFECT_WITHIN
    useful_within: float = USEFUL_WITHIN
    confidence: float = CONFIDENCE
    loss_within: Tolerance = Tolerance.parse(LOSS_WITHIN)
    trials: int | None = None           # of each search, to compare batches at; None: those of the smallest search
    crossing: str = FIRST               # or LASTING: where a run meets its target, see crossing.py
