"""What the resumed run starts from: its checkpoint, parameters and buffers, the optimizers' state, and files."""
from __future__ import annotations

from ...formatting.numbers import list_first, listed
from ..finding import Finding
from ..script.compare.state import STATISTICS
from ..script.record import SAVED, WRITTEN
from .runs import Both, alike, find_loaded

LOAD, PARAMETERS, OPTIMIZER, FILES = "load", "parameters", "optimizer", "files"
ZERO = " 0"             # what Start.states has of zeros


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
