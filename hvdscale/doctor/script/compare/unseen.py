"""What was not checked, and why; and what depends on the number of workers without being a fault."""
from __future__ import annotations

from ....formatting.numbers import counted
from ..record import Record
from .evaluation import rounds_of
from .examples import filled_up, notes_of_loader
from .pair import Pair, trained
from .reduction import only_call
from .scale import comparable
from .streams import by_rank


def notes(pair: Pair) -> list[str]:
    """One sentence for each legitimate dependence on the number of workers."""
    found = notes_of_loader(pair.many[0], pair.workers)
    if not found and (repeated := filled_up(pair)):
        found.append(f"the last batches of an epoch repeat {counted(repeated, 'example')}, so that {pair.workers} "
                     "ranks have the same number; how many depends on the number of workers")
    rates = [record.updates[0].rates for record in (pair.one, pair.many[0])]
    if pair.batch is None and rates[0] == rates[1]:
        found.append(f"the learning rate is the same on {pair.workers} workers as on one; if the batch grows with the "
                     "workers, it usually grows, too")
    if by_rank(pair):
        found.append("examples are augmented by the generator of the rank that reads them, so no other number of "
                     "workers sees the same ones")
    if pair.batch is not None and all(trained(record) for record in (pair.one, *pair.many)) and (
            pair.keys(pair.many, 0) and not pair.same_examples):
        found.append(f"on {pair.workers} workers the examples come in another order than on one, from another "
                     "sampler or seed")
    found += [f"{each.examples:,} examples of an evaluation divide by {pair.workers} workers; on a number by which "
              "they do not, DistributedSampler would count some twice"
              for each in rounds_of(pair.many)[:1] if _may_pad(each)]
    return found


def _may_pad(each) -> bool:
    sampling = [one.sampling for rank in each.ranks for one in rank]
    return all(one.replicas and not one.padded and not one.left_out and not one.drops_last for one in sampling)


def unseen(pair: Pair) -> list[str]:
    """What these two runs cannot show, each in one sentence."""
    found = [remark for remark in dict.fromkeys(one for record in pair.many for one in record.remarks)]
    passes = [one for record in pair.many for optimizer in record.optimizers for update in optimizer.updates
              for one in update.passes]
    if pair.batch is None:
        found.append("whether both runs make the same updates: that needs one global batch, --batch 32 and {local} "
                     "where the local batch is in the script's arguments")
    elif not comparable(pair):
        found.append(f"whether the first update is the same on one worker: {_incomparable(pair)}")
    if any(one.iterable for record in pair.many for one in record.iterations):
        found.append("which examples an IterableDataset holds beyond those that were read, and whether ranks share "
                     "them out without gaps")
    seen = all(map(trained, pair.records))
    if seen and trained(pair.one)[0].data != trained(pair.many[0])[0].data and not trained(pair.one)[0].iterable:
        found.append("what the ranks' own data sets hold beyond the examples that were read, and whether these are "
                     "prepared alike")
    if not seen:
        found.append("which examples were trained on: they come from no DataLoader")
    if not all(map(only_call, passes)):
        found.append("how the loss weighs examples or tokens: a pass has none, or several, of torch's loss functions")
    if any(len(trained(record)) < 2 for record in pair.many):
        found.append("the second epoch, which the script did not begin")
    found += _of_evaluation(pair)
    return found


def _of_evaluation(pair: Pair) -> list[str]:
    rounds = rounds_of(pair.many)
    if not rounds:
        return [f"evaluation: there was none in {counted(pair.updates, 'update')}"]
    sizes = {batch.examples for rank in rounds[0].ranks for one in rank for batch in one.batches}
    uneven = ", as a mean of the batches' means is only right for batches of one size" if len(sizes) > 1 else ""
    return [f"what a metric is, and how it is averaged over batches{uneven}"]


def _incomparable(pair: Pair) -> str:
    if any(record.sharded for record in pair.records):
        return "its parameters are divided among the ranks"
    if not pair.same_start:
        return "the two runs start from different parameters; seed the script, and not by the number of workers"
    if not pair.keys(pair.many, 0) or not pair.keys([pair.one], 0):
        return "its examples are not known"
    if not pair.same_examples:
        return "it takes other examples"
    if pair.drew:
        return "random numbers enter it (dropout, augmentation)"
    return "batch-norm mixes the examples of a rank"


def files_written(one: list[str], records: list[Record]) -> list[str]:
    """Files that were written outside of the working folder's copy."""
    return sorted({*one, *(path for record in records for path in record.written)})
