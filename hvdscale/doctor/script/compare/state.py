"""Parameters and buffers on the ranks, and batch-norm's statistics."""
from __future__ import annotations

import numpy as np

from ....formatting.numbers import counted, list_first, listed, number
from ...finding import Finding, Verdict
from .pair import Pair, apart
from .shards import is_joined

PARAMETERS, BATCH_NORM = "parameters", "batch-norm"
ALIKE = 0.15            # of a factor of parameters, which the last step has changed as well, relative
LOCAL_STEPS = ("ranks take steps of their own, and their parameters are averaged (local SGD): another algorithm than "
               "on one worker; right if that is meant")


def parameters(pair: Pair) -> Finding:
    """Whether all ranks start from the same parameters and buffers, and keep the same parameters."""
    looked_at = f"on {pair.workers} ranks before each of {counted(pair.updates, 'update')}"
    sharded = [record.sharded for record in pair.records if record.sharded]
    if sharded and pair.updates and is_joined(pair.records):
        return _parts(pair, f"{sharded[0]} keeps each part of them on one rank, so that none can differ by rank")
    if sharded or not pair.updates:
        return Finding(PARAMETERS, Verdict.UNSEEN, f"{sharded[0]} divides them among the ranks" if sharded else
                       "the optimizer made no update on some rank")
    again = averaged(pair)
    if again is not None and len({update.digest for update in pair.at(0)}) == 1:
        return _averaged(pair, again, looked_at)
    apart_at = [at for at in range(pair.updates) if len({update.digest for update in pair.at(at)}) > 1]
    if apart_at:
        return _different(pair, apart_at[0], looked_at)
    untaken = pair.many[0].untaken
    if untaken and not pair.optimizer:
        return Finding(PARAMETERS, Verdict.WARNED, looked_at,
                       f"no optimizer has {list_first(untaken, 3)}, which have a gradient",
                       cause="the optimizer was made before modules were added, replaced or wrapped; right if they are "
                             "meant to stay as they are", remedy="make the optimizer last", where=pair.at(0)[0].line)
    untrained = different_untrained(pair)
    if untrained:
        return Finding(PARAMETERS, Verdict.WARNED, looked_at,
                       "before the first batch, buffers or frozen parameters differ by rank: "
                       f"{list_first(untrained, 3)}",
                       cause="they are drawn, computed or copied by rank, and nothing broadcasts them, such as a "
                             "teacher that is copied before DistributedDataParallel wraps the student",
                       remedy="make them from the wrapped module, broadcast them, or seed them alike")
    return Finding(PARAMETERS, Verdict.PASSED, f"{looked_at}: the same, bit by bit")


def _parts(pair: Pair, looked_at: str) -> Finding:
    """Whether anything but the optimizer wrote the parameters of some ranks only, where each has its own part."""
    ranks = [pair.steps(record).updates for record in pair.many]
    trained = [at for at, updates in enumerate(ranks) if any(one.digest != one.digest_after for one in updates)]
    for after in range(1, pair.updates):
        written = [at for at in trained if ranks[at][after].digest != ranks[at][after - 1].digest_after]
        if written and len(written) < len(trained):
            return Finding(PARAMETERS, Verdict.FAILED, looked_at,
                           f"between update {after} and {after + 1} something wrote them on rank {listed(written)} "
                           "alone", cause="a write on some ranks only, such as loading a checkpoint",
                           remedy="do it on all ranks", where=ranks[written[0]][after].line)
    return Finding(PARAMETERS, Verdict.PASSED, f"{looked_at}; between {counted(pair.updates, 'update')} nothing wrote "
                   "those of some ranks only")


def _different(pair: Pair, at: int, looked_at: str) -> Finding:
    updates = pair.at(at)
    by = max(apart(updates[0].parameters, each.parameters) for each in updates)
    if at:
        cause, remedy = _why_they_drift(pair, at)
        return Finding(PARAMETERS, Verdict.FAILED, looked_at,
                       f"the same at first; before update {at + 1} they differ by rank", by=by, limit=0.0,
                       cause=cause, remedy=remedy, where=pair.at(at - 1)[0].line)
    return Finding(PARAMETERS, Verdict.FAILED, looked_at, "the ranks start from different parameters", by=by, limit=0.0,
                   cause="each rank draws its own (another seed a rank, or none), and nothing broadcasts rank 0's, "
                         "or not after they were loaded",
                   remedy="wrap the model in DistributedDataParallel, which broadcasts them, or dist.broadcast each; "
                          "under Horovod, hvd.broadcast_parameters", where=updates[0].line)


def _why_they_drift(pair: Pair, at: int) -> tuple[str, str]:
    """The cause of parameters that were one before the last update and differ now, and what to do."""
    first, *others = pair.at(at - 1)
    if any(each.rates != first.rates or not np.array_equal(each.gradient, first.gradient) for each in others):
        return ("the ranks take different gradients, or different learning rates",
                "see the checks 'gradient' and 'learning rate'")
    if all(each.digest_after == first.digest_after for each in others):
        return ("after the step they were the same: something writes parameters on some ranks only, such as loading "
                "a checkpoint or averaging weights", "do it on all ranks, or broadcast the parameters afterwards")
    return ("gradients and learning rates are the same: the optimizers' states or settings differ by rank, such as "
            "momentum that one rank has loaded", "load or broadcast the optimizer's state on all ranks")


def averaged(pair: Pair) -> int | None:
    """The first update before which parameters that the step before had moved apart are the same on all ranks."""
    return next((at for at in range(1, pair.updates) if len({update.digest_after for update in pair.at(at - 1)}) > 1
                 and len({update.digest for update in pair.at(at)}) == 1), None)


def _averaged(pair: Pair, at: int, looked_at: str) -> Finding:
    """Of parameters that are averaged in place of gradients."""
    mean = sum(update.parameters for update in pair.at(at - 1)) / pair.workers
    now, where = pair.at(at)[0].parameters, pair.at(at - 1)[0].line
    factor = float(now @ mean / max(mean @ mean, 1e-300))
    if abs(factor / pair.workers - 1) < ALIKE:
        return Finding(PARAMETERS, Verdict.FAILED, looked_at,
                       f"before update {at + 1} they are {number(factor)} times the mean of what the ranks had",
                       cause="the parameters of the ranks are summed", remedy="divide them by the number of workers",
                       where=where)
    return Finding(PARAMETERS, Verdict.WARNED, looked_at,
                   f"they differ by rank after update {at}, and are the same before update {at + 1}",
                   cause=LOCAL_STEPS, remedy="else average the gradients before each step", where=where)


def different_untrained(pair: Pair) -> list[str]:
    """Buffers and frozen parameters that all ranks have, each its own."""
    found = [record.untrained or {} for record in pair.many]
    return sorted(name for name in found[0] if all(name in each for each in found) and len(
        {each[name] for each in found}) > 1)


def batch_norm(pair: Pair) -> Finding:
    """Whether batch-norm's statistics in training depend on the number of workers."""
    many = sorted({size for record in pair.many for size in record.batch_norms})
    if not many:
        return Finding(BATCH_NORM, Verdict.NOT_APPLICABLE, "no batch-norm with statistics of a rank's own ran in "
                       "training")
    one = sorted(pair.one.batch_norms)
    if one == many:
        return Finding(BATCH_NORM, Verdict.PASSED, f"statistics over {listed(many)} examples, on one worker and on "
                       f"{pair.workers}")
    return Finding(BATCH_NORM, Verdict.WARNED, "the number of examples that batch-norm normalizes together",
                   f"statistics are over {listed(one)} examples on one worker, and over "
                   f"{listed(many)} on each of {pair.workers}",
                   cause="batch-norm takes the mean and variance of a rank's local batch, and one global batch has "
                         "smaller local ones on more workers",
                   remedy="SyncBatchNorm.convert_sync_batchnorm(model), or keep the local batch fixed; "
                          "hvdscale.modules has batch-norm over fixed groups")
