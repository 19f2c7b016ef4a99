"""A training run from its settings to its outcome; what can fail is agreed on by all ranks before the first step."""
from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from ..errors import HvdscaleError, PlanError, RanksDifferError, UsageError
from ..log.schema import Status
from ..plan.plan import Plan
from ..plan.settings import KEYS, Settings
from ..plan.settle import Place, settle
from ..target import SPLITS
from ..update.gradient_norms import log_columns, why_not_measured
from ..update.model import fit_to_groups, how_to_be_faster, make_model, share_model
from ..update.optimizers import make_optimizer
from ..update.precision import set_arithmetic
from ..workers import group
from ..workers.group import Workers
from ..workload import Data, Workload, build_model, load_data
from ..workloads import find
from .checkpoint import Checkpoints, Folder, FolderCheckpoints
from .display import Display, Quiet, describe, regrouped
from .elastic import ElasticCheckpoints, Memory, refuse_commit_every
from .evaluate import try_measuring
from .loop import run
from .outcome import FAILED, Outcome, Start, Stop
from .resume import known_ghost_batch
from .run_log import TRIAL, Journal, Silent, open_log, parts_of_steps
from .snapshot import Progress
from .weights import check_writable, load_weights, save_weights


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
    bound_to_passes: str    # why the model runs group by group, or would have to

    def train(self, journal: Silent, display: Quiet, workers: Workers,
              checkpoints: Checkpoints | None = None,
              wish: Callable[[Progress], set[str]] | None = None) -> Outcome:
        """Carry out the plan. An error ends the trial INCOMPLETE in the journal; WorkerLostError: a worker was lost."""
        checkpoints = checkpoints or Checkpoints(Start())

        def broken_off(reason: str, exit_code: int = FAILED) -> None:
            journal.end(Status.INCOMPLETE, reason)
            checkpoints.end(Stop(Status.INCOMPLETE, reason, exit_code))

        workers.watch(broken_off)
        try:
            return run(self.plan, self.workload, self.data, self.model, self.optimizer, workers, self.device, journal,
                       display, checkpoints, wish)
        except HvdscaleError as error:
            broken_off(str(error), error.exit_code)
            raise
        except Exception as error:
            broken_off(f"{type(error).__name__}: {error}")
            raise
        finally:
            display.end()
            workers.watch(lambda reason: None)          # what ended stays as it was noted

    def save_model(self, outcome: Outcome, display: Quiet, workers: Workers) -> None:
        """Write the final model where that is asked for; a run that did not end has none."""
        path = self.settings.save_model
        if path is None:
            return
        if outcome.stop.status != Status.COMPLETE:
            display.say(f"model: not saved, as the run is {outcome.stop.status.name}")
            return
        with workers.together("the final model"):
            if workers.rank == 0:
                save_weights(self.model, path)
        display.say(f"model: {path}")


def prepare(name: str, layers: list[dict], workers: Workers, memory: Memory | None = None) -> Job:
    """The job of the workload under the user's layers of settings; raises the same HvdscaleError on all ranks.

    memory  what an elastic job has come to
    """
    memory = memory or Memory()
    hosts = _hosts(workers)
    with workers.together("the settings"):
        workload = find(name)
        settings = settings_of(workload, layers)
        device = group.device(settings.device, workers.local_rank)
    with workers.together("the data"):
        data = memory.data or read_data(workload, settings)
    place = Place(workers.size, *_host_share(hosts, 0), device.type)

    def plan_with(**by_default: int) -> Plan:
        defaults, *typed = memory.settle(settings).layers
        asked = Settings.build({**defaults, **by_default}, *typed)
        plan = settle(asked, workload, len(data.train), len(data.val), place)
        return with_data(plan, data.model_args, data.record)

    with workers.together("the plan"):
        plan = plan_with()
        refuse_empty_splits(plan, settings, data)
        refuse_commit_every(settings, workers)
        set_arithmetic(plan.precision, plan.deterministic, device)
        if device.type == "cpu":
            group.keep_freed_memory()
            local_workers, cores = _host_share(hosts, workers.rank)
            torch.set_num_threads(settings.threads or max(1, cores // local_workers))
        workload.check_label_smoothing(plan.label_smoothing)
        if "loader_workers" in settings.typed and plan.loader_workers and not data.is_mapped:
            raise PlanError("loader_workers acts only on map-style data sets (MapSplit), and the examples of "
                            f"{workload.name} are in memory or mapped into it; leave it out")
        model = make_model(workload, plan, device)
        if settings.init_from:
            load_weights(model, settings.init_from)
        if settings.save_model:
            check_writable(settings.save_model)
    agree_on(plan, data, workers)
    share_model(model, workers)
    known = known_ghost_batch(settings, workers)
    with workers.together("the model"):
        plan, reason = fit_to_groups(
            plan, settings.group_by_group, workload, data.train, model, device,
            None if settings.ghost_batch else lambda default: plan_with(ghost_batch=known or default))
        optimizer = make_optimizer(plan, model)
        splits = data.evaluated(plan.train_eval_examples)
        first = next((name for name in plan.eval_splits if len(splits[name])), None)
    if plan.eval_every and first:
        with workers.together(f"evaluation of {'unaugmented ' * (first == 'train')}{first} examples"):
            try_measuring(workload, splits[first], model, plan.precision, device)
    memory.keep(plan, data, model)
    return Job(name, plan, settings, workload, data, device, model, optimizer, reason)


def read_data(workload: Workload, settings: Settings) -> Data:
    """The workload's data as the settings want it; raises HvdscaleError."""
    data_dir = settings.data_dir and os.path.expanduser(settings.data_dir)
    data = load_data(workload, data_dir, settings.data_args, allow_missing=settings.allow_missing,
                     cache_dir=settings.cache_dir)
    return data.with_train_subset(settings.train_subset)


def with_data(plan: Plan, model_args: Mapping, record: Mapping) -> Plan:
    """The plan with what the data says of the problem; raises UsageError where the user says it, too."""
    for name in plan.model_args.keys() & model_args.keys():
        raise UsageError(f"model_args.{name} = {plan.model_args[name]!r} cannot be set: the data says it "
                         f"({model_args[name]!r}); leave it out")
    return replace(plan, model_args={**model_args, **plan.model_args}, data={**plan.data, **record})


def refuse_empty_splits(plan: Plan, settings: Settings, data: Data) -> None:
    """Raise PlanError where the target, or the evaluations, are of a split without examples.

    A test split may be left out of the data: it is wanted where the target or eval_splits names it.
    """
    target = plan.stop_target.split if plan.stop_target else None
    optional = {"test"} if settings.eval_splits == KEYS["eval_splits"].default else set()
    for split in plan.eval_splits if plan.eval_every else ():
        if len(getattr(data, split)) == 0 and (split == target or split not in optional):
            why = (f"the target {plan.target} is measured on it" if split == target else
                   f"eval_splits = {settings.eval_splits!r} names it")
            raise PlanError(f"the {split} split has no examples, but {why}, so every value would be NaN; give it "
                            f"examples, or name other splits ({', '.join(SPLITS)})")


def sketch(name: str, layers: list[dict], workers: Workers) -> str | None:
    """The plan in words, by the published sizes of data that is not at hand; None where nothing is published of it.

    Nothing is read, and the model is made without its numbers. Raises the same HvdscaleError on all ranks.
    """
    hosts = _hosts(workers)
    with workers.together("the plan"):
        workload = find(name)
        card = workload.card
        settings = settings_of(workload, layers)
        if card is None or settings.data_dir is not None:
            return None
        place = Place(workers.size, *_host_share(hosts, 0), group.device(settings.device, workers.local_rank).type)
        examples = min(card.train_examples, settings.train_subset or card.train_examples)
        plan = with_data(settle(settings, workload, examples, card.val_examples, place), card.model_args, {})
        workload.check_label_smoothing(plan.label_smoothing)
        with torch.device("meta"):
            build_model(workload, plan.model_args)
    return (describe(plan, "none: a dry run") +
            f"\n  note: sizes as published: {card.train_examples:,} training examples; no data was read")


def settings_of(workload: Workload, layers: list[dict]) -> Settings:
    """The user's layers over the workload's defaults, with OMP_NUM_THREADS among these, where it says a number."""
    said = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    threads = {"threads": int(said)} if said.isdecimal() and int(said) else {}
    return Settings.build({**workload.defaults, **threads}, *layers)


def _hosts(workers: Workers) -> list[tuple[str, frozenset, int]]:
    """Of each rank its host, the cores that workers have there, and their number, those of other groups included."""
    return workers.gather((socket.gethostname(), workers.cores(), workers.local_size), "hosts")


def _host_share(hosts: list[tuple[str, frozenset, int]], rank: int) -> tuple[int, int]:
    """Workers on the rank's host, and cores there that they may use."""
    mine = [cores for host, cores, _ in hosts if host == hosts[rank][0]]
    return max(len(mine), hosts[rank][2]), len(frozenset().union(*mine))


def agree_on(plan: Plan, data: Data, workers: Workers) -> None:
    """Raise RanksDifferError on all ranks where some rank settled another plan or found other data."""
    settled = json.dumps(plan.as_record({}), sort_keys=True)
    found = f"{len(data.train)} training, {len(data.val)} validation and {len(data.test)} test examples"
    if data.record:
        found += f", with {json.dumps(dict(data.record), sort_keys=True)}"
    by_rank = workers.gather((found, hashlib.sha256(settled.encode()).hexdigest()), "plan")
    for rank, (there, fingerprint) in enumerate(by_rank):
        if there != by_rank[0][0]:
            raise RanksDifferError(f"rank {rank} found {there}, rank 0 {by_rank[0][0]}; give all workers the same "
                                   "files")
        if fingerprint != by_rank[0][1]:
            raise RanksDifferError(f"rank {rank} settled another plan than rank 0; give all workers the same options, "
                                   "configuration file and kind of device")


def open_journal(job: Job, workers: Workers, start: Start | None = None, memory: Memory | None = None) -> Silent:
    """Rank 0's journal of the job, the others' silent one; raises the same LogError on all ranks.

    memory  of an elastic job, which goes on in the log that it has begun
    """
    journal = Silent()
    try:
        with workers.together("the log"):
            if workers.rank == 0:
                journal = _begun_journal(job, workers, start or Start())
                if memory is not None:
                    memory.log = journal.path
    except HvdscaleError:
        journal.let_go()            # of others, or of a worker that was lost meanwhile
        raise
    return journal


def _begun_journal(job: Job, workers: Workers, start: Start) -> Journal:
    settings = job.settings
    asked = {"workload": job.name, **settings.asked()}
    columns = log_columns(job.plan, job.model)
    writer = open_log(start.log or settings.log or default_log(job.plan), job.plan, job.workload.metrics,
                      workers.versions(), optional_steps=(*parts_of_steps(job.plan), *columns["optional_steps"]),
                      layer_groups=columns["layer_groups"], overwrite=settings.overwrite,
                      take_over=settings.take_over, resume=start.log_goes_on)
    return Journal(writer, TRIAL, job.plan, job.plan.as_record(asked), start)


def default_log(plan: Plan) -> str:
    """runs/WORKLOAD-TIME.h5; inside a Slurm job runs/WORKLOAD-TIME-jobJOB.h5."""
    job = f"-job{os.environ['SLURM_JOB_ID']}" if "SLURM_JOB_ID" in os.environ else ""
    return f"runs/{plan.workload.replace('/', '-')}-{time.strftime('%Y%m%d-%H%M%S')}{job}.h5"


def open_folder(job: Job, workers: Workers) -> Folder | None:
    """The folder of checkpoints, held by rank 0; None on the others and where none are kept."""
    folder = None
    try:
        with workers.together("the folder of checkpoints"):
            if workers.rank == 0 and job.settings.checkpoint is not None:
                folder = Folder(job.settings.checkpoint, job.settings.take_over)
    except HvdscaleError:
        if folder is not None:
            folder.release()        # as the next attempt of an elastic job, in this process, takes it anew
        raise
    return folder


def open_checkpoints(job: Job, start: Start, folder: Folder | None, journal: Silent, display: Quiet, workers: Workers,
                     memory: Memory) -> Checkpoints:
    """What the loop asks for checkpoints, and an elastic job for commits."""
    kept = Checkpoints(start)
    if job.settings.checkpoint is not None:
        kept = FolderCheckpoints(start, job.plan, folder, journal, display, workers)
    return ElasticCheckpoints(kept, memory, job.plan, journal, workers) if workers.elastic else kept


def open_display(job: Job, log: str, workers: Workers, start: Start | None = None) -> Quiet:
    """Rank 0's display, the others' quiet one."""
    if workers.rank:
        return Quiet()
    start = start or Start()
    empty = tuple(split for split in SPLITS if not len(getattr(job.data, split)))
    display = Display(job.plan, job.workload.metrics, empty)
    if start.regrouped:
        display.say(regrouped(job.plan, start))
        return display
    display.say(describe(job.plan, log, job.settings.checkpoint, start))
    for note in (*job.data.notes, *start.notes):
        display.say(f"  note: {note}")
    if job.plan.group_by_group:
        reason, faster = job.bound_to_passes, how_to_be_faster(job.bound_to_passes, job.model)
        display.say(f"  note: the model has {reason or 'group_by_group = always'}, so each ghost group goes through it "
                    f"alone{faster and '; ' + faster}")
        if job.settings.ghost_batch is None:
            display.say(f"  note: ghost batch {job.plan.ghost_batch}, by default and at any worker count: workers run "
                        "whole groups, so each worker's share must hold at least one; --ghost-batch sets another")
    elif job.bound_to_passes:
        display.say(f"  note: the model has {job.bound_to_passes}, and group_by_group is never: updates depend on the "
                    "worker count")
    if reason := why_not_measured(job.plan, job.model):
        display.say(f"  note: {reason}")
    return display
