"""What the resumed run starts from: its checkpoint, parameters and buffers, the optimizers' state, and files."""
from __future__ import annotations

from ...formatting.numbers import list_first, listed
from ..finding import Finding
from ..script.compare.state import STATISTICS
from .both import Both, find_loaded
from .record import SAVED, WRITTEN

LOAD, PARAMETERS, OPTIMIZER, FILES = "load", "parameters", "optimizer", "files"
ZERO = " 0"             # what Start.states has of zeros


def load(both: Both) -> Finding:
    """What the resumed run loaded, and whether that is what was saved last."""
    if both.runs.resumed.error:
        return both.finding(LOAD, "error", error=both.runs.resumed.error, where=both.loaded_by)
    if not both.loaded and not both.held:
        return both.finding(LOAD, "nothing" if both.runs.asked.again else "perhaps_nothing", where=_last_save(both))
    newer = _newer(both)
    if newer:
        return both.finding(LOAD, "old", newer=newer[1], newest=newer[0], where=both.loaded_by)
    return both.finding(LOAD, "newest")


def _last_save(both: Both) -> str:
    return next((one.line for record in both.runs.stopped for one in record.uses(SAVED)[::-1]), "")


def _newer(both: Both) -> tuple[int, str] | None:
    """The update and path of a checkpoint of the same keys that is newer than the one which was loaded."""
    keys = {frozenset(by.values) for _, by in both.loaded if by.act == SAVED}
    saves = [(one.updates, one.path) for record in both.runs.stopped for one in record.uses(SAVED)
             if one.path and frozenset(one.values) in keys]
    last = max((by.updates for _, by in both.loaded), default=0)
    return max((one for one in saves if one[0] > last), default=None)


def parameters(both: Both) -> Finding:
    """Whether parameters, buffers and averages are those that were saved."""
    if both.other_count and any(record.sharded for record in both.first):
        return both.finding(PARAMETERS, "sharded")
    found = [_different(both, rank) for rank in range(len(both.resumed))]
    if None in found:
        return both.finding(PARAMETERS, "not_seen")
    names = sorted({name for each in found for name in each or ()})
    if not names:
        return both.finding(PARAMETERS, "same")
    trained = [name for name in names if name in both.resumed[0].trained]
    some = [rank for rank, each in enumerate(found) if each]
    given = dict(names=list_first(trained or names, 3), count=len(trained or names), where=both.loaded_by)
    if len(some) < len(found) and not any(record.sharded for record in both.first):
        return both.finding(PARAMETERS, "some_ranks", ranks=some, **given)
    if trained:
        initial, now = both.first[0].start(0), both.resumed[0].start(0)
        fresh = all(initial and now and initial.tensors.get(name) == now.tensors.get(name) for name in trained)
        whole = len(trained) == len(both.resumed[0].trained)
        if not whole:
            return both.finding(PARAMETERS, "some", of=len(both.resumed[0].trained), **given)
        return both.finding(PARAMETERS, "initial" if fresh else "other", **given)
    models = {name.partition(".")[0] for name in both.resumed[0].trained}
    if all(name.partition(".")[0] not in models for name in names):
        return both.finding(PARAMETERS, "average", **given)
    return both.finding(PARAMETERS, "statistics" if all(name.endswith(STATISTICS) for name in names) else "buffers",
                        **given)


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
    found = [(rank, name, was, now.states.get(name, "")) for rank, (old, now) in enumerate(starts) if old and now
             for name, was in old.states.items() if now.states.get(name, "") != was]
    if not found:
        return both.finding(OPTIMIZER, "same" if any(old.states for old, _ in starts if old) else "none")
    ranks, keys = sorted({rank for rank, *_ in found}), list(dict.fromkeys(name.split(".")[1] for _, name, *_ in found))
    _, name, was, now = next((one for one in found if not one[1].split(".")[1] == "step"), found[0])
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
    saved: dict[tuple[str, int], set[int]] = {}
    for record in both.first:
        paths = {one.path: one.line for one in record.uses(SAVED) if one.path}
        for one in record.uses(WRITTEN):
            if one.path in paths:
                saved.setdefault((one.path, one.updates), set()).add(record.rank)
    shared = next(((path, ranks) for (path, _), ranks in saved.items() if len(ranks) > 1), None)
    if shared:
        line = next(one.line for one in both.first[0].uses(SAVED) if one.path == shared[0])
        return both.finding(FILES, "one_path", path=shared[0], ranks=sorted(shared[1]), where=line)
    for how, (torn, mended) in both.runs.torn.items():
        of = sorted({by.updates for _, by in find_loaded(torn, mended.records)})
        said = "it begins afresh" if not of else "what it loaded is of update " + listed(of)
        if mended.error or len(of) != 1:
            return both.finding(FILES, "torn", how=how, error=mended.error or said, where=_last_save(both))
    return both.finding(FILES, "whole" if both.runs.torn else "apart")
