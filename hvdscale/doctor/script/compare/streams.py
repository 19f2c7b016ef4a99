"""Random numbers of the ranks: in the model, and in reading examples."""
from __future__ import annotations

from collections import Counter

from ....formatting.numbers import listed
from ....watch.remarks import OWN
from ...finding import Finding
from ..record import GeneratorUse, Record
from .pair import Pair, trained
from .reduction import passes_of

NAME = "random numbers"
OF = {"torch": "torch", "numpy": "numpy", "random": "Python's random", "cuda": "torch on the GPU"}


def random_numbers(pair: Pair) -> Finding:
    """Whether ranks that draw random numbers draw different ones."""
    passes = [list(passes_of(pair.steps(record).updates[:pair.updates])) for record in pair.many]
    model = [[one.draws for one in each] for each in passes]
    preparing = [[one.prepared for one in each if trained(record)] for record, each in zip(pair.many, passes)]
    reading = [_draws_in_reading(pair, record) for record in pair.many]
    moved = {name for ranks in (*model, *preparing, *reading) for draws in ranks for name in draws.moved}
    if not moved - {OWN} and not any(record.drew_in_workers for record in pair.many):
        return pair.finding(NAME, "own" if moved else "none")
    in_workers = _same_in_workers(pair)
    seeds = {tuple(one.seed for one in trained(record) if one.seed is not None) for record in pair.many}
    by_number = "by_number" if in_workers and len(seeds) > 1 else ""
    backward = next((one.line for one in pair.at(0)[0].passes), "") if pair.updates else ""
    loop = next((one.line for one in trained(pair.many[0])), "")
    for kind, same, where, cause in (
            # not by Python's generator, by which scripts and models decide for all
            ("model", same_stream(model) - {"random"}, backward, ""),
            # of examples from a loader, as others are drawn there, which ranks may share out
            ("preparing", same_stream(preparing) - {"random"}, backward, ""),
            ("reading", same_stream(reading), loop, by_number), ("reading", in_workers, loop, by_number)):
        if same:
            return pair.finding(NAME, kind, passes=len(model[0]), where=where, cause=cause,
                                in_loaders=same is in_workers, names=listed(sorted(OF[name] for name in same)))
    return pair.finding(NAME, "differ", passes=len(model[0]))


def by_rank(pair: Pair) -> bool:
    """Whether examples were augmented by the rank that read them."""
    reading = [_draws_in_reading(pair, record) for record in pair.many]
    drew = any(draws and draws.moved for ranks in reading for draws in ranks)
    drew_in_workers = any(record.drew_in_workers for record in pair.many)
    return drew and not same_stream(reading) or drew_in_workers and not _same_in_workers(pair)


def _same_in_workers(pair: Pair) -> set[str]:
    """Generators that most loader workers of all ranks first drew from in the same states."""
    ranks = [record.drew_in_workers for record in pair.many]
    common, least = (Counter(each.split()[0] for each in states) for states in (
        frozenset.intersection(*ranks), min(ranks, key=len)))
    return {name for name, count in common.items() if name != OWN and 2 * count > least[name]}


def _draws_in_reading(pair: Pair, record: Record) -> list[GeneratorUse]:
    return [batch.draws for number in range(pair.updates) for batch in pair.batches(record, number) if batch.draws]


def same_stream(ranks: list[list[GeneratorUse]]) -> set[str]:
    """Generators that moved on all ranks from the same state, in most of the passes in which they moved."""
    found: dict[str, list[bool]] = {}
    for draws in zip(*ranks):
        for name in frozenset.intersection(*(each.moved for each in draws)) - {OWN}:
            found.setdefault(name, []).append(len({each.before.get(name) for each in draws}) == 1)
    return {name for name, same in found.items() if 2 * sum(same) > len(same)}
