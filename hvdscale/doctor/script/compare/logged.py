"""Losses and gradient norms that rank 0 alone prints or logs, against those of all ranks."""
from __future__ import annotations

import math
from collections.abc import Iterator

from ..record import Logged
from .pair import KINDS, Pair

LEAST = 2               # values of a name that are seen to be another one
TRUE, CLOSE = "logged_true", 1e-5


def logged(pair: Pair) -> list[str]:
    """A sentence for each name under which rank 0 shows its own value, or a sum, and never that of all ranks."""
    found: dict[str, list[tuple[str, dict]]] = {}
    for one in pair.many[0].logged:
        kinds = [(kind, {"what": one.name, "value": one.value, "update": at + 1, "true": true,
                         "times": one.value / true}) for kind, value, at, true in _known(pair, one)
                 if true and abs(one.value - value) <= one.within + CLOSE * abs(value)]
        found.setdefault(one.name, []).extend(sorted(kinds, key=lambda each: each[0] != TRUE)[:1])
    for one in (one for record in pair.many[1:] for one in record.logged):
        found.pop(one.name, None)               # each rank shows its own
    return [KINDS.sentence("notes", each[0][0], pair, **each[0][1]) for each in found.values()
            if len(each) >= LEAST and len({kind for kind, _ in each} | {TRUE}) == 2 and each[0][0] != TRUE]


def _known(pair: Pair, one: Logged) -> Iterator[tuple[str, float, int, float]]:
    """What a value may be, of which update, and that of all ranks."""
    for at in (at for at in (one.made - 1, one.made) if 0 <= at < pair.updates):
        ranks = pair.at(at)
        if "norm" not in one.name.lower():
            for which in (slice(None), slice(-1, None)):        # the loss of all passes, and of the last one
                losses = [sum(each.loss for each in update.passes[which]) for update in ranks]
                for times in {1, len(ranks[0].passes)}:
                    true = times * sum(losses) / pair.workers
                    yield from ((TRUE, true, at, true), ("logged_own", times * losses[0], at, true),
                                ("logged_sum", pair.workers * true, at, true))
        parts = {update.own.tobytes(): update for update in reversed(ranks) if update.own is not None}
        for squares in ([[update.square for update in (ranks[0], *parts.values())], [
                clip.square for update in (ranks[0], *parts.values()) for clip in update.clips[:1]]]):
            if "norm" in one.name.lower() and len(squares) > 2:
                true = math.sqrt(sum(squares[1:]))
                yield from ((TRUE, true, at, true), ("logged_part", math.sqrt(squares[0]), at, true))
