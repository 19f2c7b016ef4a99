"""All checks of a job, in order: those of its parts on rank 0, the others on all workers together."""
from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace

from ..errors import RanksDifferError, WorkersError
from ..job import Job
from ..workers import Lone
from .children import OtherRank, Stop
from .examples import NO_RANK, RANK, digest, same_on_ranks, shards
from .finding import FAILED, Finding, carried_out
from .notes import notes
from .passes import batch_norm, gradients, last_batch, losses, random_numbers
from .sample import EXAMPLES, Sample, make_sample
from .settings import decay, learning_rate
from .state import checkpoint, evaluation


@dataclass(frozen=True)
class Examination:
    """What the checks found of a job; ``notes``: what depends on the worker count and is no fault."""

    job: Job
    sample: Sample
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether no check failed."""
        return all(finding.verdict != FAILED for finding in self.findings)


def examine(job: Job, layers: list[dict], workers: Lone, wanted: int = EXAMPLES,
            say: Callable[[str], None] = lambda name: None) -> Examination:
    """Every check's finding, complete on rank 0; a collective. ``say`` is told of each check that begins.

    layers   the user's settings, as for ``prepare``;  wanted  examples in the step that the checks take
    """
    children = [OtherRank(job.name, layers)] * (workers.size == 1) + [Stop()] if workers.rank == 0 else []
    try:
        with workers.together("the sample"):
            sample = make_sample(job, wanted, workers.size)
        findings = list(in_this_process(sample, workers, say))
        say("stall")
        findings += [child.finding() for child in children]
        workers.gather(None, "doctor/children")
    finally:
        for child in children:
            child.kill()
    return Examination(job, sample, tuple(sorted(findings, key=lambda f: ORDER.index(f.check))), notes(job, sample))


def in_this_process(sample: Sample, workers: Lone, say: Callable[[str], None] = lambda name: None) -> Iterator[Finding]:
    """The findings of the checks that need no other process; on ranks above 0 of those alone that all take part in."""
    job, data = sample.job, sample.data
    ranks = _ranks(job, workers) if workers.size > 1 else None
    alone = {"losses": lambda: losses(sample), "random numbers": lambda: random_numbers(sample),
             "batch-norm": lambda: batch_norm(sample), "last batch": lambda: last_batch(sample),
             "shards": lambda: shards(job, workers), "examples": lambda: sample.data,
             "checkpoint": lambda: checkpoint(sample), "weight decay": lambda: decay(sample),
             "learning rate": lambda: learning_rate(job)}
    together = {"gradients": lambda: gradients(sample, workers), "evaluation": lambda: evaluation(sample, workers)}
    for name in ORDER:
        if name in together or (name in alone and workers.rank == 0):
            say(name)
            finding = carried_out(name, {**alone, **together}[name])
            yield _traced(_traced(finding, ranks, together), data, OF_EXAMPLES)
        workers.gather(None, f"doctor/{name}")          # so that no rank waits longer than one check takes
    if ranks:
        yield ranks


OF_EXAMPLES = ("gradients", "losses", "random numbers", "batch-norm", "last batch", "evaluation", "checkpoint")


def _traced(finding: Finding, source: Finding | None, of: Container[str]) -> Finding:
    """The finding of one of these checks, with the cause of another failure where that is one."""
    if source and finding.verdict == source.verdict == FAILED and finding.check in of:
        return replace(finding, cause=source.cause, remedy=f"see the check {source.check!r} first")
    return finding


ORDER = ("gradients", "losses", "random numbers", "batch-norm", "last batch", "shards", "examples", "ranks",
         "evaluation", "checkpoint", "weight decay", "learning rate", "stall")


def _ranks(job: Job, workers: Lone) -> Finding:
    try:
        own = digest(job)
    except WorkersError:
        raise
    except Exception as error:
        own = {"error": f"{type(error).__name__}: {error}"}
    return same_on_ranks(workers.gather(own, "doctor/digest"),
                         f"sizes, parameters and examples as all {workers.size} ranks have them")


def not_the_same(error: RanksDifferError) -> Finding:
    """The finding of a job that cannot be started, as its ranks do not agree; no other check can follow."""
    return Finding("ranks", FAILED, "the job as each rank settles, loads and builds it; it cannot start, so nothing "
                   "else can be checked", str(error), cause=RANK, remedy=NO_RANK)
