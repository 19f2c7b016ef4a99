"""The course of the resumed run: its examples, rates, random draws, what it prints and saves, and its end."""
from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter

from ...formatting.numbers import list_first, listed, number
from ...watch.remarks import OWN
from ..finding import Finding
from ..script.compare.pair import trained
from ..script.compare.reduction import passes_of
from ..script.compare.streams import OF, same_stream
from .both import Both, place_in, times
from .record import SAVED, ResumeRecord

EXAMPLES, SCHEDULE, SCALE, RANDOM = "examples", "schedule", "loss scale", "random numbers"
VALUES, PRINTED, UPDATES = "saved values", "printed", "updates"
CLOSE, FAR = 1e-6, 0.1        # relative differences
OF_GENERATORS = re.compile(r"(?i)rng|random|seed|generator")           # judged by the draws
OF_ORDER = ("begins_anew", "epoch", "other_epoch", "order")
SHUFFLED = ("RandomSampler", "WeightedRandomSampler")       # by torch's global generator


def examples(both: Both) -> Finding:
    """Whether the resumed run takes the examples that the uninterrupted one takes, in its order."""
    if not both.same_batch:
        return both.finding(EXAMPLES, "own_batch")
    known, held = both.keys, both.held
    if not {"first", "second", "stopped", "resumed"} <= {*known}:
        return both.finding(EXAMPLES, "no_loader")
    usual, now = known["first"], known["resumed"][:both.after]
    if not now:
        return both.finding(EXAMPLES, "none")
    if not all(usual) or not all(now):
        return both.finding(EXAMPLES, "not_distinguished")
    first = trained(both.resumed[0])[0]
    given = dict(taken=sum(times(now).values()), where=first.line, sampler=first.sampling.name)
    ordered = usual == known["second"][:len(usual)]
    if ordered and now == usual[held:held + len(now)]:
        return both.finding(EXAMPLES, "same", **given)
    twice, never, until = _miscounted(both, now)
    floor = _counts(times(usual[:until]), times(known["second"][:until]))[0] if not ordered else 0
    given |= dict(twice=twice, never=never, total=sum(times(usual[:until]).values()), until=until)
    if not ordered:
        if until not in both.epochs() and until != both.made:
            return both.finding(EXAMPLES, "unseeded_part", **given)
        return both.finding(EXAMPLES, "unseeded_lost" if twice > floor else "unseeded", **given)
    at = next(at for at, each in enumerate(now) if each != usual[held + at])
    kind, place = _place(both, usual, now, at)
    given |= dict(update=held + at + 1, where_from=place if kind == "accumulation" else place + 1)
    cause = "generator" if first.sampling.name in SHUFFLED and kind in OF_ORDER else ""
    if kind == "order":
        cause, kind = cause or "own_order", "order" if twice else "order_alone"
    return both.finding(EXAMPLES, kind, cause=cause, **given)


def _miscounted(both: Both, now: list) -> tuple[int, int, int]:
    """How many examples are taken more often than without the stop, and less often, up to the end of the last epoch
    that was seen; and the updates by then."""
    end = both.held + len(now)
    until = max((one for one in both.epochs() if both.held < one <= end), default=end)
    usual = both.keys["first"][:until]
    before = both.keys["stopped" if both.keys["first"] != both.keys["second"] else "first"][:both.held]
    return *_counts(times(before, now[:until - both.held]), times(usual)), until


def _counts(found: Counter, usual: Counter) -> tuple[int, int]:
    return sum((found - usual).values()), sum((usual - found).values())


def _place(both: Both, usual: list, now: list, at: int) -> tuple[str, int]:
    """Where the uninterrupted run has the examples that are taken from the update ``at`` on: a kind of finding, and the
    update."""
    held, epochs = both.held + at, both.epochs()
    begin = epochs[max(0, bisect_right(epochs, held) - 1)]
    end = next((one for one in epochs if one > held), both.made)
    places = place_in(usual, now[at:])
    if both.passes and not at and not places:
        return "accumulation", both.passes
    for kind, place in (("position", begin), ("begins_anew", 0), ("epoch", held - begin), ("rest_left_out", end)):
        if place in places and place != held:
            return kind, place
    near = [place for place in places if begin <= place < end]
    if near:
        return ("left_out" if near[0] > held else "repeated"), near[0]
    return ("other_epoch", places[0]) if places else ("order", 0)


def schedule(both: Both) -> Finding:
    """Whether rates and schedules go on where they were."""
    usual, now = _course(both.first[0]), _course(both.resumed[0])[:both.after]
    if not now:
        return both.finding(SCHEDULE, "none")
    held = both.held
    at = next((at for at, (one, other) in enumerate(zip(now, usual[held:])) if not _same(one[0], other[0])), None)
    if at is not None:
        scheduled = any(now[-1][1])
        courses = [[each[1] if scheduled else tuple(f"{rate:.6g}" for rate in each[0]) for each in one]
                   for one in (usual, now)]
        begin = 0 if scheduled else at
        places = place_in(courses[0], courses[1][begin:])
        shift = (places or [held + begin])[0] - held - begin
        kind = "rate" if places and scheduled and not at else "other"
        if shift:
            kind = "shifted" if places[0] else "begins_anew"
        was, rate = usual[held + at][0][0], now[at][0][0]
        return both.finding(SCHEDULE, kind, update=held + at + 1, was=was, now=rate, by=_apart(was, rate), limit=CLOSE,
                            shift=abs(shift), side="ahead" if shift > 0 else "behind",
                            where=both.resumed[0].updates[at].line)
    if now[0][1] != usual[held][1]:
        return both.finding(SCHEDULE, "flat", was=sum(usual[held][1]), now=sum(now[0][1]),
                            where=both.resumed[0].updates[0].line)
    changes = len({rates for rates, _ in usual}) > 1
    return both.finding(SCHEDULE, "same" if changes else "constant")


def _course(record: ResumeRecord) -> list[tuple[tuple[float, ...], tuple[int, ...]]]:
    """Rates and schedules' positions of each update, of all optimizers."""
    return [(sum((one.rates for one in updates), ()), sum((one.positions for one in updates), ()))
            for updates in zip(*(each.updates for each in record.optimizers))]


def _same(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return len(one) == len(other) and all(math.isclose(a, b, rel_tol=CLOSE, abs_tol=1e-15) for a, b in zip(one, other))


def _apart(one: float, other: float) -> float:
    return abs(one - other) / max(abs(one), abs(other))


def loss_scale(both: Both) -> Finding:
    """Whether gradients are scaled by what they were."""
    usual, now = both.first[0].scales[both.held:], both.resumed[0].scales[:both.after]
    if {*both.first[0].scales} <= {1.0}:
        return both.finding(SCALE, "none")
    at = next((at for at, (one, other) in enumerate(zip(now, usual)) if one != other), None)
    if at is None:
        return both.finding(SCALE, "same")
    kind = "begins_anew" if now[at] == both.first[0].scales[0] else "other"
    return both.finding(SCALE, kind, update=both.held + at + 1, was=usual[at], now=now[at], where=both.loaded_by)


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
    epoch = bisect_right(both.epochs(), held) - 1
    if in_workers and all(seeds) and 0 < epoch < len(seeds[0]):
        again |= {"loader workers"} if seeds[1][0] == seeds[0][0] else set()
        same |= {"loader workers"} if seeds[1][0] == seeds[0][epoch] else set()
        moved |= {"loader workers"}
    where = next((one.line for one in passes_of(both.resumed[0].updates)), "")
    names = listed(sorted(OF.get(name, name) for name in again - same)) or listed(
        sorted(OF.get(name, name) for name in moved - same))
    if again - same and held:
        return both.finding(RANDOM, "replayed", names=names, where=where)
    if not moved - same:
        return both.finding(RANDOM, "same")
    kind = "unseeded" if moved - same <= unseeded else "other"
    return both.finding(RANDOM, "own_count" if both.other_count else kind, names=names, where=where)


def saved_values(both: Both) -> Finding:
    """Whether later checkpoints have the same counters, best values and averages."""
    usual, second, now = (_saves(run, shift) for run, shift in (
        (both.first, 0), (both.runs.second, 0), (both.resumed, both.held)))
    common = sorted(update for update in usual if update > both.held and update in now)
    for update in common:
        diverged = both.other_count or _result(both.first, update) != _result(both.resumed, update - both.held)
        for path, values in now[update].items():
            was = usual[update].get(path)
            if was is None:
                return both.finding(VALUES, "other_name", common=len(common), update=update, now=path,
                                    was=next(iter(usual[update])), where=both.saved_by)
            noise = second.get(update, {}).get(path, {})
            apart = [name for name, value in was.items() if noise.get(name) == value != values.get(name, value)
                     and not OF_GENERATORS.search(name)
                     and (not diverged or _counts_alike(name, value) or _is_lost(
                         usual.get(both.held, {}).get(path, {}).get(name), value, values.get(name, value)))]
            if apart:
                return both.finding(VALUES, "other", common=len(common), update=update, path=path, name=apart[0],
                                    names=list_first(apart[1:], 3), was=was[apart[0]], now=values[apart[0]],
                                    where=both.saved_by)
    return both.finding(VALUES, "same" if common else "none", common=len(common))


def _result(records: list[ResumeRecord], update: int) -> str:
    """A digest of the parameters after an update."""
    return next((one.digest_after for one in records[0].updates[update - 1:update]), "")


def _counts_alike(name: str, value: str) -> bool:
    """Whether a value is the same whatever the parameters are: a counter or word that is part of no list."""
    return not (" " in value or "." in value or "e" in value.lower()) and not re.search(r"(^|\.)\d+(\.|$)", name)


def _is_lost(held: str | None, was: str, now: str) -> bool:
    """Whether a number is far from that of the loaded checkpoint, which it still is without the stop."""
    try:
        return held == was and _apart(float(was), float(now)) > FAR
    except ValueError:
        return False


def _saves(records: list[ResumeRecord], shift: int) -> dict[int, dict[str, dict[str, str]]]:
    """By update and path the values of what rank 0, or else another one, saved."""
    found: dict[int, dict[str, dict[str, str]]] = {}
    for record in reversed(records):
        for one in record.uses(SAVED):
            if one.path and one.updates:
                found.setdefault(one.updates + shift, {})[one.path] = one.values
    return found


def printed(both: Both) -> Finding:
    """Whether steps and epochs are printed by the numbers that they have without the stop."""
    usual, now = both.first[0], both.resumed[0]
    compared = 0
    for at in range(1, both.after + 1):
        one, other = usual.start(both.held + at), now.start(at)
        if one is None or other is None or not one.printed:
            continue
        compared += 1
        words = {each.split()[0] for each in one.printed} & {each.split()[0] for each in other.printed}
        for word in sorted(words):
            was, got = ([each for each in found.printed if each.startswith(f"{word} ")] for found in (one, other))
            if was != got:
                return both.finding(PRINTED, "other", compared=compared, update=both.held + at, was=was[0], now=got[0])
    return both.finding(PRINTED, "same" if compared else "none", compared=compared)


def updates(both: Both) -> Finding:
    """Whether the resumed run makes the updates that are left, and with the parameters of the uninterrupted run."""
    made, left = min(record.made for record in both.resumed), both.made - both.held
    given = dict(left=left, now=made, where=both.loaded_by)
    if not made:
        return both.finding(UPDATES, "none", **given)
    ends = all(record.state == "ended" for record in both.first)
    if ends and made != left or made < left and all(record.state == "ended" for record in both.resumed):
        return both.finding(UPDATES, "more" if made > left else "fewer", **given)
    if both.other_count:
        return both.finding(UPDATES, "as_many" if ends else "as_many_so_far", **given)
    runs = [[update.digest_after for update in run[0].updates] for run in (both.first, both.runs.second)]
    now = [update.digest_after for update in both.resumed[0].updates[:both.after]]
    apart = next((at for at, one in enumerate(now) if one != runs[0][both.held + at]), None)
    noise = next((at for at, each in enumerate(zip(*runs)) if each[0] != each[1]), None)
    if apart is None:
        return both.finding(UPDATES, "same" if ends else "same_so_far", **given)
    kind = "apart" if noise is None or noise > both.held + apart else "noise"
    return both.finding(UPDATES, kind, update=both.held + apart + 1, noise=number((noise or 0) + 1), **given)
