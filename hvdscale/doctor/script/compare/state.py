"""Parameters and buffers on the ranks, whole or divided among them; the optimizer's steps: learning rates and their
schedules, and what each update did to the parameters; batch-norm's statistics, and random numbers."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ....formatting.numbers import list_first, listed, number
from ....watch.remarks import IN_BACKWARD, OWN
from ...finding import STATISTICS, Finding, Verdict, first_met, unlike
from ..record import GeneratorUse, Iteration, Record, Update
from .pair import CLOSE, DEPARTED, KINDS, ROUNDED, BothRuns, Pair, apart, close, factor, passes_of, trained

PARAMETERS, BATCH_NORM, RANDOM = "parameters", "batch-norm", "random numbers"
OF = {"torch": "torch", "numpy": "numpy", "random": "Python's random", "cuda": "torch on the GPU"}
SAMPLES = ("gradient", "before_clips", "parameters", "after")
SHARED = 0.02           # of weights of the ranks' changes, relative
ALIKE = 0.15            # of a factor of parameters, which the last step has changed as well, relative
RATE, SCHEDULE, UPDATE = "learning rate", "schedule", "update"
SAME = 1e-6             # of rates, relative


def parameters(pair: Pair) -> Finding:
    """Whether all ranks start from the same parameters and buffers, and keep the same parameters."""
    sharded = [record.sharded for record in pair.records if record.sharded]
    if sharded:
        unseen = pair.finding(PARAMETERS, "sharded", how=sharded[0])
        return _parts(pair, sharded[0]) if is_joined(pair.records) else unseen
    digests = [{update.digest for update in pair.at(at)} for at in range(pair.updates)]
    if (again := averaged(pair)) and len(digests[0]) == 1:
        return _averaged(pair, *again)
    different = next((at for at, found in enumerate(digests) if len(found) > 1), None)
    if different is not None:
        return _different(pair, different)
    found = {"untaken": [] if pair.optimizer else pair.many[0].untaken, "untrained": different_untrained(pair),
             "untrained_later": different_untrained(pair, later=True)}
    if kind := first_met(found):
        where = pair.at(0)[0].line if kind == "untaken" else ""
        return pair.finding(PARAMETERS, kind, names=list_first(found[kind], 3), where=where)
    return _other_start(pair) or pair.finding(PARAMETERS, "same")


def _other_start(pair: Pair) -> Finding | None:
    one, many = pair.on_one(0), pair.at(0)[0]
    return None if pair.same_start else pair.finding(
        PARAMETERS, "other_start", by=apart(one.parameters, many.parameters), limit=0.0, where=many.line)


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
    one, *others = pair.at(max(0, at - 1))
    if not at:
        return pair.finding(PARAMETERS, "start" if by > ROUNDED else "start_rounded", by=by, limit=0.0, where=one.line,
                            cause={"frozen": len({len(each.parameters) for each in updates}) > 1})
    steps_alike = all(each.rates == one.rates and np.array_equal(each.gradient, one.gradient) for each in others)
    written = all(each.digest_after == one.digest_after for each in others)
    return pair.finding(PARAMETERS, "drift", by=by, limit=0.0, where=one.line, update=at + 1,
                        cause={"in_backward": IN_BACKWARD in pair.many[0].remarks and not steps_alike,
                               "other_steps": not steps_alike, "written": written, "state": True})


def averaged(pair: Pair) -> tuple[int, list[str]] | None:
    """The first update before which what a step moved apart is the same on all ranks, and what still differs."""
    for at in range(1, pair.updates):
        before, now = ([name for name, parts in pair.parts([getattr(update, which) for update in pair.at(number)])
                        if any(not np.array_equal(parts[0], part) for part in parts)]
                       for which, number in (("after", at - 1), ("parameters", at)))
        if {*before} - {*now}:
            return at, now
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
    """With which weights the ranks' changes since the first update make the parameters of the last; None: with none."""
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


def learning_rate(pair: Pair) -> Finding:
    """Whether all ranks have one rate, and how it depends on the number of workers."""
    for at in range(pair.updates):
        rates = [update.rates for update in pair.at(at)]
        if len(set(rates)) > 1:
            return pair.finding(RATE, "by_rank", update=at + 1, first=rates[0][0], second=rates[1][0],
                                where=pair.at(at)[0].line)
    ratio, ratios = _ratio(pair, 0), _ratios(pair, 0)
    if ratio is None:
        return pair.finding(RATE, "by_group" if ratios else "same", ratios=ratios, where=pair.at(0)[0].line)
    if math.isclose(ratio, 1, rel_tol=SAME):
        shown = list_first([number(rate) for rate in dict.fromkeys(pair.at(0)[0].rates)], 3)
        return pair.finding(RATE, "as_on_one", rates=shown, grows=pair.workers if pair.batch is None else None)
    kinds = {"scaled": pair.batch, "larger": ratio <= pair.times * (1 + SAME), "larger_than_batch": True}
    causes = {"own_count": pair.batch and math.isclose(ratio * pair.times, 1, rel_tol=SAME)}
    return pair.finding(RATE, kinds, ratio=ratio, cause=causes, where=pair.at(0)[0].line)


def _ratio(pair: Pair, at: int) -> float | None:
    """The rate on many workers by that on one; None where parameter groups differ in it, or it is 0."""
    ratios = _ratios(pair, at)
    return ratios[0] if ratios and max(ratios) - min(ratios) <= SAME * abs(ratios[0]) else None


def _ratios(pair: Pair, at: int) -> list[float]:
    """The same of each parameter group; empty where one is 0, or their numbers differ."""
    one, many = pair.on_one(at).rates, pair.at(at)[0].rates
    return [b / a for a, b in zip(one, many)] if len(one) == len(many) and all(one) else []


def schedule(pair: Pair) -> Finding:
    """Whether the rates follow one course, update by update, on one worker and on many."""
    if any(len({update.rates for update in pair.at(at)}) > 1 for at in range(pair.updates)):
        return pair.finding(SCHEDULE, "by_rank")
    ratios = [ratio for ratio in (_ratio(pair, at) for at in range(pair.updates)) if ratio is not None]
    last = pair.updates - 1
    alone, many = (sum(updates[last].positions) - sum(updates[0].positions)         # by how much schedules advance
                   for updates in (pair.steps(record).updates for record in (pair.one, pair.many[0])))
    changes = len({update.rates for update in pair.steps(pair.many[0]).updates}) > 1
    by = max(ratios) / min(ratios) - 1 if ratios and min(ratios) > 0 else 0.0
    if by > SAME:
        kinds = {"hasty": alone and math.isclose(many / alone, pair.times), "other_course": alone == many,
                 "other_pace": True}
        found = pair.finding(SCHEDULE, kinds, by=by, limit=SAME, alone=alone, many=many, first=ratios[0],
                             last=ratios[-1], where=pair.at(0)[0].line)
        return found if pair.batch is not None else replace(found, verdict=Verdict.WARNED)      # of other batches
    kinds = {"flat_so_far": alone != many and not changes, "one_course": pair.at(last)[0].positions or changes,
             "constant": True}
    return pair.finding(SCHEDULE, kinds, alone=alone, many=many, where=pair.at(0)[0].line)


def update(pair: Pair) -> Finding:
    """Whether steps, and what is done to the parameters after them, are those of one worker where gradients are."""
    compared, agree, settings = 0, True, [pair.steps(record).settings for record in (pair.one, pair.many[0])]
    for name, one, many in unlike(*settings) if pair.batch is not None else ():
        return pair.finding(UPDATE, "settings", name=name.replace(".", " "), one=one, many=many,
                            where=pair.at(0)[0].line)
    for at in pair.whole:
        both = pair.both[at]
        if not both.comparable or both.alone.rates != both.ranks[0].rates:
            break
        error = max(apart(both.alone.gradient, each.gradient) for each in both.ranks)
        for one, many in zip(both.alone.clips, both.ranks[0].clips):
            limits = [clip.limit / max(clip.norm, 1e-12) for clip in (one, many)]       # NaN: of values, not of a norm
            times = both.ratio or one.norm / max(many.norm, 1e-12)
            if close(times, 1) and abs(limits[0] - limits[1]) > CLOSE * max(limits):
                return pair.finding(UPDATE, "settings", name="the limit of gradient clipping, by the norm,",
                                    one=limits[0], many=limits[1], where=many.line, clips=True)
        if all(each.own is None for each in both.ranks) and len({each.digest_after for each in both.ranks}) > 1:
            break                               # see the check 'parameters'
        if not pair.flat and (np.isnan(both.ranks[0].after).any() or error > both.floor):
            break
        # numbers of the gradient that are no rounding, of which steps that divide it by its own size make more
        agree &= np.abs(both.alone.gradient - both.ranks[0].gradient) <= CLOSE * np.abs(both.alone.gradient)
        if fault := _fault(both, error, agree):
            return fault
        compared = at + 1
    why = "gradient" if pair.on_one(0).rates == pair.at(0)[0].rates else "rate"
    return pair.finding(UPDATE, "same" if compared else "not_compared", compared=compared,
                        why=pair.why_incomparable or KINDS.sentence("incomparable", why, pair))


def _fault(both: BothRuns, error: float, agree: np.ndarray) -> Finding | None:
    """The finding on the first parameter that the step, or what followed it, moved otherwise than on one worker."""
    pair, at = both.pair, both.at
    following = [pair.on_one(at + 1), *pair.at(at + 1)] if at + 1 < pair.updates else []
    steps = [] if pair.flat else [each.after - each.parameters for each in (both.alone, *both.ranks)]
    given = {"update": at + 1, "error": error, "limit": DEPARTED, "where": both.ranks[0].line}
    for many in steps[1:]:
        name, factors = pair.scaled_parts(*(np.where(agree, each, 0.0) for each in (steps[0], many)), both.ranks)
        if factors:
            by = apart(*dict(pair.parts([steps[0], many]))[name])
            return pair.finding(UPDATE, "factors_of_parts", name=name, factors=factors, by=by, **given)
        if worst := _worst(pair, steps[0], many, agree):
            divided = any(each.own is not None and not dict(pair.parts([each.own]))[worst["name"]][0].all()
                          for each in both.ranks)
            return pair.finding(UPDATE, "of_parts" if divided else "other_step", **worst, **given)
    if following and following[1].own is None and len({each.digest for each in following[1:]}) > 1:
        following = []
    whole = [after.parameters - before.parameters for before, after in zip((both.alone, *both.ranks), following)]
    for many in whole[1:]:
        if worst := _worst(pair, whole[0], many, agree):
            left = [name for name, (one, found) in pair.parts([whole[0], many]) if pair.flat and one[found == 0].any()]
            times = None if pair.flat else factor(*(after.parameters - before.after for before, after in zip(
                (both.alone, both.ranks[0]), following)))
            kinds = {"unmoved": left, "flat": pair.flat, "written_times": times and close(times, pair.times),
                     "written_after": True}
            worst["name"] = list_first(left, 3) or worst["name"]
            return pair.finding(UPDATE, kinds, **worst, times=times, **given)
    return None


def _worst(pair: Pair, one: np.ndarray, many: np.ndarray, agree: np.ndarray) -> dict:
    """The parameter whose changes are farthest apart, and by how much; empty where none is beyond rounding."""
    apart_by = {apart(a[kept], b[kept]): name for name, (a, b, kept) in pair.parts([one, many, agree])}
    by = max(apart_by, default=0.0)
    return {"name": apart_by[by], "by": by, "far": by} if by > DEPARTED else {}


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
        for updates in zip(*(optimizer.updates for optimizer in optimizers)):
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
    """The ranks' record as one worker's, with all examples and passes, each with its share of the mean loss."""
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
               for each in zip(*(rank.batches for rank in ranks))]
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
    traceless = pair.both and all(
        each.alone.gradient.any() and apart(each.alone.gradient, each.ranks[0].gradient) <= each.floor
        for each in pair.both.values())
    loop = next((one.line for one in trained(pair.many[0])), "")
    for kind, same, where, cause in (
            # not by Python's generator, by which scripts and models decide for all
            ("model", same_stream(model) - {"random"}, backward, ""),
            # of examples from a loader, as others are drawn there, which ranks may share out
            ("preparing", same_stream(preparing) - {"random"}, backward, ""),
            ("reading", same_stream(reading), loop, by_number), ("reading", in_workers, loop, by_number)):
        if same:
            return pair.finding(RANDOM, "traceless" if traceless else kind, passes=len(model[0]), where=where,
                                cause=cause, in_loaders=same is in_workers,
                                names=listed(sorted(OF[name] for name in same)))
    differ = [len({one.before.get("random") for one in each}) > 1 for each in zip(*preparing)]
    first = differ.index(True) if any(differ) else 0
    parted = first and all("random" in one.moved for each in model for one in each[first:])
    return pair.finding(RANDOM, "parted" if parted else "differ", passes=len(model[0]), first=first + 1, where=backward)


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
