"""What the resumed run starts from, and its course: examples, rates, draws, what it prints and saves, its end."""
from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from typing import Any

from ...formatting.numbers import list_first, listed
from ...watch.remarks import OWN
from ..finding import Finding
from ..script.compare.pair import trained
from ..script.compare.reduction import passes_of
from ..script.compare.state import STATISTICS
from ..script.compare.streams import OF, same_stream
from ..script.record import ENDED, SAVED, WRITTEN, Record
from .runs import ENOUGH, RUNS, Both, alike, find_loaded, unlike

FAR = 0.1               # a relative difference
OF_GENERATORS = re.compile(r"(?i)rng|random|seed|generator")           # judged by the draws
ZERO = " 0"             # how a description ends of a tensor of zeros


def load(both: Both) -> Finding:
    """What the resumed run loaded, and whether that is what was saved last."""
    if both.error:
        return both.finding("load", "error", error=both.error, where=both.loaded_by)
    if not both.loaded and not both.held:
        kind = "nothing" if both.asked.again else "perhaps_nothing"
        return both.finding("load", kind, again=both.asked.again, where=both.saved_by)
    loaded = [by for _, by in both.loaded if by.act == SAVED]
    newer = [one for record in both.stopped for one in record.uses(SAVED)
             if one.path and all(one.updates > by.updates for by in loaded)
             and any(one.values.keys() == by.values.keys() for by in loaded)]
    if newer:
        newest = max(newer, key=lambda one: one.updates)
        return both.finding("load", "old", newer=newest.path, newest=newest.updates, where=both.loaded_by)
    return both.finding("load", "newest", redone=max(0, both.stop - both.held))


def parameters(both: Both) -> Finding:
    """Whether parameters, buffers and averages are those that were saved; what each rank has of its own, such as
    statistics of its batches, counts on the first alone."""
    found, first = both.unlike("tensors"), both.expected(0)
    if found is None or first is None:
        return both.finding("parameters", "not_seen")
    found = [(rank, name, was, now) for rank, name, was, now in found if now and not (
        rank and was != first.tensors.get(name) or both.passes and name.endswith(STATISTICS))]
    if not found:
        return both.finding("parameters", "same")
    ranks, names = sorted({rank for rank, *_ in found}), sorted({name for _, name, *_ in found})
    optimized = both.resumed[0].optimized
    trained = [name for name in names if name in optimized]
    given = dict(names=list_first(trained or names, 3), count=len(trained or names), where=both.loaded_by)
    if len(ranks) < len(both.resumed) and all(alike(first, both.expected(rank), names) for rank in range(
            len(both.resumed))):
        return both.finding("parameters", "some_ranks", ranks=ranks, **given)
    if 0 < len(trained) < len(optimized):
        return both.finding("parameters", "some", of=len(optimized), **given)
    if trained:
        initial = alike(both.first[0].start(0), both.resumed[0].start(0), trained)
        return both.finding("parameters", "initial" if initial else "other", **given)
    kind = "statistics" if all(name.endswith(STATISTICS) for name in names) else "buffers"
    if not {name.partition(".")[0] for name in names} & {name.partition(".")[0] for name in optimized}:
        kind = "average"
    return both.finding("parameters", kind, **given)


def optimizer(both: Both) -> Finding:
    """Whether the optimizers' state is that which was saved."""
    found, first = both.unlike("states"), both.expected(0)
    if found is None or first is None:
        return both.finding("optimizer", "not_seen")
    if not found:
        return both.finding("optimizer", "same" if first.states else "none")
    ranks = sorted({rank for rank, *_ in found})
    lost = [(name.partition(".")[2], was, now) for _, name, was, now in found]
    kind, given = describe_lost(lost)
    return both.finding("optimizer", "some_ranks" if len(ranks) < len(both.resumed) else kind, ranks=ranks,
                        where=both.loaded_by, **given)


def describe_lost(lost: list[tuple[str, str, str]]) -> tuple[str, dict[str, Any]]:
    """A kind of finding on what an optimizer has lost, and its values; ``key.parameter``, then and now."""
    keys = list(dict.fromkeys(name.partition(".")[0] for name, *_ in lost))
    _, was, now = next((one for one in lost if not one[0].startswith("step.")), lost[0])
    types, kind = (was.partition(" ")[0], now.partition(" ")[0]), "other"
    if all(not each or each.endswith(ZERO) for *_, each in lost):
        kind = "empty"
    elif keys == ["step"]:
        kind = "steps"
    elif now and types[0] != types[1]:
        kind = "dtype"
    return kind, dict(keys=keys, was=was, now=now, was_type=types[0], now_type=types[1], count=len(lost),
                      names=list_first([name for name, *_ in lost], 3))


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
            return both.finding("files", "one_path", path=path, ranks=sorted(writers), where=line)
    for how, (killed, mended, error) in both.torn.items():
        of = sorted({by.updates for _, by in find_loaded(killed, mended)})
        said = "it begins afresh" if not of else "what it loaded is of update " + listed(of)
        if error or len(of) != 1:
            return both.finding("files", "torn", how=how, error=error or said, where=both.saved_by)
    return both.finding("files", "whole" if both.torn else "apart")


def examples(both: Both) -> Finding:
    """Whether the resumed run takes the examples that the uninterrupted one takes, in its order."""
    if both.other_count and both.asked.script.global_batch is None:
        return both.finding("examples", "own_batch")
    known, held = both.keys, both.held
    if len(known) < len(RUNS):
        return both.finding("examples", "no_loader")
    usual, now = known["first"], known["resumed"][:both.after]
    if not now:
        return both.finding("examples", "none")
    if not all(usual) or not all(now):
        return both.finding("examples", "not_distinguished")
    first = trained(both.resumed[0])[0]
    given = dict(taken=_times(now).total(), where=first.line, sampler=first.sampling.name)
    padded = max(one.sampling.padded for record in (*both.first, *both.resumed) for one in trained(record))
    ordered = usual == known["second"][:len(usual)]
    at = _first_apart(now, usual[held:], padded if both.other_count else 0)
    if ordered and at is None:
        return both.finding("examples", "same", **given)
    twice, never, until = _miscounted(both, now)
    given |= dict(twice=twice, never=never, total=_times(usual[:until]).total(), until=until)
    if not ordered:
        floor = (_times(usual[:until]) - _times(known["second"][:until])).total()
        kind = "unseeded_lost" if twice > floor else "unseeded"
        return both.finding("examples", kind if until in (*both.epochs, both.made) else "unseeded_part", **given)
    kind, place = _place(both, usual, now, at or 0)
    given |= dict(update=held + (at or 0) + 1, where_from=place if kind == "accumulation" else place + 1)
    of_order = kind in ("begins_anew", "epoch", "other_epoch", "order")
    cause = "generator" if of_order and not first.sampling.settable and not first.iterable else ""
    if kind == "order":
        cause, kind = cause or "own_order", "order" if twice else "order_alone"
    return both.finding("examples", kind, cause=cause, **given)


def _times(course: list[list[list]]) -> Counter:
    """How often each example was taken."""
    return Counter(key for ranks in course for rank in ranks for key in rank)


def _first_apart(now: list, usual: list, padded: int = 0) -> int | None:
    """The first place at which two courses differ, by more than so many examples that only one of them has, as far as
    both go; None where they do not."""
    return next((at for at, (one, other) in enumerate(zip(now, usual)) if one != other and not (padded and (
        _times([one]) - _times([other]) + (_times([other]) - _times([one]))).total() <= padded)), None)


def _miscounted(both: Both, now: list) -> tuple[int, int, int]:
    """How many examples are taken more often than without the stop, and less often, up to the end of the last epoch
    that was seen; and the updates by then."""
    end = both.held + len(now)
    until = max((one for one in both.epochs if both.held < one <= end), default=end)
    before = both.keys["stopped" if both.keys["first"] != both.keys["second"] else "first"][:both.held]
    found, usual = _times(before + now[:until - both.held]), _times(both.keys["first"][:until])
    return (found - usual).total(), (usual - found).total(), until


def _place(both: Both, usual: list, now: list, at: int) -> tuple[str, int]:
    """A kind of finding, and the update at which the uninterrupted run has the examples that follow ``at``."""
    held, epochs = both.held + at, both.epochs
    begin = epochs[max(0, bisect_right(epochs, held) - 1)]
    end = next((one for one in epochs if one > held), both.made)
    places = _places(usual, now[at:])
    if both.passes and not at and not places:
        return "accumulation", both.passes
    for kind, place in (("position", begin), ("epoch", held - begin), ("begins_anew", 0), ("rest_left_out", end)):
        if place in places and place != held:
            return kind, place
    near = [place for place in places if begin <= place < end]
    if near:
        return ("left_out" if near[0] > held else "repeated"), near[0]
    return ("other_epoch", places[0]) if places else ("order", 0)


def _places(course: list, part: list) -> list[int]:
    """The places of a course at which its next elements are the first of the part."""
    some = part[:ENOUGH]
    return [at for at in range(len(course) - len(some) + 1) if some and course[at:at + len(some)] == some]


def schedule(both: Both) -> Finding:
    """Whether rates and schedules go on where they were."""
    (usual, positions), (now, places) = _course(both.first[0], both.made), _course(both.resumed[0], both.after)
    if not now:
        return both.finding("schedule", "none")
    held, steps, at = both.held, both.resumed[0].updates, _first_apart(now, usual[both.held:])
    if at is not None:
        scheduled = any(places[-1])
        begin = 0 if scheduled else at
        found = _places(positions, places) if scheduled else _places(usual, now[at:])
        shift = (found or [held + begin])[0] - held - begin
        kind = "rate" if found and scheduled and not at else "other"
        if shift:
            kind = "shifted" if found[0] else "begins_anew"
        was, rate = float(usual[held + at][0]), float(now[at][0])
        return both.finding("schedule", kind, update=held + at + 1, was=was, now=rate, by=_apart(was, rate), limit=1e-6,
                            shift=abs(shift), side="ahead" if shift > 0 else "behind", where=steps[at].line)
    if places[0] != positions[held]:
        return both.finding("schedule", "flat", was=sum(positions[held]), now=sum(places[0]), where=steps[0].line)
    return both.finding("schedule", "same" if len({*usual}) > 1 else "constant")


def _course(record: Record, end: int) -> tuple[list[tuple[str, ...]], list[tuple[int, ...]]]:
    """Rates, and schedules' positions, of each update up to the end, of all optimizers."""
    updates = [*zip(*(each.updates for each in record.optimizers))][:end]
    return ([tuple(f"{rate:.6g}" for one in each for rate in one.rates) for each in updates],
            [tuple(place for one in each for place in one.positions) for each in updates])


def _apart(one: float, other: float) -> float:
    return abs(one - other) / max(abs(one), abs(other))


def loss_scale(both: Both) -> Finding:
    """Whether gradients are scaled by what they were."""
    usual, now = both.first[0].scales, both.resumed[0].scales[:both.after]
    if {*usual} <= {1.0}:
        return both.finding("loss scale", "none")
    if (at := _first_apart(now, usual[both.held:])) is None:
        return both.finding("loss scale", "same")
    return both.finding("loss scale", "begins_anew" if now[at] == usual[0] else "other", update=both.held + at + 1,
                        was=usual[both.held + at], now=now[at], where=both.loaded_by)


def random_numbers(both: Both) -> Finding:
    """Whether random draws go on where they were, or are some of those before the checkpoint once more."""
    again, same, unseeded, moved = set[str](), set[str](), set[str](), set[str]()
    for rank in range(min(len(both.first), len(both.resumed))):
        before, usual = both.draws("first", rank, 0, both.held), both.draws("first", rank, both.held)
        second, now = both.draws("second", rank, both.held), both.draws("resumed", rank, 0)
        drawn = {(name, one.before[name]) for one in before for name in one.moved - {OWN}}
        moved |= {name for one in (*before, *usual, *now) for name in one.moved} - {OWN}
        uses = [(name, (name, one.before[name]) in drawn) for one in now for name in one.moved - {OWN}]
        again |= {name for name, _ in uses if uses.count((name, True)) > uses.count((name, False))}
        same |= same_stream([usual, now])
        unseeded |= moved - same_stream([usual, second])
    seeds = [[one.seed for one in trained(run[0]) if one.seed is not None] for run in (both.first, both.resumed)]
    epoch = bisect_right(both.epochs, both.held) - 1
    if any(record.drew_in_workers for record in both.first) and all(seeds) and 0 < epoch < len(seeds[0]):
        again |= {"loader workers"} if seeds[1][0] in seeds[0][:epoch] else set()
        same |= {"loader workers"} if seeds[1][0] == seeds[0][epoch] else set()
        moved |= {"loader workers"}
    elif not moved and not any(record.drew_in_workers for record in both.first):
        return both.finding("random numbers", "none")
    if not moved - same:
        return both.finding("random numbers", "same")
    names = listed(sorted(OF.get(name, name) for name in again - same or moved - same))
    kind = "unseeded" if moved - same <= unseeded else ("other", "own_count")[both.other_count]
    where = next((one.line for one in passes_of(both.resumed[0].updates)), "")
    return both.finding("random numbers", "replayed" if again - same else kind, names=names, where=where)


def saved_values(both: Both) -> Finding:
    """Whether later checkpoints are saved at the same updates, with the same counters, best values and averages."""
    usual, second, now = (_saves(run, shift) for run, shift in (
        (both.first, 0), (both.second, 0), (both.resumed, both.held)))
    end = both.held + both.after
    later = sorted(at for at in {*usual, *now} if both.held < at < end or at == end and at in usual and at in now)
    common = sum(at in usual and at in now for at in later)
    for update in later:
        exact, was, noise, found = both.exact_at(update), *(one.get(update, {}) for one in (usual, second, now))
        extra, fewer = (sorted(one.keys() - other.keys()) for one, other in ((found, was), (was, found)))
        if exact and was.keys() == noise.keys() and (extra or fewer):
            keys = {**was, **found}[(extra or fewer)[0]].keys()
            kind = "other_time" if any(keys == by.values.keys() for _, by in both.loaded) else "other_reason"
            kind = "other_name" if extra and fewer else kind
            return both.finding("saved values", kind, common=common, update=update, now=(extra or ["nothing"])[0],
                                was=(fewer or ["nothing"])[0], where=both.saved_by)
        for path in was.keys() & noise.keys() & found.keys():
            before = usual.get(both.held, {}).get(path, {})
            apart = [name for name, value, other in unlike(was[path], found[path]) if noise[path].get(name) == value
                     and other and not OF_GENERATORS.search(name) and (
                         exact or _counts_alike(name, value) or before.get(name) == value and _far_apart(value, other))]
            if apart:
                value, other = was[path][apart[0]], found[path][apart[0]]
                kind = "tensors" if " " in value else "other"
                return both.finding("saved values", kind, common=common, update=update, path=path, name=apart[0],
                                    names=list_first(apart[1:], 3), was=value, now=other, where=both.saved_by)
    return both.finding("saved values", "same" if common else "none", common=common)


def _counts_alike(name: str, value: str) -> bool:
    """Whether a value is the same whatever the parameters are: a counter or word that is part of no list."""
    return not (" " in value or "." in value or "e" in value.lower()) and not re.search(r"(^|\.)\d+(\.|$)", name)


def _far_apart(was: str, now: str) -> bool:
    """Whether a value is a number, and far from what it was."""
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
                return both.finding("printed", "other", compared=compared, update=both.held + at, was=was[0],
                                    now=got[0])
    return both.finding("printed", "same" if compared else "none", compared=compared)


def updates(both: Both) -> Finding:
    """Whether the resumed run makes the updates that are left, and with the parameters of the uninterrupted run."""
    made, left = min(record.made for record in both.resumed), both.made - both.held
    given = dict(left=left, now=made, where=both.loaded_by)
    if not made:
        return both.finding("updates", "none", **given)
    ends = all(record.state == ENDED for record in both.first)
    if ends and made != left or made < left and all(record.state == ENDED for record in both.resumed):
        return both.finding("updates", "more" if made > left else "fewer", **given)
    if both.other_count:
        return both.finding("updates", "as_many" if ends else "as_many_so_far", **given)
    first, second, now = ([update.digest_after for update in run[0].updates] for run in (
        both.first, both.second, both.resumed))
    apart, noise = _first_apart(now[:both.after], first[both.held:]), _first_apart(first, second)
    if apart is None:
        return both.finding("updates", "same" if ends else "same_so_far", **given)
    kind = "apart" if noise is None or noise > both.held + apart else "noise"
    return both.finding("updates", kind, update=both.held + apart + 1, noise=(noise or 0) + 1, **given)
