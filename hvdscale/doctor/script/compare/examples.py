"""Which examples each rank trained on, of which split; the size of an epoch, and its order from epoch to epoch; and
whether an evaluation counts every example once, on all ranks together."""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from ....formatting.numbers import counted, percent
from ....watch.remarks import JOINED, JOINED_BY_ACTIVE, TENSOR_PARALLEL, WITHOUT_REPEATS
from ...finding import Choice, Finding, Verdict
from ..record import MOST_INDICES, Iteration, Record
from .pair import Pair, same_data, trained

EXAMPLES, EPOCHS, EVALUATION = "examples", "epochs", "evaluation"
SHARDS = "BatchSamplerShard"            # of accelerate
WHOLE = ("RandomSampler", "SequentialSampler")      # samplers that know nothing of ranks
BY_CHANCE = 4               # times as many equal contents on two ranks as on one, up to which data may repeat itself
Key = tuple[int, tuple[str, int]]       # of an evaluation: updates made before, data set


def examples(pair: Pair) -> Finding:
    """Whether the ranks took different examples, as many as one worker would."""
    if not all(map(trained, pair.records)):
        return _without_loader(pair)
    if splits := different_splits(pair):
        return splits
    loaders = dict.fromkeys(loop.data for loop in pair.loops)
    if len(loaders) > 1 and all({one.data for one in trained(record)} == {*loaders} for record in pair.records):
        found = {}
        for data in loaders:                    # of the runs as far as they train on each
            one, *many = (replace(record, iterations=[replace(one, trained=one.trained and one.data == data)
                                                      for one in record.iterations]) for record in pair.records)
            found[data] = examples(replace(pair, one=one, many=many))
        (name, size), worst = min(found.items(), key=lambda one: one[1].verdict == Verdict.PASSED)
        return replace(worst, differs=worst.differs and f"{name} of {size:,} examples: {worst.differs}")
    keys = [pair.keys(pair.many, number) for number in range(pair.updates)]
    if not all(keys):
        return pair.finding(EXAMPLES, "not_distinguished")
    first = trained(pair.many[0])[0]
    if any(record.sharded == TENSOR_PARALLEL for record in pair.many):          # ranks that have parts of one model
        alike = all(rank == ranks[0] for ranks in keys for rank in ranks)
        return pair.finding(EXAMPLES, "of_one_model" if alike else "of_parts", how=TENSOR_PARALLEL, where=first.made)
    contents = [batch.contents for batch in first.batches[:2]]
    if first.iterable and first.seed is not None and len(contents) == 2 and contents[0] == contents[1] and len(
            {*contents[0]}) > 1:        # a loader's workers, which give a batch each in turn, all read the same stream
        return pair.finding(EXAMPLES, "loader_workers", where=first.made)
    if fault := (_over_the_epoch(pair, first) or _shared(pair, first, keys) or _others(pair, first)
                 or _by_data_sets(pair, first)):
        return fault
    one, many = sum(pair.examples([pair.one], 0)), sum(pair.examples(pair.many, 0))
    if pair.batch is not None and one != many:
        return pair.finding(EXAMPLES, "other_batch", alone=one, together=many, where=first.made,
                            cause="divides" if many * pair.times == one else "not_all")
    other = next((at for at in range(pair.updates) if not pair.same_examples(at)), None)
    later = [one.updates for one in trained(pair.many[0])[1:]]
    if other and pair.batch is not None and other in later and not pair.drew_by(other):
        return pair.finding(EXAMPLES, "departs", update=other + 1, where=first.made)
    return pair.finding(EXAMPLES, "apart", drawn=_replaces(pair), as_on_one=pair.batch is not None and other is None)


def _others(pair: Pair, first: Iteration) -> Finding | None:
    """A warning, where the ranks' own data sets hold what is not in that of one worker."""
    if pair.known_by_index and first.data == trained(pair.one)[0].data or not all(one.held for one in pair.records):
        return None
    whole, held = {*pair.one.held}, [one for record in pair.many for one in record.held]
    others, parts = [one for one in held if one not in whole], {one.partition(".")[0] for one in whole}
    cause = "labels" if all(other.partition(".")[0] in parts for other in others) else "inputs"
    return pair.finding(EXAMPLES, "others", others=len(others), held=len(held), where=first.made,
                        cause=cause) if others else None


def _without_loader(pair: Pair) -> Finding:
    for at in range(pair.updates):
        first, *others = ([one.gradient for one in update.passes] for update in pair.at(at))
        if not any(each.any() for each in first) or not all(np.array_equal(first, each) for each in others):
            return pair.finding(EXAMPLES, "as_on_one" if pair.matches_one else "no_loader")
    return pair.finding(EXAMPLES, "same_gradients", where=pair.at(0)[0].passes[-1].line)


def _shared(pair: Pair, first: Iteration, keys: list[list[list]]) -> Finding | None:
    """A failed finding, where ranks took the same examples, in one update or in different ones of the first epoch."""
    firsts = [trained(record)[0].batches for record in pair.many]
    ranks = [pair.keys_of(batches[:min(map(len, firsts))]) for batches in firsts]       # of as many batches on each
    alone = pair.keys_of(trained(pair.one)[0].batches)
    twice, padded = _repeated(ranks), max(loop.sampling.padded for loop in pair.loops)
    same = all(Counter(map(str, each[0])) == Counter(map(str, other)) for each in keys for other in each)
    own = pair.same_data is False       # data sets of the ranks' own, which may have some example twice
    own_order = not same and (_replaces(pair) or not own and first.sampling.name in WHOLE)        # on each rank
    by_chance = 0 if pair.known_by_index else BY_CHANCE * max(len(each) - len({*each}) for each in (*ranks, alone))
    if own_order or twice <= max(padded, 2 * own, by_chance):
        return None
    taken, if_alike = pair.taken if same else sum(map(len, ranks)), pair.known_by_index and pair.same_data is None
    return pair.finding(EXAMPLES, "shared", same=same, twice=twice, of_all=taken, share=percent(twice / taken),
                        count=taken // pair.workers if same else None, if_alike=if_alike,
                        **_why_shared(pair, first, {"if_alike": if_alike}))


def _why_shared(pair: Pair, first: Iteration, causes: Choice) -> dict[str, object]:
    """Values of a finding on shared examples; ``causes`` go before those of all."""
    replicas = first.sampling.replicas
    given, own = replicas == pair.workers, pair.same_data is False
    return dict(where=first.made, sampler=first.sampling.name, of=pair.workers, others=None if given else replicas,
                cause={**causes, "stream": first.iterable, "order": own and given, "overlap": own,
                       "replacement": first.sampling.replacement, "replicas": replicas, "whole_set": True})


def _repeated(ranks: list[list]) -> int:
    return sum(count - 1 for count in Counter(key for each in ranks for key in {*each}).values())


def planned(record: Record, but_last: bool = False) -> list[int | str]:
    """The indices of the first training epoch, to its end, as far as its sampler gave them; else empty."""
    first = trained(record)[0]
    batches = [batch.ids for batch in first.batches] + first.rest
    known = not first.iterable and (first.ended or first.cut is not None)
    return [one for batch in batches[:len(batches) - but_last] for one in batch] if known else []


def _replaces(pair: Pair) -> bool:
    """Whether examples are drawn with replacement: the sampler is known to, or it shares out what has some twice on one
    worker."""
    alone, together = planned(pair.one), sum(len(planned(record)) for record in pair.many)
    return any(loop.sampling.replacement for loop in pair.loops) or len({*alone}) < len(alone) > together / 2


def filled_up(pair: Pair) -> int:
    """How many examples the ranks' last batches of the first epoch repeat, as accelerate's BatchSamplerShard fills them
    up so that all ranks have as many; 0 where others do, or some are left out."""
    if not all(map(trained, pair.records)) or not pair.known_by_index:
        return 0
    ranks, before = ([planned(record, but_last) for record in pair.many] for but_last in (False, True))
    earlier = sum(map(len, before)) > len(set().union(*before))         # some are repeated by other batches
    left_out = {*planned(pair.one)}.difference(*ranks)
    return sum(map(len, ranks)) - len(set().union(*ranks)) if all(before) and not earlier and not left_out else 0


def _over_the_epoch(pair: Pair, first: Iteration) -> Finding | None:
    """A failed finding, where a sampler shares the epoch out so that ranks have the same examples, or none has some."""
    ranks, alone = [planned(record) for record in pair.many], planned(pair.one)
    twice, never = _repeated(ranks), len({*alone}.difference(*ranks))
    unknown = not all(ranks) or not alone or not pair.known_by_index or _replaces(pair) or first.sampling.name in WHOLE
    if unknown or twice <= first.sampling.padded or all(each == ranks[0] for each in ranks) or filled_up(pair):
        return None
    seeds = first.sampling.replicas == pair.workers and len({*map(tuple, ranks)}) == pair.workers
    return pair.finding(EXAMPLES, "over_the_epoch", size=len({*alone}), twice=twice, never=never, **_why_shared(
        pair, first, {"seeds": seeds, "not_by_rank": not first.sampling.replicas}))


def _by_data_sets(pair: Pair, first: Iteration) -> Finding | None:
    """The finding on ranks whose data sets hold others at the same places, or have some in common beyond padding; that
    each go through the whole data set; or of which one leaves out batches that are followed by no pass of its own."""
    sampling, size, alone = first.sampling, first.data[1], trained(pair.one)[0]
    reading = (batch.draws for record in pair.records for one in trained(record) for batch in one.batches)
    drew = any(record.drew_in_workers for record in pair.records) or any(draws and draws.moved for draws in reading)
    if pair.same_data is False and sampling.replicas == pair.workers and first.data == alone.data and not (
            first.iterable or drew):
        return pair.finding(EXAMPLES, "reordered", cause="order", where=first.made)
    held = [_subset(record, trained(record)[0]) for record in pair.many]
    whole, own = frozenset().union(*held), _subset(pair.one, alone)
    twice = sum(map(len, held)) - len(whole)
    if all(held) and pair.known_by_index and len({*held}) > 1 and twice >= pair.workers:
        return pair.finding(EXAMPLES, "held", cause="overlap", where=first.made, held=sum(map(len, held)), twice=twice)
    if all(held) and own and pair.known_by_index and len(whole - own) >= pair.workers:
        return pair.finding(EXAMPLES, "more", more=len(whole - own), held=len(whole), alone=len(own), where=first.made)
    if sampling.name in WHOLE and sampling.length == size and not sampling.replacement and pair.same_data and (
            alone.data == first.data):
        return pair.finding(EXAMPLES, "whole", size=size, sampler=sampling.name, where=first.made)
    if (at := pair.skipped) is None:
        return None
    batches = [len(pair.batches(record, at)) for record in pair.many]
    return pair.finding(EXAMPLES, "skipped", batches=batches, update=at + 1, where=first.line)


def different_splits(pair: Pair) -> Finding | None:
    """A failed finding, where a sampler shares out by position what is another subset on each rank, or where one rank
    trains on what another one evaluates."""
    firsts = [trained(record)[0] for record in pair.many]
    training = [_subset(record, one) for record, one in zip(pair.many, firsts)]
    if pair.same_data is False or len({one.data for one in firsts}) > 1 or not all(training):
        return None
    leaked, first, own = _leaked(pair, training), firsts[0], training[0]
    other = next((each for each in training if each != own), None)
    if first.sampling.replicas == pair.workers and other is not None:
        return pair.finding(EXAMPLES, "split_by_rank", cause="" if own & other else "twice", data=first.data[0],
                            apart=len(own - other), size=len(own), where=first.made,
                            leaked=leaked and f", and {leaked}")
    return pair.finding(EXAMPLES, "leaked", data=first.data[0], leaked=leaked, where=first.made) if leaked else None


def _subset(record: Record, one: Iteration) -> frozenset[int]:
    """The indices of the subset that a loader has; empty for a whole data set, or for one too large to be kept."""
    indices = record.subsets[one.subset] if one.subset is not None else ()
    return frozenset(indices) if len(indices) < MOST_INDICES else frozenset()


def _leaked(pair: Pair, training: list[frozenset[int]]) -> str:
    """How many validation examples of one rank another one trains on, though it does not itself; empty if none."""
    for rank, record in enumerate(pair.many):
        data = trained(record)[0].data
        evaluated = {index for one in record.iterations if not one.trained and not one.listed and one.data == data
                     for index in _subset(record, one)}
        for other, trains in enumerate(training):
            common = evaluated & trains
            if common and not evaluated & training[rank]:
                return (f"{len(common):,} of rank {rank}'s {counted(len(evaluated), 'validation example')} are in rank "
                        f"{other}'s training set")
    return ""


def epochs(pair: Pair) -> Finding:
    """Whether an epoch has one size on all ranks and in both runs, and another order the second time."""
    return _sizes(pair) or _order(pair) if all(map(trained, pair.records)) else pair.finding(EPOCHS, "no_loader")


def _sizes(pair: Pair) -> Finding | None:
    ranks, alone = [planned(record) for record in pair.many], planned(pair.one)
    *firsts, whole = (trained(record)[0] for record in (*pair.many, pair.one))
    batches = [len(one.batches) + len(one.rest) for one in firsts]
    if not all(ranks):
        return None
    if max(batches) - min(batches) > 1:
        joins = {JOINED: "joined_divides", JOINED_BY_ACTIVE: "joined"}
        kind = next((joins[remark] for remark in pair.many[0].remarks if remark in joins), "uneven")
        own = len(ranks[0]) if len({*map(len, ranks)}) == 1 else None
        return pair.finding(EPOCHS, kind, batches=batches, own=own, where=firsts[0].line)
    together = sum(map(len, ranks))
    largest = max(len(ids) for one in (*firsts, whole) for ids in (*(batch.ids for batch in one.batches), *one.rest))
    if not alone or abs(together * pair.times - len(alone)) > pair.workers * pair.workers * largest or (
            len(alone) - together <= pair.workers * largest):
        return None
    first, shared = firsts[0], firsts[0].sampling.replicas == pair.workers
    causes = {"by_prepare": shared and first.sampling.name == SHARDS,
              "by_rank": shared and first.data[1] < whole.data[1], "smaller": True}
    return pair.finding(EPOCHS, "shared_twice", cause=causes, alone=len(alone), together=together, where=first.line)


def _order(pair: Pair) -> Finding:
    first, sampling = trained(pair.many[0])[0], trained(pair.many[0])[0].sampling
    if sampling.name == "SequentialSampler" and not first.iterable or sampling.shuffle is False and sampling.replicas:
        kind = "in_order_on_many" if trained(pair.one)[0].sampling.shuffle else "in_order"
        return pair.finding(EPOCHS, kind, sampler=sampling.name, where=first.made)
    both = [[one for one in trained(record) if one.data == trained(record)[0].data][:2] for record in pair.many]
    if min(map(len, both)) < 2:
        kept = [at for at in range(pair.updates) if not pair.batches(pair.many[0], at)]
        kinds = {"kept": first.ended and kept and kept == [*range(max(2, kept[0]), pair.updates)], "no_second": True}
        return pair.finding(EPOCHS, kinds, update=min(kept, default=0) + 1, where=first.line)
    begins = [[batch.ids or batch.contents for one in each for batch in one.batches[:1]] for each in both]
    if not all(len(each) == 2 and all(len(one) > 1 for one in each) for each in begins):
        return pair.finding(EPOCHS, "not_known")
    repeated = [rank for rank, (one, two) in enumerate(begins) if one == two]
    if not repeated:
        return pair.finding(EPOCHS, "another")
    ids = begins[repeated[0]][0]
    if first.iterable or all(isinstance(one, int) for one in ids) and len({*np.diff(ids)}) == 1:
        return pair.finding(EPOCHS, "alike")
    one, two = both[repeated[0]]
    epoch = two.sampling.epoch
    causes = {"late": one.sampling.epoch is None, "constant": one.sampling.epoch == epoch} if epoch is not None else {}
    return pair.finding(EPOCHS, "no_set_epoch" if sampling.settable else "repeats", count=len(repeated), ranks=repeated,
                        sampler=sampling.name, where=two.sampling.line or first.line, epoch=epoch, cause=causes)


@dataclass
class Round:
    """One evaluation of one data set."""
    key: Key
    ranks: list[list[Iteration]]        # the passes over loaders on each

    def __post_init__(self) -> None:
        every = [one for rank in self.ranks for one in rank]
        self.ended = all(one.ended or one.whole for one in every)
        self.examples = len(_taken(every))          # different ones that the ranks took together
        self.about = {"where": every[0].line, "takers": sum(map(bool, self.ranks))}

    def finding(self, pair: Pair, kind: str | Choice, **given) -> Finding:
        return pair.finding(EVALUATION, kind, **self.about | given)


def evaluation(pair: Pair) -> Finding:
    """The first fault of any evaluation that all ranks finished; else a passed finding."""
    if all(map(trained, pair.records)) and different_splits(pair):
        return pair.finding(EVALUATION, "splits")
    rounds = [each for each in rounds_of(pair.many) if each.ended]
    if not rounds:
        return pair.finding(EVALUATION, "none")
    of_training = {update.digest_after for record in pair.many for one in record.optimizers for update in one.updates}
    for each in rounds:
        last = [one for rank in each.ranks for one in rank[-1:] if one.buffers]
        if len({one.buffers for one in last}) > 1:
            return each.finding(pair, "statistics", cause={
                "own_average": all(one.models and not of_training.intersection(one.models) for one in last),
                "last_batch": all(record.broadcasts_buffers for record in pair.many)})
    trained_alike = all(len({one.digest for one in updates}) == len({one.digest_after for one in updates}) == 1
                        for optimizers in zip(*(record.optimizers for record in pair.many))
                        for updates in zip(*(optimizer.updates for optimizer in optimizers)))
    for each in rounds if trained_alike else ():
        models = {rank[-1].models for rank in each.ranks if rank}
        shared_out = any(len(_taken(rank)) < each.examples for rank in each.ranks if rank)
        if shared_out and len(models) > 1 and len({*map(len, models)}) == 1:
            return each.finding(pair, "other_parameters")
    alone = {each.key: each for each in rounds_of([pair.one]) if each.ended}
    for each in rounds:
        if same_data(pair.records, each.key[1]) is False:
            return _of_own_data(pair, each)
        others = [one for key, one in alone.items() if key[0] == each.key[0]]
        if each.key not in alone and others:            # of another data set
            return _of_own_data(pair, each, others[0])
        on_one = _taken(alone[each.key].ranks[0]) if each.key in alone else ()
        if fault := _fault(pair, each, set(on_one or range(each.key[1][1]))):
            return fault
    return rounds[0].finding(pair, "once", examples=rounds[0].examples)


def _taken(iterations) -> Counter:
    return Counter(one for iteration in iterations for batch in iteration.batches for one in batch.ids)


def rounds_of(records: list[Record]) -> list[Round]:
    """The evaluations of a run, in order."""
    rounds: dict[Key, list[list[Iteration]]] = {}
    for rank, record in enumerate(records):
        for one in record.iterations:
            if not (one.trained or one.listed or one.iterable) and one.batches and one.data[1] >= 0:
                rounds.setdefault((one.updates, one.data), [[] for _ in records])[rank].append(one)
    return [Round(key, ranks) for key, ranks in rounds.items()]


def _of_own_data(pair: Pair, each: Round, alone: Round | None = None) -> Finding:
    """The finding of ranks with validation sets of their own, which together may be that of one worker."""
    whole = next((one.examples for one in rounds_of([pair.one]) if one.key[0] == each.key[0] and one.ended), 0)
    rounds = [one for one in rounds_of(pair.many) if one.key[0] == each.key[0]]
    sizes = [sum(len(_taken(one.ranks[rank])) for one in rounds) for rank in range(pair.workers)]
    if sum(sizes) != whole or min(sizes) == 0 or any(
            _combining(record, one) for record, rank in zip(pair.many, each.ranks) for one in rank):
        return pair.finding(EVALUATION, "own_data") if alone is None else each.finding(
            pair, "other_data", size=each.key[1][1], alone=alone.key[1][1])
    return each.finding(pair, "own_share", rank=0, own=sizes[0], expected=whole, share=percent(sizes[0] / whole),
                        takers=pair.workers)


def _fault(pair: Pair, each: Round, expected: set) -> Finding | None:
    """Examples that the metric of a rank counts more often than others, or not at all, of those ``expected``."""
    size, rank = len(expected), next(rank for rank, iterations in enumerate(each.ranks) if iterations)
    combined = [(one, _combining(record, one)) for record, rounds in zip(pair.many, each.ranks) for one in rounds]
    total = _taken(one for one, calls in combined if calls)
    own = _taken(one for one in each.ranks[rank] if not _combining(pair.many[rank], one))
    if not total and len(own) < size:
        return each.finding(pair, "own_share", rank=rank, own=len(own), expected=size, share=percent(len(own) / size))
    total += own
    calls, least = [call for _, found in combined for call in found], min(total.values())
    twice = 0 if WITHOUT_REPEATS in calls else sum(count - least for count in total.values())
    left_out = len(expected - set(total))
    kinds = {"twice_if_kept": twice and any("gather" in call for call in calls), "twice": twice, "left_out": left_out}
    # the statement to edit makes the loader
    return each.finding(pair, kinds, twice=twice, left_out=left_out, expected=size, where=each.ranks[rank][0].made,
                        share=percent((twice or left_out) / size)) if twice or left_out else None


def _combining(record: Record, iteration: Iteration) -> list[str]:
    """Calls that combined the ranks' values after this pass over a loader, and before the next training batch."""
    last = iteration.batches[-1].number
    later = [batch.number for one in trained(record) for batch in one.batches if batch.number > last]
    return [call for number, call in record.combined if last <= number < min(later, default=record.fetched + 1)]
