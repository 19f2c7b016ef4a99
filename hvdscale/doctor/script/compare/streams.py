"""Random numbers of the ranks: in the model, and in reading examples."""
from __future__ import annotations

from ....formatting.numbers import counted, listed
from ....watch.generators import OWN
from ...finding import Finding, Verdict
from ..record import Draws, Record
from .pair import Pair, trained

NAME = "random numbers"
OF = {"torch": "torch", "numpy": "numpy", "random": "Python's random", "cuda": "torch on the GPU"}


def random_numbers(pair: Pair) -> Finding:
    """Whether ranks that draw random numbers draw different ones."""
    model = [_draws_in_model(pair, record) for record in pair.many]
    reading = [_draws_in_reading(pair, record) for record in pair.many]
    drew_in_workers = any(record.drew_in_workers for record in pair.many)
    moved = {name for ranks in (*model, *reading) for draws in ranks for name in draws.moved}
    if moved == {OWN} and not drew_in_workers:
        return Finding(NAME, Verdict.UNSEEN, "generators that the script made drew numbers, and whether those of the "
                       "ranks are meant to differ is not known")
    if not moved and not drew_in_workers:
        return Finding(NAME, Verdict.NOT_APPLICABLE, "no global generator moved in model, loss and reading")
    looked_at = f"the generators' states in {counted(len(model[0]), 'pass', 'passes')} on {pair.workers} ranks"
    same = _same_stream(model)
    if same:
        return Finding(NAME, Verdict.WARNED, looked_at,
                       f"the model draws the same numbers on all ranks ({_names(same)}): the examples at one place of "
                       "each local batch have one dropout mask",
                       cause="every rank has the same seed",
                       remedy="after the model is built, torch.manual_seed(seed + rank)",
                       where=pair.at(0)[0].passes[0].line if pair.updates and pair.at(0)[0].passes else "")
    same = _same_stream(reading)
    if same or drew_in_workers and _same_seeds(pair):
        return Finding(NAME, Verdict.WARNED, looked_at,
                       "reading draws the same numbers on all ranks"
                       f"{f' ({_names(same)})' if same else ' (loader workers)'}: the examples at one place of each "
                       "local batch are augmented alike",
                       cause="every rank has the same seed" + ("" if same else ", from which workers get theirs"),
                       remedy="torch.manual_seed(seed + rank) before the loader is read",
                       where=trained(pair.many[0])[0].line)
    return Finding(NAME, Verdict.PASSED, f"{looked_at}: ranks that draw are in different states")


def by_rank(pair: Pair) -> bool:
    """Whether examples were augmented by the rank that read them."""
    reading = [_draws_in_reading(pair, record) for record in pair.many]
    drew = any(draws and draws.moved for ranks in reading for draws in ranks)
    drew_in_workers = any(record.drew_in_workers for record in pair.many)
    return drew and not _same_stream(reading) or drew_in_workers and not _same_seeds(pair)


def _same_seeds(pair: Pair) -> bool:
    """Whether the loader workers of all ranks are seeded alike."""
    return len({tuple(one.seed for one in trained(record) if one.seed is not None) for record in pair.many}) == 1


def _draws_in_model(pair: Pair, record: Record) -> list[Draws]:
    return [one.draws for update in pair.steps(record).updates[:pair.updates] for one in update.passes]


def _draws_in_reading(pair: Pair, record: Record) -> list[Draws]:
    return [batch.draws for number in range(pair.updates) for batch in pair.batches(record, number) if batch.draws]


def _same_stream(ranks: list[list[Draws]]) -> set[str]:
    """Generators that moved on all ranks from the same state, in most of the passes in which they moved."""
    found: dict[str, list[bool]] = {}
    for draws in zip(*ranks):
        for name in frozenset.intersection(*(each.moved for each in draws)) - {OWN}:
            found.setdefault(name, []).append(len({each.before.get(name) for each in draws}) == 1)
    return {name for name, same in found.items() if 2 * sum(same) > len(same)}


def _names(generators: set[str]) -> str:
    return listed(sorted(OF[name] for name in generators))
