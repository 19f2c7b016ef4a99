"""Whether every rank has the same job (data, model, gradient, metrics) and, if not, what the difference depends on."""
from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from ..data.splits import tensors_of
from ..errors import RanksDifferError, WorkersError
from ..plan.shards import Visits
from ..training.evaluate import Evaluator
from ..workers.single import SingleWorker
from .finding import Finding, Verdict
from .passes import random_numbers
from .probe_step import Sample, distance, mean_gradient

NAME, JOB = "ranks", "the job, loaded and built,"
DIGESTED = 8                # examples of a split whose values and metrics the ranks compare
NUMBERS = 1000              # of a gradient, at most
COMPARED = "sizes, parameters, examples, the gradient of a step, and metrics"

RANK = ("it depends on the rank, as through hvd.rank(), torch.distributed.get_rank() or a variable such as RANK or "
        "LOCAL_RANK; or on the host, through its name or its files")
WORKERS = "it depends on the number of workers: hvd.size(), torch.distributed.get_world_size() or WORLD_SIZE"
NO_WORKERS = "do not use the number of workers: hvdscale itself shards the examples and averages over all workers"
PROCESS = ("it differs between processes of the same rank: it depends on the time, the process id, Python's hash of a "
           "string, or an unseeded generator")
# by the part of the job that differs: what to do about it
REMEDIES = {
    "load": "load must return all examples on every rank, as hvdscale gives each worker its share; seed its random "
            "numbers by a fixed number, such as default_rng(0)",
    "build": "draw parameters from torch's, numpy's or Python's global generator, which hvdscale seeds before build",
    "read": "in load, seed by a fixed number, such as default_rng(0); draw augmentation from the Draws passed to a "
            "Split's augment, or from the global generators, seeded for each example of a MapSplit; draw nothing in "
            "collate",
    "loss": "in loss and model, draw from torch's, numpy's or Python's global generator, which hvdscale seeds by seed, "
            "step and ghost group, the same on every rank",
    "measure": "draw no random numbers in measure; draw what it needs in load, seeded by a fixed number"}
OF_REFUSALS = {"found": "load", "built": "build"}       # by the verb in the error's text


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
        found[f"the model's {name}, as built,"] = Entry("build", _hash([values]))
    for name in ("train", "val"):
        data = getattr(job.data, name)
        for index in range(min(len(data), DIGESTED)):
            found[f"example {index} of {name}"] = _try("read", lambda: _example(data, index, job.plan.seed))
    what = f"the gradient of the loss of the same {sample.plan.global_batch} examples under the same seed"
    found[what] = _try("loss", lambda: _gradient(sample))
    splits = {split: data for split, data in job.data.evaluated(DIGESTED).items() if len(data)}
    measured = _try("measure", lambda: _measure(sample, splits))
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


def _example(data, index: int, seed: int) -> str:
    visits = Visits(np.array([index]), np.zeros(1, np.int64), seed)
    return _hash([values for _, values in tensors_of(data.take(visits))])


def _gradient(sample: Sample) -> list[float]:
    """The gradient's norm and some of its numbers; an exact hash would depend on the kind of processor."""
    gradient = mean_gradient(sample, sample.model(), sample.plan)
    return [gradient.norm().item(), *gradient[::len(gradient) // NUMBERS + 1].tolist()]


def _measure(sample: Sample, splits: dict) -> dict[str, float]:
    job, some = sample.job, {split: data.first(min(len(data), DIGESTED)) for split, data in splits.items()}
    return Evaluator(job.workload, some, DIGESTED, SingleWorker(), job.device, sample.plan.precision)(
        sample.model(), tuple(some))


def _hash(tensors) -> str:
    whole = hashlib.sha256()
    for values in tensors:
        whole.update(str((values.dtype, tuple(values.shape))).encode())
        whole.update(values.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


def broken(error: str) -> dict[str, Entry]:
    """The digest of a job that a rank cannot load or build."""
    return {JOB: Entry("load", "", error)}


def same_on_ranks(by_rank: Sequence[dict[str, Entry]], looked_at: str, limit: float,
                  why: Callable[[str, str], tuple[str, str]]) -> Finding:
    """Whether all ranks' digests equal rank 0's.

    why  (what differs, the part of the job it belongs to) -> cause and remedy
    """
    if all(JOB in found for found in by_rank):
        return Finding(NAME, Verdict.NOT_APPLICABLE, f"the job cannot be checked: {by_rank[0][JOB].error}")
    for rank, found in enumerate(by_rank):
        for what in differing(by_rank[0], found, limit):
            return not_the_same(f"{what} is not the same on rank {rank} as on rank 0", by_rank[0], found, what,
                                looked_at, why)
    return Finding(NAME, Verdict.PASSED, looked_at)


def not_the_same(differs: str, digest: dict[str, Entry], other: dict[str, Entry], what: str, looked_at: str,
                 why: Callable[[str, str], tuple[str, str]]) -> Finding:
    """The finding where two digests differ, with the error if one of them has that instead."""
    entries = [found[what] for found in (digest, other) if what in found]
    error = next((f": {entry.error}" for entry in entries if entry.error), "")
    return Finding(NAME, Verdict.FAILED, looked_at, differs + error, None, None, *why(what, entries[0].part))


def differing(digest: dict[str, Entry], other: dict[str, Entry], limit: float) -> Iterator[str]:
    """The names of entries that differ: numbers by more than the relative limit; two errors count as equal."""
    for what in sorted({**digest, **other}, key=lambda what: what != JOB):
        a, b = digest.get(what), other.get(what)
        if not (a and b and bool(a.error) == bool(b.error) and (a.error or _same(a.value, b.value, limit))):
            yield what


def _same(value: str | list[float], other: str | list[float], limit: float) -> bool:
    if isinstance(value, str) or len(value) != len(other):
        return value == other
    return np.array_equal(value, other, equal_nan=True) or distance(
        torch.tensor(other, dtype=torch.float64), torch.tensor(value, dtype=torch.float64)) <= limit


def why_not_the_same(sample: Sample, what: str, part: str, twice: Callable[[], Sequence[dict[str, Entry]]],
                     otherwise: str) -> tuple[str, str]:
    """Cause and remedy where this entry differs between two processes.

    twice      returns the digests of two processes of one rank;  otherwise  the cause if these are equal
    """
    for check, found in (("random numbers", random_numbers(sample) if part == "loss" else None),
                         ("examples", sample.data if part == "read" else None)):
        if found and found.verdict == Verdict.FAILED:
            return found.cause, f"see the check {check!r} first"
    one, another = twice()
    changes = JOB not in {**one, **another} and what in differing(one, another, sample.limit)
    cause = PROCESS if changes else otherwise
    return cause, NO_WORKERS if cause == WORKERS else REMEDIES[part]


def refused(error: RanksDifferError, twice: Callable[[], Sequence[dict[str, Entry]]]) -> Finding:
    """The finding for a job that cannot start because its ranks disagree; no other check can follow."""
    cause = PROCESS if any(differing(*twice(), 0.0)) else RANK
    remedy = next((REMEDIES[part] for done, part in OF_REFUSALS.items() if f" {done} " in str(error)), "")
    looked_at = "the job as each rank plans, loads and builds it; it cannot start, so nothing else can be checked"
    return Finding(NAME, Verdict.FAILED, looked_at, str(error), cause=cause, remedy=remedy)
