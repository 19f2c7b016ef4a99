"""The course of the resumed run: its examples, rates, random draws, what it prints and saves, and its end."""
from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from ...formatting.numbers import list_first, listed, number
from ...watch.remarks import OWN
from ...watch.runner import LOCAL
from ..finding import Finding
from ..script.compare.pair import trained
from ..script.compare.reduction import passes_of
from ..script.compare.streams import OF, same_stream
from ..script.record import ENDED, SAVED, Record
from .runs import ENOUGH, RUNS, Both

EXAMPLES, SCHEDULE, SCALE, RANDOM = "examples", "schedule", "loss scale", "random numbers"
VALUES, PRINTED, UPDATES = "saved values", "printed", "updates"
CLOSE, FAR = 1e-6, 0.1        # relative differences
OF_GENERATORS = re.compile(r"(?i)rng|random|seed|generator")           # judged by the draws
OF_ORDER = ("begins_anew", "epoch", "other_epoch", "order")
SHUFFLED = ("RandomSampler", "WeightedRandomSampler")       # by torch's global generator
T = TypeVar("T")


def examples(both: Both) -> Finding:
    """Whether the resumed run takes the examples that the uninterrupted one takes, in its order."""
    if both.other_count and not any(LOCAL in one for one in both.asked.script.arguments):
        return both.finding(EXAMPLES, "own_batch")
    known, held = both.keys, both.held
    if len(known) < len(RUNS):
        return both.finding(EXAMPLES, "no_loader")
    usual, now = known["first"], known["resumed"][:both.after]
    if not now:
        return both.finding(EXAMPLES, "none")
    if not all(usual) or not all(now):
        return both.finding(EXAMPLES, "not_distinguished")
    first = trained(both.resumed[0])[0]
    given = dict(taken=sum(_times(now).values()), where=first.line, sampler=first.sampling.name)
    at = _first_apart(now, usual[held:])
    ordered = usual == known["second"][:len(usual)]
    if ordered and at is None:
        return both.finding(EXAMPLES, "same", **given)
    twice, never, until = _miscounted(both, now)
    given |= dict(twice=twice, never=never, total=sum(_times(usual[:until]).values()), until=until)
    if not ordered:
        if until not in both.epochs and until != both.made:
            return both.finding(EXAMPLES, "unseeded_part", **given)
        floor = (_times(usual[:until]) - _times(known["second"][:until])).total()
        return both.finding(EXAMPLES, "unseeded_lost" if twice > floor else "unseeded", **given)
    kind, place = _place(both, usual, now, at)
    given |= dict(update=held + at + 1, where_from=place if kind == "accumulation" else place + 1)
    cause = "generator" if first.sampling.name in SHUFFLED and kind in OF_ORDER else ""
    if kind == "order":
        cause, kind = cause or "own_order", "order" if twice else "order_alone"
    return both.finding(EXAMPLES, kind, cause=cause, **given)


def _times(*courses: list[list[list]]) -> Counter:
    """How often each example was taken."""
    return Counter(key for course in courses for ranks in course for rank in ranks for key in rank)


def _first_apart(now: Sequence[T], usual: Sequence[T]) -> int | None:
    """The first place at which two courses differ, as far as both go; None where they do not."""
    return next((at for at, (one, other) in enumerate(zip(now, usual)) if one != other), None)


def _miscounted(both: Both, now: list) -> tuple[int, int, int]:
    """How many examples are taken more often than without the stop, and less often, up to the end of the last epoch
    that was seen; and the updates by then."""
    end = both.held + len(now)
    until = max((one for one in both.epochs if both.held < one <= end), default=end)
    before = both.keys["stopped" if both.keys["first"] != both.keys["second"] else "first"][:both.held]
    found, usual = _times(before, now[:until - both.held]), _times(both.keys["first"][:until])
    return (found - usual).total(), (usual - found).total(), until


def _place(both: Both, usual: list, now: list, at: int) -> tuple[str, int]:
    """Where the uninterrupted run has the examples that are taken from the update ``at`` on: a kind of finding, and the
    update."""
    held, epochs = both.held + at, both.epochs
    begin = epochs[max(0, bisect_right(epochs, held) - 1)]
    end = next((one for one in epochs if one > held), both.made)
    places = _places(usual, now[at:])
    if both.passes and not at and not places:
        return "accumulation", both.passes
    for kind, place in (("position", begin), ("begins_anew", 0), ("epoch", held - begin), ("rest_left_out", end)):
        if place in places and place != held:
            return kind, place
    near = [place for place in places if begin <= place < end]
    if near:
        return ("left_out" if near[0] > held else "repeated"), near[0]
    return ("other_epoch", places[0]) if places else ("order", 0)


def _places(course: list[T], part: list[T]) -> list[int]:
    """The places of a course at which its next elements are the first of the part."""
    some = part[:ENOUGH]
    return [at for at in range(len(course) - len(some) + 1) if some and course[at:at + len(some)] == some]


def schedule(both: Both) -> Finding:
    """Whether rates and schedules go on where they were."""
    usual, now = _course(both.first[0]), _course(both.resumed[0])[:both.after]
    if not now:
        return both.finding(SCHEDULE, "none")
    held, steps = both.held, both.resumed[0].updates
    at = next((at for at, (one, other) in enumerate(zip(now, usual[held:])) if not _same(one[0], other[0])), None)
    if at is not None:
        scheduled = any(now[-1][1])
        courses = [[each[1] if scheduled else tuple(f"{rate:.6g}" for rate in each[0]) for each in one]
                   for one in (usual, now)]
        begin = 0 if scheduled else at
        places = _places(courses[0], courses[1][begin:])
        shift = (places or [held + begin])[0] - held - begin
        kind = "rate" if places and scheduled and not at else "other"
        if shift:
            kind = "shifted" if places[0] else "begins_anew"
        was, rate = usual[held + at][0][0], now[at][0][0]
        return both.finding(SCHEDULE, kind, update=held + at + 1, was=was, now=rate, by=_apart(was, rate), limit=CLOSE,
                            shift=abs(shift), side="ahead" if shift > 0 else "behind", where=steps[at].line)
    if now[0][1] != usual[held][1]:
        return both.finding(SCHEDULE, "flat", was=sum(usual[held][1]), now=sum(now[0][1]), where=steps[0].line)
    return both.finding(SCHEDULE, "same" if len({rates for rates, _ in usual}) > 1 else "constant")


def _course(record: Record) -> list[tuple[tuple[float, ...], tuple[int, ...]]]:
    """Rates and schedules' positions of each update, of all optimizers."""
    return [(sum((one.rates for one in updates), ()), sum((one.positions for one in updates), ()))
            for updates in zip(*(each.updates for each in record.optimizers))]


def _same(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return len(one) == len(other) and all(math.isclose(a, b, rel_tol=CLOSE, abs_tol=1e-15) for a, b in zip(one, other))


def _apart(one: float, other: float) -> float:
    return abs(one - other) / max(abs(one), abs(other))


def loss_scale(both: Both) -> Finding:
    """Whether gradients are scaled by what they were."""
    usual, now = both.first[0].scales, both.resumed[0].scales[:both.after]
    if {*usual} <= {1.0}:
        return both.finding(SCALE, "none")
    at = _first_apart(now, usual[both.held:])
    if at is None:
        return both.finding(SCALE, "same")
    return both.finding(SCALE, "begins_anew" if now[at] == usual[0] else "other", update=both.held + at + 1,
                        was=usual[both.held + at], now=now[at], where=both.loaded_by)


def random_numbers(both: Both) -> Finding:
    """Whether random draws go on where they were, or are those of the beginning once more."""
    held, ranks = both.held, range(min(len(both.first), len(both.resumed)))
    moved = {name for rank in ranks for one in (*both.draws("first", rank), *both.draws("resumed", rank))
             for name in one.moved} - {OWN}
    in_workers = any(record.drew_in_workers for record in both.first)
    if not moved and not in_workers:
        return both.finding(RANDOM, "none")
    again, same, unseeded = set[str](), set[str](), set[str]()
    for rank in ranks:
        usual, now = both.draws("first", rank), both.draws("resumed", rank)
        again |= same_stream([usual, now])
        same |= same_stream([both.draws("first", rank, held), now])
        unseeded |= moved - same_stream([usual, both.draws("second", rank)])
    seeds = [[one.seed for one in trained(run[0]) if one.seed is not None] for run in (both.first, both.resumed)]
    epoch = bisect_right(both.epochs, held) - 1
    if in_workers and all(seeds) and 0 < epoch < len(seeds[0]):
        again |= {"loader workers"} if seeds[1][0] == seeds[0][0] else set()
        same |= {"loader workers"} if seeds[1][0] == seeds[0][epoch] else set()
        moved |= {"loader workers"}
    replayed = again - same
    names = listed(sorted(OF.get(name, name) for name in replayed or moved - same))
    kind = "unseeded" if moved - same <= unseeded else "other"
    if replayed and held:
        kind = "replayed"
    elif not moved - same:
        return both.finding(RANDOM, "same")
    elif both.other_count:
        kind = "own_count"
    where = next((one.line for one in passes_of(both.resumed[0].updates)), "")
    return both.finding(RANDOM, kind, names=names, where=where)


def saved_values(both: Both) -> Finding:
    """Whether later checkpoints have the same counters, best values and averages."""
    usual, second, now = (_saves(run, shift) for run, shift in (
        (both.first, 0), (both.second, 0), (both.resumed, both.held)))
    common = sorted(update for update in usual if update > both.held and update in now)
    for update in common:
        results = [run[0].updates[at - 1].digest_after if at <= len(run[0].updates) else "" for run, at in (
            (both.first, update), (both.resumed, update - both.held))]
        diverged = both.other_count or results[0] != results[1]
        for path, values in now[update].items():
            was = usual[update].get(path)
            if was is None:
                return both.finding(VALUES, "other_name", common=len(common), update=update, now=path,
                                    was=next(iter(usual[update])), where=both.saved_by)
            noise, held = (saves.get(at, {}).get(path, {}) for saves, at in ((second, update), (usual, both.held)))
            apart = [name for name, value in was.items() if noise.get(name) == value != values.get(name, value)
                     and not OF_GENERATORS.search(name)
                     and (not diverged or _counts_alike(name, value)
                          or held.get(name) == value and _far_apart(value, values[name]))]
            if apart:
                return both.finding(VALUES, "other", common=len(common), update=update, path=path, name=apart[0],
                                    names=list_first(apart[1:], 3), was=was[apart[0]], now=values[apart[0]],
                                    where=both.saved_by)
    return both.finding(VALUES, "same" if common else "none", common=len(common))


def _counts_alike(name: str, value: str) -> bool:
    """Whether a value is the same whatever the parameters are: a counter or word that is part of no list."""
    return not (" " in value or "." in value or "e" in value.lower()) and not re.search(r"(^|\.)\d+(\.|$)", name)


def _far_apart(was: str, now: str) -> bool:
    """Whether a value of a checkpoint is a number, and far from what it was."""
    try:
        return _apart(float(was), float(now)) > FAR
    except ValueError:
        return False


def _saves(records: list[Record], shift: int) -> dict[int, dict[str, dict[str, str]]]:
    """By update and path the values of what rank 0, or else another one, saved."""
    found: dict[int, dict[str, dict[str, str]]] = {}
    for record in reversed(records):
        for one in record.uses(SAVED):
            if one.path and one.updates:
                found.setdefault(one.updates + shift, {})[one.path] = one.values
    return found


def printed(both: Both) -> Finding:
    """Whether steps and epochs are printed by the numbers that they have without the stop."""
    compared = 0
    for at in range(1, both.after + 1):
        usual, now = both.first[0].start(both.held + at), both.resumed[0].start(at)
        if usual is None or now is None or not usual.printed:
            continue
        compared += 1
        words = {each.split()[0] for each in usual.printed} & {each.split()[0] for each in now.printed}
        for word in sorted(words):
            was, got = ([each for each in one.printed if each.startswith(f"{word} ")] for one in (usual, now))
            if was != got:
                return both.finding(PRINTED, "other", compared=compared, update=both.held + at, was=was[0], now=got[0])
    return both.finding(PRINTED, "same" if compared else "none", compared=compared)


def updates(both: Both) -> Finding:
    """Whether the resumed run makes the updates that are left, and with the parameters of the uninterrupted run."""
    made, left = min(record.made for record in both.resumed), both.made - both.held
    given = dict(left=left, now=made, where=both.loaded_by)
    if not made:
        return both.finding(UPDATES, "none", **given)
    ends = all(record.state == ENDED for record in both.first)
    if ends and made != left or made < left and all(record.state == ENDED for record in both.resumed):
        return both.finding(UPDATES, "more" if made > left else "fewer", **given)
    if both.other_count:
        return both.finding(UPDATES, "as_many" if ends else "as_many_so_far", **given)
    first, second, now = ([update.digest_after for update in run[0].updates] for run in (
        both.first, both.second, both.resumed))
    apart, noise = _first_apart(now[:both.after], first[both.held:]), _first_apart(first, second)
    if apart is None:
        return both.finding(UPDATES, "same" if ends else "same_so_far", **given)
    kind = "apart" if noise is None or noise > both.held + apart else "noise"
    return both.finding(UPDATES, kind, update=both.held + apart + 1, noise=number((noise or 0) + 1), **given)
