"""The runs of a script that is stopped and started again, and all checks of what that starts from and of its course."""

import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from itertools import chain
from pathlib import Path

import numpy as np

from ...errors import UsageError
from ...formatting.numbers import list_first, listed
from ...formatting.screen import wrap
from ...system.files import scratch_folder
from ...watch.remarks import OWN
from ...watch.runner import ENDED, FAILED, ScriptRequest
from ..finding import (OF_RESTARTS, STATISTICS, Finding, Verdict, describe_lost, describe_tensors, trace_cause, unlike)
from ..script.compare.pair import Pair, apart, batches_of, passes_of, trained
from ..script.compare.state import OF, same_stream
from ..script.examine import SHOWN, ScriptJudged, instead_of
from ..script.record import (LOADED, OPTIMIZER, READ, SAVED, WRITTEN, FileUse, GeneratorUse, Iteration, Record, least,
                             uses, written_outside)
from ..script.runs import Run, checked, find_error, make_workplace, run_ranks

RANK = "hvdscale.doctor.resume.listen"
BEYOND = 2                  # updates that the resumed run may make beyond the end of the uninterrupted one
# of each rank, beside the request; no epoch is cut short. stop_at: after so many updates. most: updates at most; 0: so
# many ``after`` the first checkpoint, or the update ``stop``. kill_in: where in the first save after ``save`` it ends
TASK = {"updates": 1 << 60, "stop_at": 0, "most": 0, "kill_in": 0, "save": 0}
FAR, LIMIT = 0.1, 1e-6      # relative differences
ENOUGH = 3                  # updates by which a place in a course is recognized, and a stream of random numbers
SEEDS = "loader workers"    # a name as of a generator
OF_GENERATORS = re.compile(r"(?i)rng|random|seed|generator")           # judged by the draws
OF_LISTS = re.compile(r"(^|\.)\d+(\.|$)")


@dataclass(frozen=True, kw_only=True)
class ResumeRequest(ScriptRequest):
    again: str              # arguments that the script gets as well when it is started again
    stop: int               # the update after which it is stopped
    how: str                # the signal: kill, term, int or usr1
    workers: int            # of all runs but the last
    then: int               # workers of that
    in_save: bool = False
    in_place: bool = False


@dataclass
class Both:
    """The runs, a record a rank; what is compared begins with the update on whose state the loaded checkpoint holds."""

    asked: ResumeRequest
    first: Sequence[Record]                 # without a stop
    written: Sequence[str]                  # by that
    left: Collection[str]                   # checkpoints that were there before, and are left out of the copies
    second: Sequence[Record] = ()           # as the first; missing, as all that follow, where nothing was saved
    stopped: Sequence[Record] = ()
    stop_at: int = 0                        # the update after which that was stopped
    resumed: Sequence[Record] = ()
    error: str = ""                         # what that ended with
    # by where a run was killed while it saved: its records, those of the run after it, its error
    torn: Mapping[str, tuple[list[Record], list[Record], str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for records in (self.first, self.second, self.stopped, self.resumed):
            leave_skipped(records, self.first)
        self.finding = partial(OF_RESTARTS.finding, about=self)       # its words know what this has
        self.again, self.other_count = self.asked.again, self.asked.then != self.asked.workers
        self.loaded = find_loaded(self.stopped, self.resumed)
        self.passes = max((by.passes for _, by in self.loaded), default=0)      # before the save, of the next update
        self.made, self.stop = least(self.first), max(self.stop_at, least(self.stopped))
        # the updates whose result the loaded checkpoint holds: those after which the stopped run had the parameters
        # that the resumed run starts with; else those before the loaded file was written
        files = max((by.updates for _, by in self.loaded), default=0)
        begin = [one.digest for record in self.resumed[:1] for one in record.updates[:1]]
        updates = [update for record in self.stopped[:1] for update in record.updates]
        digests = [*(one.digest for one in updates[1:]), *(one.digest_after for one in updates[-1:])]
        same = [at for at, one in enumerate(digests, 1) if one in begin]
        self.held = min(same, key=lambda at: abs(at - files), default=files)
        self.left_over, self.redone = self.made - self.held, max(0, self.stop - self.held)
        self.after = max(0, min(least(self.resumed), self.left_over))       # updates that both have made
        self.ends = all(record.state == ENDED for record in self.first)
        self.epochs = sorted({one.updates for one in trained(self.first[0])})      # the updates before each of them
        saves = [*(by for _, by in self.loaded), *uses(self.stopped, SAVED)[::-1]]
        self.saved_by = next((save.line for save in saves if save.line), "")
        self.loaded_by = next((one.line for one, _ in self.loaded if one.line), "")

    def keys(self, records: Sequence[Record]) -> list[list] | None:
        """For each update of a run, what identifies the examples of all ranks, without their order if the number of
        ranks changes. Empty where they are unknown; None where some rank has no loader."""
        if not all(map(trained, records)):
            return None
        pair, order = Pair(records[0], [*records], None), partial(sorted, key=repr) if self.other_count else list
        return [order(chain(*pair.keys(pair.many, at))) for at in range(pair.updates)]


def find_loaded(stopped: Sequence[Record], resumed: Sequence[Record]) -> list[tuple[FileUse, FileUse]]:
    """What a run loaded before its first update, and how the one before had last written it or its folder: what was
    saved by a function for checkpoints, else any file."""
    found = [(one, max(by, key=lambda each: (each.act == SAVED, each.updates)))
             for one in uses(resumed, LOADED) + uses(resumed, READ) if not one.updates and (
                 by := [each for each in uses(stopped, SAVED, WRITTEN) if f"{one.path}/".startswith(f"{each.path}/")])]
    return [both for both in found if both[1].act == SAVED] or found


def leave_skipped(records: Sequence[Record], usual: Sequence[Record]) -> None:
    """Take the batches away that a loop leaves out as it resumes: what it has by its first update beyond what a run
    from the beginning has. A run that was ended may have read ahead."""
    for record, other in zip(records, [*usual] * len(records)):
        for iteration in trained(record)[-1:] if record.state != ENDED else ():
            iteration.ended = False
        (at, own), (_, begun) = (max([(-1, 0), *(one for update in each.updates[:1] for one in (
            update.passes[0].fetched.items() if update.passes else ()))]) for each in (record, other))
        if at >= 0 and own > begun > 0:
            del record.iterations[at].batches[:own - begun]
            for one in (one for update in record.updates for one in update.passes if at in one.fetched):
                one.fetched[at] -= own - begun


def carry_out(asked: ResumeRequest, place: Path, say: Callable[[str], None], name: str, what: str,
              stopped: Run | None = None, left: Collection[str] = (), **task: int) -> tuple[Run, str]:
    """A run in a new folder below ``place``, without the files that are to be left out, or again in the folder of one
    that was stopped; and the error of a rank that failed, or of a run that was late. All ranks' records have one digest
    of each tensor that was divided among them."""
    if stopped:
        workplace, arguments = stopped.workplace, (*asked.arguments, *shlex.split(asked.again))
        asked = replace(asked, workers=asked.then, arguments=arguments)
    else:
        workplace = make_workplace(Path.cwd(), place / name / "folder")
        if not workplace.copied and not asked.in_place:
            raise UsageError(OF_RESTARTS.sentence("refused", "large"))
        for path in left if workplace.copied else ():
            (workplace.folder / path).unlink(missing_ok=True)
    say(f"running {asked.script} {what}")
    run = run_ranks(asked, asked.workers, place / name, workplace, RANK, after=asked.updates, **TASK | task)
    for starts in zip(*(record.starts for record in run.records)):
        for part in starts[0].parts:
            whole = np.fmax.reduce([start.parts.get(part, np.nan) for start in starts])
            digest = blake2b(whole, digest_size=8).hexdigest() if whole.any() else 0
            for one in starts:
                one.values[part] = f"{one.values[part].partition(' ')[0]} {digest}"
    failed = run.late or any(record.state == FAILED for record in run.records)
    return run, str(find_error(asked, run) or "") if failed else ""


def run_all(asked: ResumeRequest, place: Path, say: Callable[[str], None]) -> Both:
    """Run the script four times; raises ScriptError where it fails before it is stopped, and UsageError for files that
    several runs would share. Without a checkpoint in the first run there is no other."""
    run = partial(carry_out, asked, place, say)
    first = checked(asked, run("first", "uninterrupted")[0])
    absolute = {use.path for use in uses(first.records, SAVED) if os.path.isabs(use.path)}
    outside = sorted(absolute | written_outside(first.records))
    if outside and not asked.in_place:
        raise UsageError(OF_RESTARTS.sentence("refused", "outside", paths=outside[:3]))
    if left := _loaded_of(first.records, first.workplace.before):
        run = partial(run, left=left)
        first = checked(asked, run("afresh", "uninterrupted, without its checkpoints")[0])
    both = Both(asked, first.records, first.written, left)
    saves, made = sorted({(one.updates, one.passes) for one in uses(both.first, SAVED) if one.updates}), both.made
    if not saves:
        return both
    stop = next((at for at, passes in saves if passes), max(asked.stop, saves[0][0]))
    second = checked(asked, run("second", "a second time", most=made)[0])
    stopped, _ = run("stopped", f"to update {stop}", stop_at=stop, most=stop + 2 * asked.updates)
    newest = max((use.updates for use in uses(stopped.records, SAVED)), default=0)
    resumed, error = run("resumed", "again", stopped, most=max(1, made - newest + (BEYOND if both.ends else 0)))
    for each in (second, stopped):
        if again := _loaded_of(each.records, {*first.workplace.before, *absolute}):
            raise UsageError(OF_RESTARTS.sentence("refused", "left", paths=again[:3]))
    torn, at = {}, next((updates for updates, _ in saves[1:]), saves[0][0])
    for number, where in enumerate(("in the middle of a file", "between two files"), 1) if asked.in_save else ():
        killed, _ = run(f"torn{number}", f"and killing it {where}", kill_in=number, save=at, most=made)
        mended, error_after = run(f"mended{number}", "again", killed, most=1)
        torn[where] = killed.records, mended.records, error_after
    return replace(both, second=second.records, stopped=stopped.records, stop_at=stop, resumed=resumed.records,
                   error=error, torn=torn)


def _loaded_of(records: list[Record], before: Collection[str]) -> list[str]:
    """Checkpoints that a run loaded before its first update: what it also writes, and was there before it."""
    used = uses(records, SAVED, WRITTEN)
    folders = {os.path.dirname(one.path) for one in used if one.act == SAVED} - {""}
    loaded = {use.path for use in uses(records, LOADED, READ) if not use.updates} & {*before}
    loaded -= {one.path for one in used if not one.updates}
    return sorted(path for path in loaded if os.path.dirname(path) in folders or any(path == one.path for one in used))


def load(both: Both, check: str) -> Finding:
    """What the resumed run loaded, and whether that is what was saved last."""
    loaded = [by for _, by in both.loaded if by.act == SAVED]
    newer = [one for one in uses(both.stopped, SAVED) if one.path and any(
        one.values.keys() == by.values.keys() for by in loaded) and all(one.updates > by.updates for by in loaded)]
    newest, lost = sorted(newer, key=lambda one: one.updates)[-1:], not both.loaded and not both.held
    kinds = {"error": both.error, "no_save": not both.stopped, "nothing": lost and both.again, "perhaps_nothing": lost,
             "old": newest, "newest": True}
    return both.finding(check, kinds, newer=[one.path for one in newest], newest=[one.updates for one in newest])


def files(both: Both, check: str) -> Finding:
    """Whether ranks write to one path, and whether what a kill leaves behind can be loaded."""
    lines = {use.path: use.line for use in uses(both.first, SAVED) if use.path}
    for one in uses(both.first, WRITTEN):
        ranks = [record.rank for record in both.first if any(
            (one.path, one.updates) == (other.path, other.updates) for other in uses([record], WRITTEN))]
        if one.path in lines and len(ranks) > 1:
            return both.finding(check, "one_path", path=one.path, ranks=ranks, where=lines[one.path])
    for how, (killed, mended, error) in both.torn.items():
        of = sorted({by.updates for _, by in find_loaded(killed, mended)})
        if error or len(of) != 1:       # the error is of the rank that failed first, whichever that was
            return both.finding(check, "torn", how=how, error=error.partition(": ")[2], of=of)
    return both.finding(check, "whole" if both.torn else "apart")


def state(both: Both, check: str) -> Finding:
    """Whether the first update starts from the tensors, or optimizers' states, that were saved: as the stopped run had
    them, else the uninterrupted one where that is as the second one. What each rank has of its own, such as statistics
    of its batches, counts on the first alone."""
    starts = []
    for rank, record in enumerate(both.resumed):
        was, usual, second = (run[0 if both.other_count else rank].start(both.held) for run in (
            both.stopped, both.first, both.second))
        known = usual and second and usual.values == second.values
        starts.append((was or (usual if known else None), record.start(0)))
    divided = any(record.sharded and not any(start.parts for start in record.starts) for record in both.first)
    if both.other_count and divided or not all(map(all, starts)):
        return both.finding(check, "not_seen")
    was, now = ([{name.removeprefix(OPTIMIZER): value for name, value in one.values.items()
                  if name.startswith(OPTIMIZER) == (check == "optimizer")} for one in each] for each in zip(*starts))
    found = [(rank, *one) for rank, each in enumerate(zip(was, now)) for one in unlike(*each, missing=True)
             if was[0].get(one[0], one[1]) == one[1] and not (both.passes and one[0].endswith(STATISTICS))]
    ranks, lost = sorted({rank for rank, *_ in found}), [one for _, *one in found]
    saved = {value: name for _, by in both.loaded for name, value in by.values.items()}
    kind, given = describe_lost(lost) if check == "optimizer" else describe_tensors(
        lost, both.resumed[0].optimized, both.first[0].start(0).values, saved)
    alone = len(ranks) < len(was) and all(each.get(name) == was[0].get(name) for each in was for name, *_ in lost)
    others = check == "optimizer" and both.first[0].optimized and not both.resumed[0].optimized
    kinds = {"other_tensors": others, "same": not kind and was[0], "none": not kind, "some_ranks": alone, kind: True}
    return both.finding(check, kinds, ranks=ranks, **given)


def course(both: Both, check: str) -> Finding:
    """Whether each update has, by name, what that of its number has without the stop."""
    held = both.held
    usual, second, now = (courses_of(run[0])[check] for run in (both.first, both.second, both.resumed))
    places, begun = ([sum(update.positions) if check == "schedule" else 0 for update in run[0].updates]
                     for run in (both.first, both.resumed))
    now, begun = now[:both.after], begun[:both.after]
    if not any(usual) or not now:
        return both.finding(check, "none")
    at, noise = (first_apart(*each, unlike) for each in ((usual[held:], now), (usual, second)))
    if at is None:
        return both.finding(check, "same" if begun[0] == places[held] else "flat", was=places[held], now=begun[0])
    found, begin = (places_of(places, begun), held) if any(begun) else (places_of(usual, now[at:]), held + at)
    shift = (found or [begin])[0] - begin
    kinds = {"noise": noise is not None and noise <= held + at, "begins_anew": shift and not found[0],
             "shifted": shift, "rate": found and any(begun) and not at, "other": True}
    _, was, one = unlike(usual[held + at], now[at])[0]
    by = apart(*np.array([[was], [one]])) if isinstance(was, float) else None
    return both.finding(check, kinds, update=held + at + 1, was=was, now=one, by=by, limit=LIMIT, shift=abs(shift),
                        side="ahead" if shift > 0 else "behind", noise=(noise or 0) + 1)


def courses_of(record: Record) -> dict[str, list[dict]]:
    """By check, for each update the values by name."""
    rates = [dict(enumerate(float(f"{rate:.6g}") for one in each for rate in one.rates))
             for each in zip(*(optimizer.updates for optimizer in record.optimizers))]
    scales = [update.passes[-1].scale if update.passes else 1.0 for update in record.updates]
    printed: list[dict[str, str]] = [{} for _ in range(record.made + 1)]
    for made, text in reversed(record.printed):
        printed[made][text.split()[0]] = text           # the first number that is printed after each word
    return {"schedule": rates, "loss scale": [{"": scale} for scale in scales if {*scales} != {1.0}],
            "printed": printed[1:], "updates": [{"": update.digest_after} for update in record.updates]}


def first_apart(one: list, other: list, differs: Callable) -> int | None:
    """The first place at which two courses differ, as far as both go; None where they do not."""
    return next((at for at, both in enumerate(zip(one, other)) if differs(*both)), None)


def places_of(whole: list, part: list) -> list[int]:
    """The places of a course at which its next elements are the first of the part."""
    some = part[:ENOUGH]
    return [at for at in range(len(whole) - len(some) + 1) if some and whole[at:at + len(some)] == some]


def updates(both: Both, check: str) -> Finding:
    """Whether the resumed run makes the updates that are left, and with the parameters of the uninterrupted run."""
    made, left, ended = least(both.resumed), both.left_over, all(one.state == ENDED for one in both.resumed)
    kinds = {"none": not made, "more": both.ends and made > left, "fewer": (both.ends or ended) and made < left,
             "as_many": both.other_count}
    return both.finding(check, kinds, now=made) if any(kinds.values()) else course(both, check)


def examples(both: Both, check: str) -> Finding:
    """Whether the resumed run takes the examples that the uninterrupted one takes, in its order."""
    held, runs = both.held, [*map(both.keys, (both.first, both.second, both.stopped, both.resumed))]
    usual, second, stopped, now = (run or [] for run in runs)
    now = now[:both.after]
    kinds = {"own_batch": both.other_count and both.asked.global_batch is None, "no_loader": None in runs,
             "none": not now, "not_distinguished": not all(usual + now)}
    if any(kinds.values()):
        return both.finding(check, kinds)
    first, ordered, end = trained(both.resumed[0])[0], usual == second[:len(usual)], held + len(now)
    padded = max(one.sampling.padded for record in (*both.first, *both.resumed) for one in trained(record))

    def differ(one: list, other: list) -> bool:
        """But for padding: how far the last update is filled up depends on the number of workers."""
        apart = (Counter(one) - Counter(other)).total() + (Counter(other) - Counter(one)).total()
        return one != other and not (both.other_count and apart <= padded)
    at = first_apart(usual[held:], now, differ)
    until = max((one for one in both.epochs if held < one <= end), default=end)     # of the last whole epoch
    found = Counter(chain(*(usual if ordered else stopped)[:held], *now[:until - held]))
    whole, whole_again = (Counter(chain(*run[:until])) for run in (usual, second))
    twice, never = (found - whole).total(), (whole - found).total()
    given = dict(taken=sum(map(len, now)), where=first.line, sampler=first.sampling.name, until=until,
                 total=whole.total(), twice=twice, never=never)
    kinds = {"same": ordered and at is None, "unseeded_part": not ordered and until not in (*both.epochs, both.made),
             "unseeded_lost": not ordered and twice > (whole - whole_again).total(), "unseeded": not ordered}
    if any(kinds.values()):
        return both.finding(check, kinds, **given)
    kind, place = _place(both, usual, now, at)
    usual_epoch, epoch = (loop_of(*one).sampling.epoch for one in ((both.first[0], held + at), (both.resumed[0], at)))
    is_given = epoch is not None and usual_epoch not in (None, epoch)
    kinds = {"given_epoch": kind in ("order", "epoch") and is_given, "order_alone": kind == "order" and not twice,
             kind: True}
    drawn = kind in ("begins_anew", "epoch", "other_epoch", "order") and not (
        first.sampling.settable or first.iterable or is_given)
    return both.finding(check, kinds, cause="generator" if drawn else "", update=held + at + 1, begun=place + 1,
                        was=usual_epoch, now=epoch, **given)


def _place(both: Both, usual: list[list], now: list[list], at: int) -> tuple[str, int]:
    """A kind of finding, and the update at which the uninterrupted run has the examples that follow ``at``."""
    held, epochs, places = both.held + at, both.epochs, places_of(usual, now[at:])
    if both.passes and not at and not places:
        return "accumulation", both.passes - 1
    begin = max((epoch for epoch in epochs if epoch <= held), default=epochs[0])
    end = min((epoch for epoch in epochs if epoch > held), default=both.made)
    within = [("left_out" if place > held else "repeated", place) for place in places if begin <= place < end]
    kinds = [("position", begin), ("epoch", held - begin), ("begins_anew", 0), ("rest_left_out", end), *within,
             *(("other_epoch", place) for place in places)]
    return next((kind for kind in kinds if kind[1] in places and kind[1] != held), ("order", 0))


def random_numbers(both: Both, check: str) -> Finding:
    """Whether random draws are those of the uninterrupted run, of before the checkpoint again, or of another rank."""
    found: dict[str, set[str]] = {"replayed": set(), "alike": set(), "other": set(), "unseeded": set(), "same": set()}
    held, end = both.held, both.held + (1 if both.other_count else ENOUGH)
    draws = [(_draws(first, 0, held), _draws(first, held, end), _draws(second, held, end),
              _draws(resumed, 0, end - held)) for first, second, resumed in zip(both.first, both.second, both.resumed)]
    for before, usual, second, now in draws:
        drawn = {(name, one.before.get(name)) for one in before for name in one.moved}
        by_seed, as_first = same_stream([usual, second]), same_stream([draws[0][3], now])
        for name in {name for one in (*before, *usual, *now) for name in one.moved} - {OWN}:
            again = [(name, one.before.get(name)) in drawn for one in now if name in one.moved]
            kinds = {"same": name in same_stream([usual, now]), "replayed": 2 * sum(again) > len(again),
                     "alike": name in as_first - same_stream([draws[0][1], usual]), "other": name in by_seed}
            found[next((kind for kind, is_so in kinds.items() if is_so), "unseeded")].add(name)
    kind, names = next((item for item in found.items() if item[1]), ("none", ()))
    where = next((one.line for one in passes_of(both.resumed[0].updates)), "")
    kinds = {"own_count": kind == "other" and both.other_count, kind: True}
    return both.finding(check, kinds, names=listed(sorted(OF.get(name, name) for name in names)), where=where)


def _draws(record: Record, begin: int, end: int) -> list[GeneratorUse]:
    """What a rank drew in these updates, in reading and in passes; seeds of loader workers are as of one more."""
    found, batches = [], batches_of(record, record.updates)
    for at, update in enumerate(record.updates[begin:end], begin):
        found += [one.draws for one in batches[at] if one.draws]
        found += [one for each in update.passes for one in (each.prepared, each.draws)]
        if record.drew_in_workers:
            found.append(GeneratorUse({SEEDS: f"{loop_of(record, at).seed}"}, frozenset({SEEDS})))
    return found


def loop_of(record: Record, at: int) -> Iteration:
    """The iteration over a loader that the update of this number had its last batch from."""
    return record.iterations[max([0, *(number for one in record.updates[at].passes for number in one.fetched)])]


def saved_values(both: Both, check: str) -> Finding:
    """Whether later checkpoints are saved at the same updates, with the same counters, best values and averages."""
    held, end, unsure = both.held, both.held + both.after, None
    usual, second, now = (_saves(*run) for run in ((both.first, 0), (both.second, 0), (both.resumed, held)))
    later = sorted(at for at in {*usual, *now} if held < at < end or at == end and at in usual and at in now)
    given = dict(common=sum(at in usual and at in now for at in later))
    pairs = enumerate(zip(both.first[0].updates[held:], both.resumed[0].updates), held + 1)
    exact_at = {at: not both.other_count and was.digest_after == one.digest_after for at, (was, one) in pairs}
    for at in later:
        exact, was, noise, found = exact_at[at], *(one.get(at, {}) for one in (usual, second, now))
        extra, fewer = (sorted(one.keys() - other.keys()) for one, other in ((found, was), (was, found)))
        if was.keys() == noise.keys() and (extra or fewer):
            keys = {**was, **found}[(extra or fewer)[0]].keys()
            kinds = {"own_reason": not exact, "other_name": extra and fewer,
                     "other_time": any(keys == by.values.keys() for _, by in both.loaded), "other_reason": True}
            one = both.finding(check, kinds, update=at, now=[*extra, "nothing"][0], was=[*fewer, "nothing"][0], **given)
            if exact:
                return one
            unsure = unsure or one
        for path in was.keys() & noise.keys() & found.keys():
            past = [usual[before][path] for before in sorted(usual) if before <= held and path in usual[before]]
            apart = [one for one in unlike(was[path], found[path]) if noise[path].get(one[0]) == one[1] and (
                not OF_GENERATORS.search(one[0])) and (exact or _is_lost(both, at, past, *one))]
            if apart:
                name, value, other = apart[0]
                kinds = {"tensors": " " in value, "other": True}
                return both.finding(check, kinds, update=at, path=path, name=name, was=value, now=other,
                                    names=list_first([name for name, *_ in apart[1:]], 3), **given)
    kinds = {"none": not given["common"], "same": all(map(exact_at.get, later)), "same_numbers": True}
    return unsure or both.finding(check, kinds, **given)


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
    found: dict[int, dict[str, dict[str, str]]] = {}
    for one in uses(reversed(records), SAVED):
        if one.path and one.updates:
            found.setdefault(one.updates + shift, {})[one.path] = one.values
    return found


CHECKS: dict[str, Callable[[Both, str], Finding]] = {
    "load": load, "files": files, "parameters": state, "optimizer": state, "schedule": course, "loss scale": course,
    "examples": examples, "random numbers": random_numbers, "saved values": saved_values, "printed": course,
    "updates": updates}


def examine(asked: ResumeRequest, say: Callable[[str], None], checks: Collection[str]) -> ScriptJudged:
    """Run the script, and compare; raises ScriptError and UsageError as run_all does."""
    with scratch_folder() as place:
        return judge(run_all(asked, Path(place), say), checks)


def judge(both: Both, checks: Collection[str]) -> ScriptJudged:
    loaded, judged, why = load(both, "load"), {*CHECKS}, ""
    if loaded.verdict != Verdict.PASSED and not loaded.differs.startswith("a checkpoint"):
        judged, why = ({"load", "files"}, "no_load") if both.stopped else ({"load"}, "no_save")
    elif not all(record.updates for record in both.resumed):
        judged, why = {"load", "files", "updates"}, "no_update"
    found = {check: examined(both, check) if check in judged else Finding(
        check, Verdict.UNSEEN, OF_RESTARTS.sentence("report", why)) for check, examined in CHECKS.items()}
    failed = [check for check, one in found.items() if one.verdict in (Verdict.FAILED, Verdict.WARNED)]
    for check, of in OF_RESTARTS.checks["explained"].items():
        causes = listed([one for one in failed if one in of["by"]])
        if causes and found[check].differs.startswith(of["begins"]):
            found[check] = Finding(check, Verdict.UNSEEN, f"{found[check].differs}: explained by {causes}")
    asked, instead = both.asked, instead_of(both.first)
    seen = {"stopped_after": both.stop, "held": both.held, "redone": both.redone} if both.stopped else {}
    about = {"script": asked.script, "arguments": asked.arguments, "again": both.again, "workers": asked.workers,
             "then": asked.then, "updates": both.made, "how": asked.how, **seen, "instead": instead,
             "written": both.written}
    headline = OF_RESTARTS.sentence("report", "headline", both, **about | {
        "asked": asked.stop, "moved": both.stop_at != asked.stop, "then": asked.then if both.other_count else None})
    met = {"written": both.written and not asked.in_place, "left": both.left, "unseen": True}
    left = OF_RESTARTS.sentences("report", None, met, paths=list_first(both.written, SHOWN),
                                 checkpoints=list_first(both.left, SHOWN))
    findings = tuple(trace_cause(found[check], [*found.values()], OF_RESTARTS.checks["explains"]) for check in checks)
    return ScriptJudged(findings, about, [" ".join([headline, *instead]), *map(wrap, left)], OF_RESTARTS.checks["must"])
