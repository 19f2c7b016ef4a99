"""The job that trials are of, and which runs of one name are of one version of it, by the digests in their plans; see
plan/job.py. Trials of two versions are of two workloads; ``notes`` say in words what differs. Changes that were
accepted join two versions. Runs without digests are of the only version that there is, or of none."""
from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..formatting.numbers import list_first
from ..log.plan_text import plan_at
from ..log.reader import Log
from ..plan.batch_schedule import BatchSchedule
from ..plan.job import changes_of, key_of

DIGITS = 6              # of a version's name
LONGEST = 300           # characters of what differs
MOST_LOGS = 3           # that a note names


@dataclass(frozen=True, order=True)
class JobKey:
    """What two trials of the same job have in common."""

    dataset: str
    model: str
    model_args: str             # JSON; "": none
    optimizer: str
    train_examples: int         # 0: unknown
    batch_schedule: tuple[tuple[int, int], ...] = ()    # (first step, batch); empty where the batch is constant
    version: str = ""           # of the job; "" where there is only one, see Versions

    def __str__(self) -> str:
        batch = f", batch {BatchSchedule.of_pairs(self.batch_schedule)}" if self.batch_schedule else ""
        size = f", {self.train_examples:,} training examples" if self.train_examples else ""
        version = f", version {self.version}" if self.version else ""
        args = json.loads(self.model_args or "{}")
        if isinstance(args, dict):
            args = ", ".join(f"{name}={value}" for name, value in args.items())
        args = f" ({args})" if args else ""
        return f"{self.dataset}/{self.model}{args}, {self.optimizer}{size}{batch}{version}"


@dataclass(eq=False)
class _Job:
    """Runs of one digest: their job, their logs, and the earlier jobs that they accepted, with what differed."""

    job: Mapping[str, Any]
    logs: dict[str, None] = field(default_factory=dict)
    accepted: dict[str, str] = field(default_factory=dict)


class Versions:
    """The versions of the jobs in logs: the name of each, by workload and digest, where a workload has several; and
    what differs. Raises LogError where a plan's entries are of the wrong type."""

    def __init__(self, logs: Iterable[Log] = ()) -> None:
        self.names: dict[tuple[JobKey, str], str] = {}
        found: dict[JobKey, dict[str, _Job]] = {}
        for log in logs:
            rows = zip(*(log.trials[name] for name in ("plan", "id", "dataset", "model")))
            for text, number, dataset, model in {row[0]: row for row in rows if '"job"' in row[0]}.values():
                plan = plan_at(log.path, number, text)
                if digest := _digest(plan):
                    workload = replace(self.workload_of(dataset, model, "", plan), batch_schedule=())
                    jobs = found.setdefault(workload, {})
                    job = jobs.setdefault(digest, _Job(plan["job"]))
                    job.logs[log.path] = None
                    job.accepted |= {key: str(what)[:LONGEST]
                                     for key, what in (plan["job"].get("accepted") or {}).items()}
        self.notes: list[str] = []
        for workload, jobs in found.items():
            version = _join(jobs)
            if len(set(version.values())) > 1:
                self.names |= {(workload, digest): name for digest, name in version.items()}
            self.notes += _describe(f"{workload.dataset}/{workload.model}", jobs, version)

    def workload_of(self, dataset: str, model: str, optimizer: str, plan: Mapping[str, Any]) -> JobKey:
        """The workload of a trial, without the model arguments that its study searches."""
        problem, sweep = plan.get("problem") or {}, plan.get("sweep")
        args = problem.get("model_args")
        if sweep and isinstance(args, Mapping):
            searched = {parameter["name"] for parameter in sweep["space"]}
            args = {name: value for name, value in args.items() if f"model_args.{name}" not in searched}
        job = JobKey(dataset, model, json.dumps(args, sort_keys=True) if args else "", "",
                     int(problem.get("train_examples") or 0))           # under any optimizer, and any batch
        return replace(job, optimizer=optimizer, batch_schedule=tuple(map(tuple, problem.get("batch_schedule") or ())),
                       version=self.names.get((job, _digest(plan)), "") if self.names else "")


ONE_VERSION = Versions()        # of runs of one name, whatever their digests


def _join(jobs: Mapping[str, _Job]) -> dict[str, str]:
    """The version's name of each digest: the first of those that accepted changes join."""
    version = {digest: digest for digest in jobs}
    for digest, job in jobs.items():
        for other, earlier in jobs.items():
            if key_of(earlier.job) in job.accepted:
                one, two = sorted((version[digest], version[other]))
                version = {key: one if name == two else name for key, name in version.items()}
    return {digest: name[:DIGITS] for digest, name in version.items()}


def _digest(plan: Mapping[str, Any]) -> str:
    """Of source, data and, unless a study searches the model's arguments, its parameters; "" for unknown ones."""
    job = plan.get("job") or {}
    searched = any(one["name"].startswith("model_args.") for one in (plan.get("sweep") or {}).get("space", ()))
    known = key_of(job) + ("" if searched else str((job.get("model") or {}).get("parameters", "")))
    return hashlib.sha256(known.encode()).hexdigest() if known else ""


def _describe(name: str, jobs: Mapping[str, _Job], version: Mapping[str, str]) -> Iterator[str]:
    apart: dict[str, _Job] = {}
    for digest, job in jobs.items():
        apart.setdefault(version[digest], _Job(job.job)).logs.update(job.logs)
    if len(apart) > 1:
        first = next(iter(apart.values()))
        each = [f"{one} in {list_first(job.logs, MOST_LOGS)}" for one, job in apart.items()]
        changes = dict.fromkeys(what for job in apart.values() for what in changes_of(first.job, job.job))
        yield (f"{name}: {len(apart)} versions of the job, each a workload of its own: {'; '.join(each)}. "
               f"{'; '.join(changes)[:LONGEST]}.")
    accepted: dict[str, dict[str, None]] = {}
    for job in jobs.values():
        for what in job.accepted.values():
            accepted.setdefault(what, {}).update(job.logs)
    for what, logs in accepted.items():
        yield (f"{name}: runs count as one workload although the job has changed, as that was accepted: {what} "
               f"({list_first(logs, MOST_LOGS)}).")
