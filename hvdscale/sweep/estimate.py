"""Estimate a sweep before it starts: trials, steps, examples, and hours from a few measured steps."""
from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from ..formatting.numbers import counted, duration
from ..formatting.text_table import aligned
from ..training.evaluate import Evaluator
from ..training.prepare import prepare
from ..update.step import DataParallelStep
from ..workers.group import Workers
from ..workload import Data
from .studies import Study

MEASURED_STEPS = 5          # after a warm-up pass


@dataclass(frozen=True)
class StudyEstimate:
    """A study's seconds per step and per evaluation on this group, and upper bounds for its trials."""

    study: Study
    step_seconds: float
    evaluation_seconds: float

    @property
    def evaluations(self) -> int:
        study = self.study
        return math.ceil(study.budget_steps / study.eval_every) + 1 if study.eval_every else 0

    @property
    def trials(self) -> int:
        return self.study.spec.trials + self.study.sweep.repeats

    @property
    def trial_seconds(self) -> float:
        """The seconds of a trial that uses its whole budget; a larger batch takes longer in proportion at most."""
        if not self.study.budget_steps:
            return self.study.spec.layer["seconds"]
        steps = self.study.budget_examples / self.study.spec.global_batch
        return steps * self.step_seconds + self.evaluations * self.evaluation_seconds

    @property
    def seconds(self) -> float:
        return self.trials * self.trial_seconds


def estimates(studies: list[Study], data: Data, group: Workers) -> Iterator[StudyEstimate]:
    """Measure some steps and an evaluation of each study's first draw; a collective of the group."""
    for study in studies:
        job = prepare(study.sweep.workload, study.layers(0, "none"), group, data)
        yield StudyEstimate(study, *_measure(job, group))


def _measure(job, group: Workers) -> tuple[float, float]:
    plan = job.plan
    take_step = DataParallelStep(plan, job.workload, job.data.train, job.model, job.optimizer, group, job.device)
    evaluate = Evaluator(job.workload, job.data.evaluated(plan.train_eval_examples), plan.eval_batch, group, job.device,
                         plan.precision, plan.loader_workers)
    take_step.warm_up(1)
    steps = [take_step(step, 0.0, set()).step_seconds for step in range(MEASURED_STEPS)]
    started = time.perf_counter()
    evaluate(job.model, plan.eval_splits)
    ended = time.perf_counter()
    take_step.feed.loader.close()
    evaluate.loader.close()
    return median(steps), ended - started


def table(found: list[StudyEstimate], groups: int) -> str:
    head = ("study", "trials", "draws at most", "steps", "examples", "evaluations", "s a step", "time at most")
    rows = [(e.study.name, f"{e.trials}", f"{e.study.spec.max_draws}", *_budget(e.study), f"{e.evaluations}",
             f"{e.step_seconds:.2g}", duration(e.seconds / groups, rough=True)) for e in found]
    lines = aligned([head, *rows], left=(0,))
    lines.insert(1, "-" * len(lines[0]))
    total = duration(sum(e.seconds for e in found) / groups, rough=True)
    lines.append(f"\n{', '.join(_counts(found))}: {total} at most with {counted(groups, 'group')} of "
                 "workers.\nThat is if every trial goes to the end of its budget; draws that diverge are replaced, and "
                 "come on top.")
    return "\n".join(lines)


def _counts(found: list[StudyEstimate]) -> list[str]:
    """The number of trials; with budgets in steps also the steps and examples."""
    counts = [f"{sum(e.trials for e in found):,} trials"]
    if all(e.study.budget_steps for e in found):
        counts += [f"{sum(e.trials * e.study.budget_steps for e in found):,} steps",
                   f"{sum(e.trials * e.study.budget_examples for e in found):,} examples"]
    return counts


def _budget(study: Study) -> tuple[str, str]:
    if not study.budget_steps:
        return "by time", "by time"
    return f"{study.budget_steps:,}", f"{study.budget_examples:,}"
