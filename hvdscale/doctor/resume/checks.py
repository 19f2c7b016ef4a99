"""What the resumed run starts from, and its course: examples, rates, draws, what it prints and saves, its end."""
from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from ...formatting.numbers import list_first, listed
from ...watch.remarks import OWN
from ...watch.runner import LOCAL
from ..finding import Finding
from ..script.compare.pair import trained
from ..script.compare.reduction import passes_of
from ..script.compare.state import STATISTICS
from ..script.compare.streams import OF, same_stream
from ..script.record import ENDED, SAVED, WRITTEN, Record
from .runs import ENOUGH, RUNS, Both, alike, find_loaded

LOAD, PARAMETERS, OPTIMIZER, FILES = "load", "parameters", "optimizer", "files"
EXAMPLES, SCHEDULE, SCALE, RANDOM = "examples", "schedule", "loss scale", "random numbers"
VALUES, PRINTED, UPDATES = "saved values", "printed", "updates"
CLOSE, FAR = 1e-6, 0.1        # relative differences
OF_GENERATORS = re.compile(r"(?i)rng|random|seed|generator")           # judged by the draws
OF_ORDER = ("begins_anew", "epoch", "other_epoch", "order")
SHUFFLED = ("RandomSampler", "WeightedRandomSampler")       # by torch's global generator
ZERO = " 0"             # what Start.states has of zeros
T = TypeVar("T")


def load(both: Both) -> Finding:
    """What the resumed run loaded, and whether that is what was saved last."""
    if both.error:
        return both.finding(LOAD, "error", error=both.error, where=both.loaded_by)
    if not both.loaded and not both.held:
        kind, again = "nothing" if both.asked.again else "perhaps_nothing", both.asked.again
        return both.finding(LOAD, kind, again=again, where=_last_save(both))
    keys = {frozenset(by.values) for _, by in both.loaded if by.act == SAVED}
    last = max((by.updates for _, by in both.loaded), default=0)
    newer = [(one.updates, one.path) for record in both.stopped for one in record.uses(SAVED)
             if one.path and one.updates > last and frozenset(one.values) in keys]
    if newer:
        newest, path = max(newer)
        return both.finding(LOAD, "old", newer=path, newest=newest, where=both.loaded_by)
    return both.finding(LOAD, "newest")


def _last_save(both: Both) -> str:
    return next((one.line for record in both.stopped for one in record.uses(SAVED)[::-1]), "")


def parameters(both: Both) -> Finding:
    """Whether parameters, buffers and averages are those that were saved."""
    sharded = any(record.sharded for record in both.first)
    if both.other_count and sharded:
        return both.finding(PARAMETERS, "sharded")
    found = [_different(both, rank) for rank in range(len(both.resumed))]
    if None in found:
        return both.finding(PARAMETERS, "not_seen")
    names = sorted({name for each in found for name in each or ()})
    if not names:
        return both.finding(PARAMETERS, "same")
    optimized = both.resumed[0].optimized
    trained = [name for name in names if name in optimized]
    some = [rank for rank, each in enumerate(found) if each]
    given = dict(names=list_first(trained or names, 3), count=len(trained or names), where=both.loaded_by)
    if len(some) < len(found) and not sharded:
        return both.finding(PARAMETERS, "some_ranks", ranks=some, **given)
    if trained:
        if len(trained) < len(optimized):
            return both.finding(PARAMETERS, "some", of=len(optimized), **given)
        initial = alike(both.first[0].start(0), both.resumed[0].start(0), trained)
        return both.finding(PARAMETERS, "initial" if initial else "other", **given)
    kind = "statistics" if all(name.endswith(STATISTICS) for name in names) else "buffers"
    if not {name.partition(".")[0] for name in names} & {name.partition(".")[0] for name in optimized}:
        kind = "average"
    return both.finding(PARAMETERS, kind, **given)


def _different(both: Both, rank: int) -> list[str] | None:
    """The tensors of a rank that are not as they were; those that each rank had of its own count on the first alone."""
    record, old, first = both.resumed[rank], both.expected(rank), both.expected(0)
    now = record.start(0)
    if old is None or now is None or first is None:
        return None
    return [name for name, value in now.tensors.items() if old.tensors.get(name, value) != value
            and not (both.passes and name.endswith(STATISTICS))
            and (rank == 0 or record.sharded or old.tensors[name] == first.tensors.get(name))]


def optimizer(both: Both) -> Finding:
    """Whether the optimizers' state is that which was saved."""
    if both.other_count and any(record.sharded for record in both.first):
        return both.finding(OPTIMIZER, "sharded")
    starts = [(both.expected(rank), record.start(0)) for rank, record in enumerate(both.resumed)]
    if any(None in each for each in starts):
        return both.finding(OPTIMIZER, "not_seen")
    found = [(rank, name, was, now.states.get(name, "")) for rank, (old, now) in enumerate(starts)
             for name, was in old.states.items() if now.states.get(name, "") != was]
    if not found:
        return both.finding(OPTIMIZER, "same" if any(old.states for old, _ in starts) else "none")
    ranks, keys = sorted({rank for rank, *_ in found}), list(dict.fromkeys(name.split(".")[1] for _, name, *_ in found))
    _, name, was, now = next((one for one in found if one[1].split(".")[1] != "step"), found[0])
    given = dict(keys=keys, names=list_first([name.partition(".")[2] for _, name, *_ in found], 3), was=was, now=now,
                 count=len(found), where=both.loaded_by)
    if len(ranks) < len(starts):
        return both.finding(OPTIMIZER, "some_ranks", ranks=ranks, **given)
    if all(not now or now.endswith(ZERO) for *_, now in found):
        return both.finding(OPTIMIZER, "empty", **given)
    if keys == ["step"]:
        return both.finding(OPTIMIZER, "steps", **given)
    types = dict(was_type=was.split()[0], now_type=now.split()[0] if now else "")
    return both.finding(OPTIMIZER, "dtype" if now and len({*types.values()}) > 1 else "other", **types, **given)


def files(both: Both) -> Finding:
    """Whether ranks write to one path, and whether what a kill leaves behind can be loaded."""
    ranks: dict[tuple[str, int], set[int]] = {}         # that wrote to a path of checkpoints, at an update
    for record in both.first:
        paths = {one.path for one in record.uses(SAVED) if one.path}
        for one in record.uses(WRITTEN):
            if one.path in paths:
                ranks.setdefault((one.path, one.updates), set()).add(record.rank)
    for (path, _), writers in ranks.items():
        if len(writers) > 1:
            line = next(one.line for one in both.first[0].uses(SAVED) if one.path == path)
            return both.finding(FILES, "one_path", path=path, ranks=sorted(writers), where=line)
    for how, (killed, mended, error) in both.torn.items():
        of = sorted({by.updates for _, by in find_loaded(killed, mended)})
        said = "it begins afresh" if not of else "what it loaded is of update " + listed(of)
        if error or len(of) != 1:
            return both.finding(FILES, "torn", how=how, error=error or said, where=_last_save(both))
    return both.finding(FILES, "whole" if both.torn else "apart")


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
    """A kind of finding, and the update at which the uninterrupted run has the examples that follow ``at``."""
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
    return both.finding(UPDATES, kind, update=both.held + apart + 1, noise=(noise or 0) + 1, **given)
