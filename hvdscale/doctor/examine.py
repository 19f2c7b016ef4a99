"""All checks of a job, in order: on rank 0 alone, but for that of the ranks."""

import contextlib
from collections.abc import Callable, Collection
from functools import partial

from ..formatting.numbers import counted
from ..training.prepare import Job
from ..update.model import how_to_be_faster
from ..workers.group import Workers
from .checks import (batch_norm, checkpoint, decay, evaluation, gradients, losses, padding, random_numbers, rounding)
from .finding import JOB, Finding, carried_out, trace_cause
from .formats import NOTES, Judged, render_list
from .probe_step import EXAMPLES, Sample, make_sample
from .ranks import NAME as RANKS, digest, refusing_collectives, same_on_ranks, same_when_played, simulated

CHECKS = {"gradients": gradients, "losses": losses, "random numbers": random_numbers, "rounding": rounding,
          "batch-norm": batch_norm, "padding": padding, "examples": lambda sample: sample.data, RANKS: None,
          "evaluation": evaluation, "checkpoint": checkpoint, "weight decay": decay}
ORDER = tuple(CHECKS)


@refusing_collectives()
def examine(job: Job, layers: list[dict], workers: Workers, wanted: int = EXAMPLES,
            say: Callable[[str], None] = lambda name: None, checks: Collection[str] = ORDER) -> Judged:
    """Run those checks of ORDER; a collective whose findings are complete on rank 0. ``say`` gets the name of each
    check, ``layers`` are the user's settings, and the checks take a step of the ``wanted`` examples. Raises
    CommunicationError where the job's own code communicates."""
    alone, ranked = workers.size == 1, RANKS in checks
    with simulated(job.name, layers, wanted) if alone and ranked else contextlib.nullcontext([]) as played:
        with workers.together("the sample"):
            sample = make_sample(job, wanted)
            mine = digest(sample) if ranked else {}     # first, as checks may move the job's own generators
            sample.data
        by_rank = workers.gather(mine, "doctor/digest") if ranked and not alone else []
        seen = JOB.sentence("ranks compared", "launched", size=workers.size)
        launched = same_on_ranks(sample, by_rank, seen) if by_rank and not workers.rank else None
        findings = in_this_process(sample, workers, say, launched, checks)
        if played:
            say(RANKS)
            findings.append(same_when_played(played, sample, mine))
        workers.gather(None, "doctor/children")
    plan, said = job.plan, notes(job, sample)
    headline = (f"{plan.workload} at global batch {plan.batches}: {counted(len(findings), 'check')}; those of the "
                f"model use a step of {sample.plan.global_batch} examples in {sample.plan.precision}")
    about = {"workload": plan.workload, "workers": plan.workers, "global_batch": plan.global_batch, "notes": said,
             "batch_schedule": str(plan.batches), "sample": sample.plan.global_batch,
             "precision": sample.plan.precision}
    in_order = tuple(sorted(findings, key=lambda f: ORDER.index(f.check)))
    return Judged(in_order, about, [headline, render_list(NOTES, said)])


def in_this_process(sample: Sample, workers: Workers, say: Callable[[str], None] = lambda name: None,
                    ranks: Finding | None = None, checks: Collection[str] = ORDER) -> list[Finding]:
    """Run the checks that need no child process on rank 0, and add the finding on the ``ranks`` under a launcher."""
    found = [ranks] if ranks else []
    for name in checks:
        with workers.together(f"the check {name!r}"):           # so no rank waits longer than one check takes
            if CHECKS[name] and workers.rank == 0:
                say(name)
                found.append(carried_out(name, partial(CHECKS[name], sample)))
    return [trace_cause(finding, found, JOB.checks["explains"]) for finding in found]


def notes(job: Job, sample: Sample) -> tuple[str, ...]:
    """One sentence for each legitimate reason why a model depends on the worker count or the machine."""
    plan = job.plan
    faster = how_to_be_faster(job.bound_to_passes, job.model) if plan.group_by_group else ""
    return tuple(JOB.sentences("notes", plan, {
        "batch_grows": not job.settings.typed & {"global_batch", "batch_schedule"},
        "rounding": plan.precision != "fp64", "rounding_in_fp64": plan.precision == "fp64",
        "seconds": plan.budget_seconds is not None,
        "masks": job.device.type == "cuda" or any(hasattr(module, "ghosts") for module in job.model.modules()),
        "dropped": plan.last_batch == "drop", "by_group": plan.group_by_group, "limit": sample.note,
    }, why=job.bound_to_passes or "group_by_group = always", faster=faster and f"; {faster}",
        limit=f"{sample.limit:g}", note=sample.note))
