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
    preparing = [_draws_in_preparing(pair, record) for record in pair.many]
    reading = [_draws_in_reading(pair, record) for record in pair.many]
    drew_in_workers = any(record.drew_in_workers for record in pair.many)
    moved = {name for ranks in (*model, *preparing, *reading) for draws in ranks for name in draws.moved}
    if moved == {OWN} and not drew_in_workers:
        return Finding(NAME, Verdict.UNSEEN, "generators that the script made drew numbers, and whether those of the "
                       "ranks are meant to differ is not known")
    if not moved and not drew_in_workers:
        return Finding(NAME, Verdict.NOT_APPLICABLE, "no global generator moved in reading, model and loss")
    looked_at = f"the generators' states in {counted(len(model[0]), 'pass', 'passes')} on {pair.workers} ranks"
    same = _same_stream(model)
    if same:
        return Finding(NAME, Verdict.WARNED, looked_at,
                       f"the model draws the same numbers on all ranks ({_names(same)}): the examples at one place of "
                       "each local batch have one dropout mask",
                       cause="every rank has the same seed",
                       remedy="after the model is built, torch.manual_seed(seed + rank)",
                       where=pair.at(0)[0].passes[0].line if pair.updates and pair.at(0)[0].passes else "")
    same = _same_stream(preparing) - {"random"}         # by which scripts decide for all ranks alike
    if same:
        return Finding(NAME, Verdict.WARNED, looked_at,
                       f"between batch and model all ranks draw the same numbers ({_names(same)}): the examples at one "
                       "place of each local batch get the same noise",
                       cause="every rank has the same seed; right if one draw is meant for all examples",
                       remedy="after the model is built, torch.manual_seed(seed + rank)",
                       where=pair.at(0)[0].passes[0].line)
    same, in_workers = _same_stream(reading), _same_in_workers(pair)
    if same or in_workers:
        by_number = in_workers and not _same_seeds(pair)
        return Finding(NAME, Verdict.WARNED, looked_at,
                       f"reading draws the same numbers on all ranks ({_names(same or in_workers)}"
                       f"{'' if same else ', in loader workers'}): the examples at one place of each local batch are "
                       "augmented alike",
                       cause="worker_init_fn seeds by the number of the loader worker alone" if by_number else
                       "every rank has the same seed" + ("" if same else ", from which workers get theirs"),
                       remedy="seed by torch.initial_seed() in worker_init_fn" if by_number else
                       "torch.manual_seed(seed + rank) before the loader is read",
                       where=trained(pair.many[0])[0].line)
    return Finding(NAME, Verdict.PASSED, f"{looked_at}: ranks that draw are in different states")


def by_rank(pair: Pair) -> bool:
    """Whether examples were augmented by the rank that read them."""
    reading = [_draws_in_reading(pair, record) for record in pair.many]
    drew = any(draws and draws.moved for ranks in reading for draws in ranks)
    drew_in_workers = any(record.drew_in_workers for record in pair.many)
    return drew and not _same_stream(reading) or drew_in_workers and not _same_in_workers(pair)


def _same_in_workers(pair: Pair) -> set[str]:
    """Generators that most loader workers of all ranks first drew from in the same states."""
    common = frozenset.intersection(*(record.drew_in_workers for record in pair.many))
    least = min((record.drew_in_workers for record in pair.many), key=len)
    names = {each.split()[0] for each in common} - {OWN}
    return {name for name in names if 2 * _count(common, name) > _count(least, name)}


def _count(states: frozenset[str], name: str) -> int:
    return sum(each.split()[0] == name for each in states)


def _same_seeds(pair: Pair) -> bool:
    """Whether the loader workers of all ranks are seeded alike."""
    return len({tuple(one.seed for one in trained(record) if one.seed is not None) for record in pair.many}) == 1


def _draws_in_model(pair: Pair, record: Record) -> list[Draws]:
    return [one.draws for update in pair.steps(record).updates[:pair.updates] for one in update.passes]


def _draws_in_preparing(pair: Pair, record: Record) -> list[Draws]:
    """Of examples from a loader: others are drawn there, which ranks may share out."""
    return [one.prepared for update in pair.steps(record).updates[:pair.updates] for one in update.passes
            if trained(record)]


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
