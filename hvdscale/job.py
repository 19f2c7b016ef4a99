"""A training run from its settings to its outcome; what can fail is agreed on by all ranks before the first step."""
from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from dataclasses import dataclass

import torch

from . import workers as group
from .config import Settings
from .display import Display, Quiet, describe
from .errors import HvdscaleError, PlanError
from .journal import Journal, Silent
from .launch import usable_cores
from .log.schema import Status
from .optimizers import make_optimizer
from .plan import Place, Plan, settle
from .train import Outcome, make_model, run
from .workers import Lone
from .workload import Data, Workload
from .workloads import find


@dataclass
class Job:
    """A settled plan with all that it takes to carry it out."""

    name: str               # the workload as it was typed
    plan: Plan
    settings: Settings
    workload: Workload
    data: Data
    device: torch.device
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer

    def train(self, journal: Silent, display: Quiet, workers: Lone) -> Outcome:
        """Carry out the plan. An error ends the trial INCOMPLETE in the journal; WorkerLostError: a worker was lost."""
        workers.watch(lambda reason: journal.end(Status.INCOMPLETE, reason))
        try:
            return run(self.plan, self.workload, self.data, self.model, self.optimizer, workers, self.device, journal,
                       display)
        except Exception as error:
            kind = "" if isinstance(error, HvdscaleError) else f"{type(error).__name__}: "
            journal.end(Status.INCOMPLETE, f"{kind}{error}")
            raise
        finally:
            display.end()


def prepare(name: str, layers: list[dict], workers: Lone) -> Job:
    """The job of the workload under the user's layers of settings; raises the same HvdscaleError on all ranks."""
    hosts = workers.gather((socket.gethostname(), usable_cores()), "hosts")
    with workers.together("the plan"):
        workload = find(name)
        settings = Settings.build(workload.defaults, *layers)
        device = group.device(settings.device, workers.local_rank)
        data = workload.load(settings.data_dir).with_train_subset(settings.train_subset)
        place = Place(workers.size, *_host_share(hosts, 0), device.type)
        plan = settle(settings, workload, len(data.train), len(data.val), place)
        if device.type == "cpu":
            group.keep_freed_memory()
            local_workers, cores = _host_share(hosts, workers.rank)
            torch.set_num_threads(settings.threads or max(1, cores // local_workers))
        if plan.label_smoothing > 1 - 1 / workload.classes:
            raise PlanError(f"label_smoothing = {plan.label_smoothing:g} leaves the true one of {workload.classes} "
                            f"classes less than each other; use at most {1 - 1 / workload.classes:g}")
        model = make_model(workload, plan, device)
        optimizer = make_optimizer(plan, model)
    agree_on(plan, data, workers)
    return Job(name, plan, settings, workload, data, device, model, optimizer)


def _host_share(hosts: list[tuple[str, frozenset]], rank: int) -> tuple[int, int]:
    """Workers on the rank's host, and cores there that they may use."""
    mine = [cores for host, cores in hosts if host == hosts[rank][0]]
    return len(mine), len(frozenset().union(*mine))


def agree_on(plan: Plan, data: Data, workers: Lone) -> None:
    """Raise PlanError on all ranks where some rank settled another plan or found other data; a collective."""
    settled = json.dumps(plan.as_record({}), sort_keys=True)
    found = f"{len(data.train)} training, {len(data.val)} validation and {len(data.test)} test examples"
    by_rank = workers.gather((found, hashlib.sha256(settled.encode()).hexdigest()), "plan")
    for rank, (there, fingerprint) in enumerate(by_rank):
        if there != by_rank[0][0]:
            raise PlanError(f"rank {rank} found {there}, rank 0 {by_rank[0][0]}; give all workers the same files")
        if fingerprint != by_rank[0][1]:
            raise PlanError(f"rank {rank} settled another plan than rank 0; give all workers the same options, "
                            "configuration file and kind of device")


def open_journal(job: Job, workers: Lone) -> Silent:
    """Rank 0's journal of the job, the others' silent one; raises the same LogError on all ranks."""
    with workers.together("the log"):
        if workers.rank:
            return Silent()
        settings = job.settings
        asked = {"workload": job.name, **settings.asked()}
        return Journal(settings.log or default_log(job.plan), job.plan, asked, job.workload.metrics, settings.overwrite,
                       settings.take_over, workers.versions())


def default_log(plan: Plan) -> str:
    """runs/WORKLOAD-TIME.h5; inside a Slurm job runs/WORKLOAD-TIME-jobJOB.h5."""
    job = f"-job{os.environ['SLURM_JOB_ID']}" if "SLURM_JOB_ID" in os.environ else ""
    return f"runs/{plan.workload.replace('/', '-')}-{time.strftime('%Y%m%d-%H%M%S')}{job}.h5"


def open_display(job: Job, log: str, workers: Lone) -> Quiet:
    """Rank 0's display, the others' quiet one."""
    if workers.rank:
        return Quiet()
    display = Display(job.plan, job.workload.metrics)
    display.say(describe(job.plan, log))
    for name in sorted(bound_to_passes(job.model)):
        display.say(f"  note: the model has {name}, whose {PASS_BOUND[name][1]} are those of one worker's pass: "
                    "updates depend on the worker count")
    return display


# torch's own modules that see one pass at a time, and what of them would differ with the worker count
PASS_BOUND = {"BatchNorm": (torch.nn.modules.batchnorm._BatchNorm, "statistics"),
              "Dropout": (torch.nn.modules.dropout._DropoutNd, "masks")}


def bound_to_passes(model: torch.nn.Module) -> set[str]:
    """Names of the model's modules whose results depend on how the global batch is cut into passes."""
    modules = list(model.modules())
    return {name for name, (kind, _) in PASS_BOUND.items() if any(isinstance(module, kind) for module in modules)}
