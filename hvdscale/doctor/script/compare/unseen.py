"""What was not checked, and why; and what depends on the number of workers without being a fault."""
from __future__ import annotations

import math
from collections.abc import Iterator

from ....watch.remarks import OWN_HOOK, REDRAWN
from ..record import Logged
from .examples import filled_up, rounds_of
from .pair import KINDS, Pair, only_call, trained
from .gradient import other_divisor
from .state import averaged, by_rank

LEAST = 2               # values of a name that are seen to be another one
TRUE, WITHIN = "logged_true", 1e-5


def notes(pair: Pair) -> list[str]:
    """One sentence for each legitimate dependence on the number of workers."""
    first = next(iter(trained(pair.many[0])), None)
    padded, left_out, drops = (getattr(first and first.sampling, name, 0) for name in (
        "padded", "left_out", "drops_last"))
    repeated = 0 if padded or left_out or drops else filled_up(pair)
    rounds = rounds_of(pair.many)[:1]
    sampling = [one.sampling for each in rounds for rank in each.ranks for one in rank]
    return [*logged(pair), *KINDS.sentences("notes", pair, {
        "padded": padded, "left_out": left_out, "drops_last": drops, "repeated": repeated,
        "same_rate": pair.batch is None and pair.one.updates[0].rates == pair.many[0].updates[0].rates,
        "by_rank": by_rank(pair), "local_steps": averaged(pair),
        "other_order": pair.batch is not None and all(map(trained, pair.records)) and pair.keys(pair.many, 0)
        and not pair.same_examples(0),
        "may_pad": rounds and all(one.replicas and not one.padded and not one.left_out and not one.drops_last
                                  for one in sampling),
    }, padded=padded, left_out=left_out, repeated=repeated, size=first.data[1] if first else 0,
        evaluated=rounds[0].examples if rounds else 0)]


def remarks(pair: Pair) -> list[str]:
    """What looks wrong on any number of workers, each in one sentence."""
    divisor, targets = other_divisor(pair)
    (name, end), first = pair.one.schedule, trained(pair.one)
    steps = {(sum(one.positions) - sum(pair.on_one(0).positions)) / at for at, one in enumerate(
        pair.steps(pair.one).updates[:3]) if at and len(one.positions) == 1}
    advance = steps.pop() if len(steps) == 1 else 0.0                           # at each of the first updates
    passes = len(pair.on_one(0).passes) // pair.base
    epoch = len(first[0].batches) + len(first[0].rest) if first and (first[0].ended or first[0].rest) else 0
    epoch = int(advance * epoch / max(1, len(pair.batches(pair.one, 0))))
    met = {"more_than_targets": divisor > targets, "some_of_targets": divisor < targets,
           "schedule_by_pass": passes > 1 and advance == passes, "short_schedule": 0 < end < epoch}
    return ([REDRAWN] if any(REDRAWN in record.remarks for record in pair.records) else []) + KINDS.sentences(
        "remarks", pair, met, divisor=divisor, targets=targets, schedule=name, end=end, epoch=epoch, passes=passes)


def unseen(pair: Pair, still: Pair | None = None) -> list[str]:
    """What these two runs cannot show, each in one sentence, nor two that were held ``still``."""
    passes = [one for record in pair.many for optimizer in record.optimizers for update in optimizer.updates
              for one in update.passes]
    loaded, rounds = all(map(trained, pair.records)), rounds_of(pair.many)
    one, many = ([*trained(record), None][0] for record in (pair.one, pair.many[0]))
    sizes = {batch.examples for each in rounds[:1] for rank in each.ranks for one in rank for batch in one.batches}
    remarks = dict.fromkeys(one for record in pair.many for one in record.remarks if one not in (REDRAWN, OWN_HOOK))
    return [*remarks, *KINDS.sentences("not_checked", pair, {
        "other_batches": pair.batch is None,
        "first_update": pair.batch is not None and not (still or pair).both[0].comparable,
        "streams": any(one.iterable for record in pair.many for one in record.iterations),
        "own_data": loaded and one.data != many.data and not one.iterable, "no_loader": not loaded,
        "weighing": not all(map(only_call, passes)),
        "end_of_epoch": any(one.cut is not None for record in pair.many for one in trained(record)),
        "second_epoch": any(len(trained(record)) < 2 for record in pair.many),
        "no_evaluation": not rounds, "metric": len(sizes) == 1, "metric_of_uneven_batches": len(sizes) > 1,
    }, why=pair.why_incomparable)]


def only_drew(pair: Pair) -> bool:
    """Whether they cannot be compared for their random numbers alone."""
    return [name for name, met in pair.obstacles().items() if met] == ["random"]


def logged(pair: Pair) -> list[str]:
    """A sentence for each name under which rank 0 shows its own value, or a sum, and never that of all ranks."""
    found: dict[str, list[tuple[str, dict]]] = {}
    for one in pair.many[0].logged:
        kinds = [(kind, {"what": one.name, "value": one.value, "update": at + 1, "true": true,
                         "times": one.value / true}) for kind, value, at, true in _known(pair, one)
                 if true and abs(one.value - value) <= one.within + WITHIN * abs(value)]
        found.setdefault(one.name, []).extend(sorted(kinds, key=lambda each: each[0] != TRUE)[:1])
    for one in (one for record in pair.many[1:] for one in record.logged):
        found.pop(one.name, None)               # each rank shows its own
    return [KINDS.sentence("notes", each[0][0], pair, **each[0][1]) for each in found.values()
            if len(each) >= LEAST and len({kind for kind, _ in each} | {TRUE}) == 2 and each[0][0] != TRUE]


def _known(pair: Pair, one: Logged) -> Iterator[tuple[str, float, int, float]]:
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
