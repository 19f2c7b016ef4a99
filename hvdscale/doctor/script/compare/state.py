"""Parameters and buffers on the ranks, whole or divided among them, batch-norm's statistics, and random numbers."""
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ....formatting.numbers import list_first, listed
from ....watch.remarks import OWN
from ...finding import Finding
from ...lost import STATISTICS
from ..record import GeneratorUse, Iteration, Record, Update
from .pair import ROUNDED, Pair, apart, passes_of, trained

PARAMETERS, BATCH_NORM, RANDOM = "parameters", "batch-norm", "random numbers"
OF = {"torch": "torch", "numpy": "numpy", "random": "Python's random", "cuda": "torch on the GPU"}
SAMPLES = ("gradient", "before_clips", "parameters", "after")
SHARED = 0.02           # of weights of the ranks' changes, relative
ALIKE = 0.15            # of a factor of parameters, which the last step has changed as well, relative


def parameters(pair: Pair) -> Finding:
    """Whether all ranks start from the same parameters and buffers, and keep the same parameters."""
    sharded = [record.sharded for record in pair.records if record.sharded]
    if sharded and is_joined(pair.records):
        return _parts(pair, sharded[0])
    if sharded:
        return pair.finding(PARAMETERS, "sharded", how=sharded[0])
    digests = [{update.digest for update in pair.at(at)} for at in range(pair.updates)]
    if (again := averaged(pair)) and len(digests[0]) == 1:
        return _averaged(pair, *again)
    different = next((at for at, found in enumerate(digests) if len(found) > 1), None)
    if different is not None:
        return _different(pair, different)
    untaken, untrained = pair.many[0].untaken, different_untrained(pair)
    if untaken and not pair.optimizer:
        return pair.finding(PARAMETERS, "untaken", names=list_first(untaken, 3), where=pair.at(0)[0].line)
    if untrained:
        return pair.finding(PARAMETERS, "untrained", names=list_first(untrained, 3))
    if names := different_untrained(pair, later=True):
        return pair.finding(PARAMETERS, "untrained_later", names=list_first(names, 3))
    return _other_start(pair) or pair.finding(PARAMETERS, "same")


def _other_start(pair: Pair) -> Finding | None:
    if pair.same_start:
        return None
    by = apart(pair.on_one(0).parameters, pair.at(0)[0].parameters)
    return pair.finding(PARAMETERS, "other_start", by=by, limit=0.0, where=pair.at(0)[0].line)


def _parts(pair: Pair, how: str) -> Finding:
    """Whether anything but the optimizer wrote the parameters of some ranks only, where each has its own part."""
    ranks = [pair.steps(record).updates for record in pair.many]
    trained = [at for at, updates in enumerate(ranks) if any(one.digest != one.digest_after for one in updates)]
    for at in range(pair.updates):              # ranks that have the same part
        if len({update.own.tobytes() for update in pair.at(at) if update.own is not None}) < len(
                {(update.own.tobytes(), update.digest) for update in pair.at(at) if update.own is not None}):
            return _different(pair, at)
    for after in range(1, pair.updates):
        written = [at for at in trained if ranks[at][after].digest != ranks[at][after - 1].digest_after]
        if written and len(written) < len(trained):
            return pair.finding(PARAMETERS, "part_written", how=how, before=after, update=after + 1, ranks=written,
                                where=ranks[written[0]][after].line)
    return _other_start(pair) or pair.finding(PARAMETERS, "parts", how=how)


def _different(pair: Pair, at: int) -> Finding:
    updates = pair.at(at)
    by = max(apart(updates[0].parameters, each.parameters) for each in updates)
    if not at:
        kind = "start" if by > ROUNDED else "start_rounded"
        return pair.finding(PARAMETERS, kind, by=by, limit=0.0, where=updates[0].line)
    first, *others = pair.at(at - 1)
    return pair.finding(PARAMETERS, "drift", by=by, limit=0.0, where=first.line, update=at + 1, cause={
        "other_steps": any(each.rates != first.rates or not np.array_equal(each.gradient, first.gradient)
                           for each in others),
        "written": all(each.digest_after == first.digest_after for each in others), "state": True})


def averaged(pair: Pair) -> tuple[int, list[str]] | None:
    """The first update before which parameters that the step before had moved apart are the same on all ranks, and
    those that still differ."""
    for at in range(1, pair.updates):
        before, now = (pair.parts([getattr(update, name) for update in pair.at(number)])
                       for name, number in (("after", at - 1), ("parameters", at)))
        apart_now = [name for name, parts in now if any(not np.array_equal(parts[0], part) for part in parts)]
        if any(name not in apart_now and any(not np.array_equal(parts[0], part) for part in parts)
               for name, parts in before):
            return at, apart_now
    return None


def _averaged(pair: Pair, at: int, left: list[str]) -> Finding:
    """The finding on parameters that are brought together in place of gradients: what that makes of their changes."""
    begin = max(each for each in range(at) if len({update.digest for update in pair.at(each)}) == 1)
    given = {"after": at, "update": at + 1, "where": pair.at(at - 1)[0].line}
    if left:
        return pair.finding(PARAMETERS, "averaged_in_part", names=list_first(left, 3), **given)
    mean = sum(update.after for update in pair.at(at - 1)) / pair.workers
    times = float(pair.at(at)[0].parameters @ mean / max(mean @ mean, 1e-300))
    if abs(times / pair.workers - 1) < ALIKE:
        return pair.finding(PARAMETERS, "summed", times=times, **given)
    weights, alone = (_weights(steps[begin:at + 1]) for steps in (
        [pair.at(each) for each in range(at + 1)], [[pair.on_one(each)] for each in range(at + 1)]))
    if weights is None or alone is None:
        return pair.finding(PARAMETERS, "averaged", **given)
    if weights.max() - weights.min() > SHARED * np.abs(weights).max():
        ranks = [f"{rank}" for rank, weight in enumerate(weights) if abs(weight) > SHARED * np.abs(weights).max()]
        return pair.finding(PARAMETERS, "averaged_of_some", rank=ranks[0] if len(ranks) == 1 else None,
                            weights=[*weights.round(3)], **given)
    times = float(weights.sum() / alone.sum())
    kind = "averaged_changes" if abs(times - 1) < SHARED else "summed_changes"
    return pair.finding(PARAMETERS, kind, times=weights.sum(), alone=alone.sum(), **given)


def _weights(steps: list[list[Update]]) -> np.ndarray | None:
    """With which weights the ranks' changes from the first of these updates on make the parameters of the last one;
    None where they do not."""
    start = steps[0][0].parameters
    changes, now = np.stack([update.after - start for update in steps[-2]], axis=1), steps[-1][0].parameters - start
    weights = np.linalg.lstsq(changes, now, rcond=None)[0]
    return weights if weights.any() and apart(changes @ weights, now) < SHARED else None


def different_untrained(pair: Pair, later: bool = False) -> list[str]:
    """Buffers and frozen parameters that all ranks have, each its own; ``later``: after the updates, but for running
    statistics, which each rank keeps of its own batches."""
    found = [(record.untrained_later if later else record.untrained) or {} for record in pair.many]
    return sorted(name for name in set(found[0]).intersection(*found) if len({each[name] for each in found}) > 1
                  and not (later and name.endswith(STATISTICS)))


def batch_norm(pair: Pair) -> Finding:
    """Whether batch-norm's statistics in training depend on the number of workers."""
    many, alone = sorted({size for record in pair.many for size in record.batch_norms}), sorted(pair.one.batch_norms)
    return pair.finding(BATCH_NORM, {"none": not many, "same": alone == many, "smaller": True}, alone=alone, many=many)


def join(records: Sequence[Record]) -> None:
    """Give each rank what others have of its samples, where parameters are divided: first those ranks that make a copy
    of the model with it, as of several copies each is the n-th to have its part. NaN stays where none has a number."""
    if not any(record.sharded for record in records):
        return
    for optimizers in zip(*(record.optimizers for record in records)):
        for updates in zip(*(one.updates for one in optimizers)):
            for name in SAMPLES:
                parts = [getattr(update, name) for update in updates]
                if len({len(part) for part in parts}) > 1:
                    continue
                holes = [np.isnan(part).tobytes() for part in parts]
                copy = [holes[:at].count(one) for at, one in enumerate(holes)]
                for at, (update, whole) in enumerate(zip(updates, parts)):
                    if name == "parameters":
                        update.own = ~np.isnan(whole)
                    for other in sorted(range(len(parts)), key=lambda other: copy[other] != copy[at]):
                        whole = np.where(np.isnan(whole), parts[other], whole)
                    setattr(update, name, whole)


def is_joined(records: Sequence[Record]) -> bool:
    """Whether the gradient of every update is known, before and after the reduction, and as long in all runs."""
    every = [update for record in records for one in record.optimizers for update in one.updates]
    local = [one.gradient for update in every for one in update.passes]
    as_long = all(len({len(one) for each in optimizers for update in each.updates
                       for one in (update.gradient, *(each.gradient for each in update.passes))}) < 2
                  for optimizers in zip(*(record.optimizers for record in records)))
    return as_long and all(each.any() for each in local) and not any(
        np.isnan(each).any() for each in (*local, *(update.gradient for update in every)))


def together(ranks: Sequence[Record]) -> Record:
    """The ranks' record as one worker's: each batch has the examples of all, each update their passes, and a pass its
    share of the mean loss."""
    optimizers = [replace(each[0], updates=[*map(_update, zip(*(one.updates for one in each)))])
                  for each in zip(*(record.optimizers for record in ranks))]
    iterations = [*map(_iteration, zip(*(record.iterations for record in ranks)))]
    return replace(ranks[0], iterations=iterations, optimizers=optimizers)


def _update(ranks: tuple[Update, ...]) -> Update:
    passes = [replace(one, loss=one.loss / len(ranks)) for each in zip(*(update.passes for update in ranks))
              for one in each]
    return replace(ranks[0], passes=passes, square=sum(update.square for update in ranks), own=None)


def _iteration(ranks: tuple[Iteration, ...]) -> Iteration:
    batches = [replace(each[0], ids=sum((one.ids for one in each), ()),
                       contents=sum((one.contents for one in each), ()), examples=sum(one.examples for one in each))
               for each in zip(*(one.batches for one in ranks))]
    return replace(ranks[0], batches=batches, rest=[sum(each, ()) for each in zip(*(one.rest for one in ranks))])


def random_numbers(pair: Pair) -> Finding:
    """Whether ranks that draw random numbers draw different ones."""
    passes = [list(passes_of(pair.steps(record).updates[:pair.updates])) for record in pair.many]
    model = [[one.draws for one in each] for each in passes]
    preparing = [[one.prepared for one in each if trained(record)] for record, each in zip(pair.many, passes)]
    reading = [_draws_in_reading(pair, record) for record in pair.many]
    moved = {name for ranks in (*model, *preparing, *reading) for draws in ranks for name in draws.moved}
    if not moved - {OWN} and not any(record.drew_in_workers for record in pair.many):
        return pair.finding(RANDOM, "own" if moved else "none")
    in_workers = _same_in_workers(pair)
    seeds = {tuple(one.seed for one in trained(record) if one.seed is not None) for record in pair.many}
    by_number = "by_number" if in_workers and len(seeds) > 1 else ""
    backward = next((one.line for one in pair.at(0)[0].passes), "")
    loop = next((one.line for one in trained(pair.many[0])), "")
    for kind, same, where, cause in (
            # not by Python's generator, by which scripts and models decide for all
            ("model", same_stream(model) - {"random"}, backward, ""),
            # of examples from a loader, as others are drawn there, which ranks may share out
            ("preparing", same_stream(preparing) - {"random"}, backward, ""),
            ("reading", same_stream(reading), loop, by_number), ("reading", in_workers, loop, by_number)):
        if same:
            return pair.finding(RANDOM, kind, passes=len(model[0]), where=where, cause=cause,
                                in_loaders=same is in_workers, names=listed(sorted(OF[name] for name in same)))
    return pair.finding(RANDOM, "differ", passes=len(model[0]))


def by_rank(pair: Pair) -> bool:
    """Whether examples were augmented by the rank that read them."""
    reading = [_draws_in_reading(pair, record) for record in pair.many]
    drew = any(draws and draws.moved for ranks in reading for draws in ranks)
    drew_in_workers = any(record.drew_in_workers for record in pair.many)
    return drew and not same_stream(reading) or drew_in_workers and not _same_in_workers(pair)


def _same_in_workers(pair: Pair) -> set[str]:
    """Generators that most loader workers of all ranks first drew from in the same states."""
    ranks = [record.drew_in_workers for record in pair.many]
    common, least = (Counter(each.split()[0] for each in states) for states in (
        frozenset.intersection(*ranks), min(ranks, key=len)))
    return {name for name, count in common.items() if name != OWN and 2 * count > least[name]}


def _draws_in_reading(pair: Pair, record: Record) -> list[GeneratorUse]:
    return [batch.draws for number in range(pair.updates) for batch in pair.batches(record, number) if batch.draws]


def same_stream(ranks: list[list[GeneratorUse]]) -> set[str]:
    """Generators that moved on all ranks from the same state, in most of the passes in which they moved."""
    found: dict[str, list[bool]] = {}
    for draws in zip(*ranks):
        for name in frozenset.intersection(*(each.moved for each in draws)) - {OWN}:
            found.setdefault(name, []).append(len({each.before.get(name) for each in draws}) == 1)
    return {name for name, same in found.items() if 2 * sum(same) > len(same)}
