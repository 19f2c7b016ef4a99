"""All checks of a script that is stopped and started again: what the resumed run starts from, and its course."""
from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from operator import ne
from typing import Any

import numpy as np

from ...formatting.lines import wrap
from ...formatting.numbers import list_first, listed
from ...watch.place import place_for
from ...watch.remarks import OWN
from ...watch.runner import ENDED
from ...workers.launch import Process
from ..finding import Finding, Verdict, trace_cause
from ..script.compare.pair import trained
from ..script.compare.reduction import apart, passes_of
from ..script.compare.state import OF, STATISTICS, same_stream
from ..script.examine import SHOWN, ScriptJudged, instead_of
from ..script.record import SAVED, WRITTEN, Record
from .runs import ENOUGH, KINDS, RUNS, Both, ResumeRequest, alike, find_loaded, least, loop_of, run_all, unlike

FAR, LIMIT = 0.1, 1e-6      # relative differences
OF_GENERATORS = re.compile(r"(?i)rng|random|seed|generator")           # judged by the draws
OF_LISTS = re.compile(r"(^|\.)\d+(\.|$)")
OF_GROUP = ".of group "     # in the name of a setting of an optimizer's parameters
ZERO = " 0"                 # how a description ends of a tensor of zeros
EXPLAINS = {"files": ("parameters", "optimizer"), "optimizer": ("schedule",), "saved values": ("updates",)}


def load(both: Both) -> Finding:
    """What the resumed run loaded, and whether that is what was saved last."""
    if both.error or not both.stopped:
        return both.finding("load", "error" if both.error else "no_save")
    if not both.loaded and not both.held:
        return both.finding("load", "nothing" if both.asked.again else "perhaps_nothing", where=both.saved_by)
    loaded = [by for _, by in both.loaded if by.act == SAVED]
    newer = [one for record in both.stopped for one in record.uses(SAVED) if one.path and any(
        one.values.keys() == by.values.keys() for by in loaded) and all(one.updates > by.updates for by in loaded)]
    for one in sorted(newer, key=lambda one: one.updates)[-1:]:
        return both.finding("load", "old", newer=one.path, newest=one.updates)
    return both.finding("load", "newest")


def files(both: Both) -> Finding:
    """Whether ranks write to one path, and whether what a kill leaves behind can be loaded."""
    lines = {one.path: one.line for record in both.first for one in record.uses(SAVED) if one.path}
    writers: dict[tuple[str, int], set[int]] = {}
    for record in both.first:
        for one in record.uses(WRITTEN):
            writers.setdefault((one.path, one.updates), set()).add(record.rank)
    for (path, _), ranks in writers.items():
        if path in lines and len(ranks) > 1:
            return both.finding("files", "one_path", path=path, ranks=sorted(ranks), where=lines[path])
    for how, (killed, mended, error) in both.torn.items():
        of = sorted({by.updates for _, by in find_loaded(killed, mended)})
        said = "what it loaded is of update " + listed(of) if of else "it begins afresh"
        if error or len(of) != 1:
            said = error.partition(": ")[2] or said                 # of the rank that failed first, whichever that was
            return both.finding("files", "torn", how=how, said=said, where=both.saved_by)
    return both.finding("files", "whole" if both.torn else "apart")


def state(both: Both, check: str, of: str, describe: Callable) -> Finding:
    """Whether the first update starts from the tensors, or optimizers' states, that were saved. What each rank has of
    its own, such as statistics of its batches, counts on the first alone."""
    starts = both.starts(both.held)
    if not starts:
        return both.finding(check, "not_seen")
    was = [getattr(each, of) for each, _ in starts]
    found = [(rank, *one) for rank, (_, now) in enumerate(starts) for one in unlike(was[rank], getattr(now, of))
             if was[0].get(one[0], one[1]) == one[1]]
    kind, given = describe(both, [one for _, *one in found])
    if not kind:
        return both.finding(check, "same" if was[0] else "none")
    ranks, names = sorted({rank for rank, *_ in found}), {name for _, name, *_ in found}
    if len(ranks) < len(was) and all(each.get(name) == was[0].get(name) for each in was for name in names):
        kind = "some_ranks"
    return both.finding(check, kind, ranks=ranks, **given)


def describe_tensors(both: Both, lost: list) -> tuple[str, dict[str, Any]]:
    """A kind of finding on what a model has lost, empty for nothing, and its values."""
    names = sorted({name for name, _, now in lost if now and not (both.passes and name.endswith(STATISTICS))})
    optimized = both.resumed[0].optimized
    parameters = [name for name in names if name in optimized]
    given = dict(names=list_first(parameters or names, 3), count=len(parameters or names), of=len(optimized))
    if parameters:
        held = {value.rpartition(" ")[2]: name for _, by in both.loaded for name, value in by.values.items()}
        taken = {name: held[now] for name, was, now in lost if name in parameters and {was, now} <= held.keys()}
        if len(taken) == len(parameters):
            return "exchanged", given | {"taken": taken[parameters[0]]}
        whole = "initial" if alike(both.first[0].start(0), both.resumed[0].start(0), parameters) else "other"
        return whole if len(parameters) == len(optimized) else "some", given
    if not {name.partition(".")[0] for name in names} & {name.partition(".")[0] for name in optimized}:
        return "average" if names else "", given
    return "statistics" if all(name.endswith(STATISTICS) for name in names) else "buffers", given


def describe_lost(lost: list) -> tuple[str, dict[str, Any]]:
    """The same of what an optimizer has lost; ``key.parameter``, then and now."""
    if not lost:
        return "", {}
    lost = [one for one in lost if OF_GROUP not in one[0]] or lost
    keys = list(dict.fromkeys(name.partition(".")[0] for name, *_ in lost))
    _, was, now = next((one for one in lost if not one[0].startswith("step.")), lost[0])
    types, kind = (was.partition(" ")[0], now.partition(" ")[0]), "other"
    if all(not each or each.endswith(ZERO) for *_, each in lost):
        kind = "empty"
    elif keys == ["step"]:
        kind = "steps"
    elif OF_GROUP in lost[0][0]:
        kind = "settings"
    elif now and types[0] != types[1]:
        kind = "dtype"
    return kind, dict(keys=keys, was=was, now=now, was_type=types[0], now_type=types[1],
                      names=list_first([name for name, *_ in lost], 3))


def course(both: Both, check: str, of: Callable[[Record], list[dict]], place: Callable = lambda update: 0) -> Finding:
    """Whether each update has, by name, what that of its number has without the stop; ``place``: its one in a
    schedule."""
    held = both.held
    usual, second, now = (of(run[0]) for run in (both.first, both.second, both.resumed))
    places, begun = ([place(update) for update in run[0].updates] for run in (both.first, both.resumed))
    now, begun = now[:both.after], begun[:both.after]
    if not any(usual) or not now:
        return both.finding(check, "none")
    at, noise = (first_apart(*each, differ) for each in ((usual[held:], now), (usual, second)))
    if at is None:
        return both.finding(check, "same" if begun[0] == places[held] else "flat", was=places[held], now=begun[0])
    found, begin = places_of(usual, now[at:]), held + at
    if any(begun):
        found, begin = places_of(places, begun), held
    shift = (found or [begin])[0] - begin
    kind = "rate" if found and any(begun) and not at else "other"
    if shift:
        kind = "shifted" if found[0] else "begins_anew"
    if noise is not None and noise <= held + at:
        kind = "noise"
    _, was, one = differ(usual[held + at], now[at])[0]
    by = apart(*np.array([[was], [one]])) if isinstance(was, float) else None
    kind = kind if kind in KINDS.checks[check] else "other"
    return both.finding(check, kind, update=held + at + 1, was=was, now=one, by=by, limit=LIMIT, shift=abs(shift),
                        side="ahead" if shift > 0 else "behind", noise=(noise or 0) + 1)


def differ(was: dict, now: dict) -> list[tuple]:
    """The values that both have and that are not alike: name, then and now."""
    return [one for one in unlike(was, now) if one[0] in now]


def first_apart(one: list, other: list, differs: Callable = ne) -> int | None:
    """The first place at which two courses differ, as far as both go; None where they do not."""
    return next((at for at, both in enumerate(zip(one, other)) if differs(*both)), None)


def places_of(whole: list, part: list) -> list[int]:
    """The places of a course at which its next elements are the first of the part."""
    some = part[:ENOUGH]
    return [at for at in range(len(whole) - len(some) + 1) if some and whole[at:at + len(some)] == some]


def rates_of(record: Record) -> list[dict]:
    return [{f"{at}.{group}": float(f"{rate:.6g}") for at, one in enumerate(each) for group, rate in enumerate(
        one.rates)} for each in zip(*(each.updates for each in record.optimizers))]


def scales_of(record: Record) -> list[dict]:
    found = [update.passes[-1].scale if update.passes else 1.0 for update in record.updates]
    return [{"": scale} for scale in found if {*found} != {1.0}]


def printed_of(record: Record) -> list[dict]:
    """By word the first number that each update's number was printed with, after it."""
    found: list[dict] = [{} for _ in range(record.made + 1)]
    for made, text in reversed(record.printed):
        found[made][text.split()[0]] = text
    return found[1:]


def updates(both: Both) -> Finding:
    """Whether the resumed run makes the updates that are left, and with the parameters of the uninterrupted run."""
    made, left = least(both.resumed), both.left_over
    kind = "" if made else "none"
    if made and (both.ends and made != left or made < left and all(one.state == ENDED for one in both.resumed)):
        kind = "more" if made > left else "fewer"
    if both.other_count:
        kind = kind or "as_many"
    return both.finding("updates", kind, now=made) if kind else course(
        both, "updates", lambda record: [{"": update.digest_after} for update in record.updates])


def examples(both: Both) -> Finding:
    """Whether the resumed run takes the examples that the uninterrupted one takes, in its order."""
    held = both.held
    usual, second, now = (both.keys.get(run, []) for run in ("first", "second", "resumed"))
    now = now[:both.after]
    unseen = {"own_batch": both.other_count and both.asked.script.global_batch is None,
              "no_loader": len(both.keys) < len(RUNS), "none": not now, "not_distinguished": not all(usual + now)}
    for kind in (kind for kind, is_so in unseen.items() if is_so):
        return both.finding("examples", kind)
    first, before = trained(both.resumed[0])[0], usual[:held]
    ordered, end = usual == second[:len(usual)], held + len(now)
    if not ordered:
        before = both.keys["stopped"][:held]
    padded = max(one.sampling.padded for record in (*both.first, *both.resumed) for one in trained(record))
    at = first_apart(usual[held:], now, partial(_apart_by_more, padded if both.other_count else 0))
    until = max((one for one in both.epochs if held < one <= end), default=end)     # of the last whole epoch
    found, whole = _count(before + now[:until - held]), _count(usual[:until])
    given = dict(taken=_count(now).total(), where=first.line, sampler=first.sampling.name, until=until,
                 total=whole.total(), twice=(found - whole).total(), never=(whole - found).total())
    if ordered and at is None:
        return both.finding("examples", "same", **given)
    if not ordered:
        kind = "unseeded_lost" if given["twice"] > (whole - _count(second[:until])).total() else "unseeded"
        return both.finding("examples", kind if until in (*both.epochs, both.made) else "unseeded_part", **given)
    kind, place = _place(both, usual, now, at or 0)
    given |= dict(update=held + (at or 0) + 1, begun=place + 1)
    loops = loop_of(both.first[0], held + (at or 0)), loop_of(both.resumed[0], at or 0)
    epochs, cause = [one.sampling.epoch for one in loops if one.sampling.epoch is not None], ""
    if kind == "order" and len({*epochs}) > 1:
        return both.finding("examples", "given_epoch", was=epochs[0], now=epochs[1], **given)
    if kind in ("begins_anew", "epoch", "other_epoch", "order") and not (first.sampling.settable or first.iterable):
        cause = "generator"
    if kind == "order":
        cause, kind = cause or "own_order", "order" if given["twice"] else "order_alone"
    return both.finding("examples", kind, cause=cause, **given)


def _count(course: list[list[list]]) -> Counter:
    """How often each example was taken."""
    return Counter(key for ranks in course for rank in ranks for key in rank)


def _apart_by_more(padded: int, one: list, other: list) -> bool:
    """Whether two updates have other examples, by more than so many that only one of them has."""
    each = [_count([one]), _count([other])]
    return one != other and not (padded and (each[0] - each[1] + (each[1] - each[0])).total() <= padded)


def _place(both: Both, usual: list, now: list, at: int) -> tuple[str, int]:
    """A kind of finding, and the update at which the uninterrupted run has the examples that follow ``at``."""
    held, epochs = both.held + at, both.epochs
    begin = epochs[max(0, bisect_right(epochs, held) - 1)]
    end = next((one for one in epochs if one > held), both.made)
    places = places_of(usual, now[at:])
    if both.passes and not at and not places:
        return "accumulation", both.passes - 1
    for kind, place in (("position", begin), ("epoch", held - begin), ("begins_anew", 0), ("rest_left_out", end)):
        if place in places and place != held:
            return kind, place
    for place in (place for place in places if begin <= place < end):
        return "left_out" if place > held else "repeated", place
    return ("other_epoch", places[0]) if places else ("order", 0)


def random_numbers(both: Both) -> Finding:
    """Whether random draws are those of the uninterrupted run, or most are of before the checkpoint once more, or those
    of another rank."""
    found: dict[str, set[str]] = {"replayed": set(), "alike": set(), "other": set(), "unseeded": set(), "same": set()}
    runs = (("first", 0, both.held), ("first", both.held), ("second", both.held), ("resumed",))
    draws = [[both.draws(run, rank, *of) for run, *of in runs] for rank, _ in enumerate(zip(both.first, both.resumed))]
    for before, usual, second, now in draws:
        drawn = {(name, one.before.get(name)) for one in before for name in one.moved}
        by_seed, as_first = same_stream([usual, second]), same_stream([draws[0][3], now])
        for name in {name for one in (*before, *usual, *now) for name in one.moved} - {OWN}:
            again = [(name, one.before.get(name)) in drawn for one in now if name in one.moved]
            kind = "other" if name in by_seed else "unseeded"
            if name in as_first - same_stream([draws[0][1], usual]):
                kind = "alike"
            if 2 * sum(again) > len(again):
                kind = "replayed"
            found["same" if name in same_stream([usual, now]) else kind].add(name)
    kind = next((kind for kind, names in found.items() if names), "none")
    names = listed(sorted(OF.get(name, name) for name in found.get(kind, ())))
    where = next((one.line for one in passes_of(both.resumed[0].updates)), "")
    kind = "own_count" if kind == "other" and both.other_count else kind
    return both.finding("random numbers", kind, names=names, where=where)


def saved_values(both: Both) -> Finding:
    """Whether later checkpoints are saved at the same updates, with the same counters, best values and averages."""
    usual, second, now = (_saves(run, shift) for run, shift in (
        (both.first, 0), (both.second, 0), (both.resumed, both.held)))
    end, unsure = both.held + both.after, None
    later = sorted(at for at in {*usual, *now} if both.held < at < end or at == end and at in usual and at in now)
    given = dict(common=sum(at in usual and at in now for at in later), where=both.saved_by)
    for update in later:
        exact, was, noise, found = both.exact_at(update), *(one.get(update, {}) for one in (usual, second, now))
        extra, fewer = (sorted(one.keys() - other.keys()) for one, other in ((found, was), (was, found)))
        if was.keys() == noise.keys() and (extra or fewer):
            kind = "other_name" if extra and fewer else "other_reason"
            keys = {**was, **found}[(extra or fewer)[0]].keys()
            if kind == "other_reason" and any(keys == by.values.keys() for _, by in both.loaded):
                kind = "other_time"
            one = both.finding("saved values", kind if exact else "own_reason", update=update,
                               now=(extra or ["nothing"])[0], was=(fewer or ["nothing"])[0], **given)
            if exact:
                return one
            unsure = unsure or one
        for path in was.keys() & noise.keys() & found.keys():
            past = [usual[at][path] for at in sorted(usual) if at <= both.held and path in usual[at]]
            apart = [one for one in differ(was[path], found[path]) if noise[path].get(one[0]) == one[1] and (
                not OF_GENERATORS.search(one[0])) and (exact or _is_lost(both, update, past, *one))]
            if apart:
                name, value, other = apart[0]
                kind = "tensors" if " " in value else "other"
                return both.finding("saved values", kind, update=update, path=path, name=name, was=value, now=other,
                                    names=list_first([name for name, *_ in apart[1:]], 3), **given)
    kind = "same" if all(map(both.exact_at, later)) else "same_numbers"
    return unsure or both.finding("saved values", kind if given["common"] else "none", **given)


def _is_lost(both: Both, update: int, past: list[dict], name: str, was: str, now: str) -> bool:
    """Whether a number is not what it should be, although parameters are not bit for bit what they were: an extreme
    that was reached moves on in its direction only, and a count by as much as without the stop."""
    try:
        then, one, *course = (float(each) for each in (was, now, *(each[name] for each in past if name in each)))
    except ValueError:
        return False
    whole, held = was.isdecimal() and not OF_LISTS.search(name), (course or [then + 1])[-1]
    if held != then:
        return whole and (not both.other_count or one == then - held or held * update == then * both.held)
    by, rises, falls = apart(*np.array([[one], [held]])), min(course) < held, max(course) > held
    if rises != falls:
        return by > LIMIT and (one < held) == rises
    return not both.other_count and (whole or by > FAR)


def _saves(records: list[Record], shift: int) -> dict[int, dict[str, dict[str, str]]]:
    """By update and path the values of what rank 0, or else another one, saved."""
    found: dict[int, dict[str, dict[str, str]]] = {}
    for record in reversed(records):
        for one in record.uses(SAVED):
            if one.path and one.updates:
                found.setdefault(one.updates + shift, {})[one.path] = one.values
    return found


CHECKS: dict[str, Callable[[Both], Finding]] = {
    "load": load, "files": files,
    "parameters": partial(state, check="parameters", of="tensors", describe=describe_tensors),
    "optimizer": partial(state, check="optimizer", of="states", describe=lambda both, lost: describe_lost(
        [(name.partition(".")[2], *each) for name, *each in lost])),
    "schedule": partial(course, check="schedule", of=rates_of, place=lambda update: sum(update.positions)),
    "loss scale": partial(course, check="loss scale", of=scales_of),
    "examples": examples, "random numbers": random_numbers, "saved values": saved_values,
    "printed": partial(course, check="printed", of=printed_of), "updates": updates}


@dataclass(frozen=True)
class ResumeExamination(ScriptJudged):
    """What was found of a script that was stopped and started again."""

    must = {"load": "the load of a checkpoint", "parameters": "the parameters after it",
            "examples": "the training examples"}

    both: Both
    findings: tuple[Finding, ...]

    @property
    def about(self) -> dict[str, object]:
        both, asked = self.both, self.both.asked
        seen = {"stopped_after": both.stop, "held": both.held, "redone": both.redone} if both.stopped else {}
        return {"script": asked.script.script, "arguments": asked.script.arguments, "again": asked.again,
                "workers": asked.workers, "then": asked.then, "updates": both.made, "how": asked.how, **seen,
                "instead": instead_of(both.first), "written": both.written, "verdict": self.verdict}

    def texts(self) -> list[str]:
        both, asked = self.both, self.both.asked
        headline = KINDS.sentence(
            "report", "headline", both, script=asked.script.script, workers=asked.workers, asked=asked.stop,
            then=asked.then if both.other_count else None, stop=both.stop, held=both.held,
            stopped=bool(both.stopped), moved=both.stop_at != asked.stop)
        written = [] if asked.in_place else both.written
        return [" ".join([headline, *instead_of(both.first)]), *(
            wrap(KINDS.sentence("report", name, both, paths=list_first(paths, SHOWN)))
            for name, paths in (("written", written), ("left", both.left)) if paths)]


def examine(asked: ResumeRequest, process: Process, say: Callable[[str], None],
            checks: Collection[str] = tuple(CHECKS)) -> ResumeExamination:
    """Run the script, and compare; raises ScriptError and UsageError as run_all does."""
    with place_for(process, asked.script.seconds) as place:
        both = run_all(asked, place, say)
    return ResumeExamination(both, compare(both, checks))


def compare(both: Both, checks: Collection[str]) -> tuple[Finding, ...]:
    loaded, judged, why = CHECKS["load"](both), {*CHECKS}, ""
    if loaded.verdict != Verdict.PASSED and not loaded.differs.startswith("a checkpoint"):
        judged, why = {"load", "files"} if both.stopped else {"load"}, "no_load" if both.stopped else "no_save"
    elif not all(record.updates for record in both.resumed):
        judged, why = {"load", "files", "updates"}, "no_update"
    found = {check: each(both) if check in judged else Finding(check, Verdict.UNSEEN, KINDS.sentence("report", why))
             for check, each in CHECKS.items()}
    failed = [check for check, one in found.items() if one.verdict in (Verdict.FAILED, Verdict.WARNED)]
    for check, of in KINDS.checks["explained"].items():
        causes = listed([one for one in failed if one in of["by"]])
        if causes and found[check].differs.startswith(of["begins"]):
            found[check] = Finding(check, Verdict.UNSEEN, f"{found[check].differs}: explained by {causes}")
    return tuple(trace_cause(found[check], [*found.values()], EXPLAINS) for check in checks)
