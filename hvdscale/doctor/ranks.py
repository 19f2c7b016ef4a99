"""Whether every rank has the same job (data, model, gradient, metrics) and, if not, what the difference depends on."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from ..data.splits import tensors_of
from ..errors import WorkersError
from ..plan.shards import Visits
from ..training.evaluate import Evaluator
from ..workers.group import SingleWorker
from .finding import JOB, Finding, Verdict
from .passes import random_numbers
from .probe_step import Sample, distance, mean_gradient
from .script.listen import tensors

NAME, WHOLE = "ranks", "the job, loaded and built,"
DIGESTED = 8                # examples of a split whose values and metrics the ranks compare
NUMBERS = 1000              # of a gradient, at most


class Entry(NamedTuple):
    """One thing that must be the same on all ranks: its part of the job, and a hash, numbers or an error."""

    part: str
    value: str | list[float]
    error: str = ""


def digest(sample: Sample) -> dict[str, Entry]:
    """Fingerprints of what must not depend on the rank, by name."""
    job, found = sample.job, {}
    for name in ("train", "val", "test"):
        found[f"the number of {name} examples"] = Entry("load", str(len(getattr(job.data, name))))
    for name, values in job.model.state_dict().items():
        found[f"the model's {name}, as built,"] = Entry("build", tensors.digest([values]))
    for name in ("train", "val"):
        data = getattr(job.data, name)
        for index in range(min(len(data), DIGESTED)):
            visits = Visits(np.array([index]), np.zeros(1, np.int64), job.plan.seed)
            found[f"example {index} of {name}"] = _try(
                "read", lambda: tensors.digest([values for _, values in tensors_of(data.take(visits))]))
    what = f"the gradient of the loss of the same {sample.plan.global_batch} examples under the same seed"
    found[what] = _try("loss", lambda: _gradient(sample))
    splits = {split: data.first(min(len(data), DIGESTED)) for split, data in job.data.evaluated(DIGESTED).items()
              if len(data)}
    measured = _try("measure", lambda: Evaluator(job.workload, splits, DIGESTED, SingleWorker(), job.device,
                                                 sample.plan.precision)(sample.model(), tuple(splits)))
    for column in (f"{split}/{metric}" for split in splits for metric in job.workload.metrics):
        of_one = measured if measured.error else Entry("measure", [measured.value[column]])
        found[f"{column} of the same examples by the same model"] = of_one
    return found


def _try(part: str, compute: Callable) -> Entry:
    try:
        return Entry(part, compute())
    except WorkersError:
        raise
    except Exception as error:
        return Entry(part, "", f"{type(error).__name__}: {error}")


def _gradient(sample: Sample) -> list[float]:
    """The gradient's norm and some of its numbers; an exact hash would depend on the kind of processor."""
    gradient = mean_gradient(sample, sample.model())
    return [gradient.norm().item(), *gradient[::len(gradient) // NUMBERS + 1].tolist()]


def broken(error: str) -> dict[str, Entry]:
    """The digest of a job that a rank cannot load or build."""
    return {WHOLE: Entry("load", "", error)}


def same_on_ranks(sample: Sample, by_rank: Sequence[dict[str, Entry]], seen: str,
                  alone: Mapping[str, Entry] | None = None) -> Finding:
    """Whether all ranks' digests equal rank 0's, and that of a single worker, ``alone``; ``seen``: what was compared,
    in words."""
    if all(WHOLE in found for found in by_rank):
        return JOB.finding(NAME, "unchecked", error=by_rank[0][WHOLE].error)

    def compared() -> Iterator[tuple]:
        for rank, found in enumerate(by_rank):
            yield "apart", "rank", by_rank[0], found, rank
        known = {what: entry for what, entry in (alone or {}).items() if not by_rank[0][what].error}
        yield "apart_from_one", "workers", known, {what: by_rank[0][what] for what in known}, 0
    for kind, cause, one, other, rank in compared():
        for what in differing(one, other, sample.limit):
            entries = [found[what] for found in (one, other) if what in found]
            error = next((f": {entry.error}" for entry in entries if entry.error), "")
            return JOB.finding(NAME, kind, what=what, error=error, seen=seen, rank=rank,
                               **explain(sample, entries[0].part, cause))
    return JOB.finding(NAME, "same", seen=seen)


def differing(digest: dict[str, Entry], other: dict[str, Entry], limit: float) -> Iterator[str]:
    """The names of entries that differ: numbers by more than the relative limit; two errors count as equal."""
    for what in sorted({**digest, **other}, key=lambda what: what != WHOLE):
        a, b = digest.get(what), other.get(what)
        if not (a and b and bool(a.error) == bool(b.error) and (a.error or _same(a.value, b.value, limit))):
            yield what


def _same(value: str | list[float], other: str | list[float], limit: float) -> bool:
    if isinstance(value, str) or len(value) != len(other):
        return value == other
    return np.array_equal(value, other, equal_nan=True) or distance(
        torch.tensor(other, dtype=torch.float64), torch.tensor(value, dtype=torch.float64)) <= limit


def explain(sample: Sample, part: str, cause: str) -> dict[str, str]:
    """Values of the finding that an entry of that part of the job differs: its cause and the next move."""
    for check, found in (("random numbers", random_numbers(sample) if part == "loss" else None),
                         ("examples", sample.data if part == "read" else None)):
        if found and found.verdict == Verdict.FAILED:
            return {"why": found.cause, "next": f"see the check {check!r} first"}
    return {"cause": cause, "next": JOB.sentence("next for ranks", part)}
