"""From settings to a job, a settled plan with everything needed to run it; all ranks agree on anything that can fail
before the first step. And by what a log knows a job, see plan.job: hvdscale-scale and hvdscale-tune hold finished runs
against the job as it is now.

    hvdscale.training.prepare job:workload '{"train_subset": 500}'      its last line is JSON
"""

import hashlib
import json
import math
import os
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn

from .. import __version__
from ..data.splits import OwnGenerators
from ..errors import DataError, HvdscaleError, PlanError, RanksDifferError, StoppedError, UsageError
from ..log.schema import Status
from ..plan.job import OF_PLACE, VERSION, changes_of
from ..plan.plan import Plan
from ..plan.settings import KEYS, Settings, key_of
from ..plan.settle import Place, settle
from ..system.source import digest_of, digest_source
from ..target import SPLITS
from ..update.model import draws_at_visits, fit_to_groups, make_model, share_model
from ..update.optimizers import WeightAverage, evaluation_weights, make_optimizer
from ..update.precision import describe_arithmetic, set_arithmetic
from ..update.replicas import LocalSteps, load_mean, outer_optimizer
from ..update.step import DataParallelStep
from ..workers import group
from ..workers.group import Workers
from ..workload import Data, MapSplit, Workload, build_model, load_data
from ..workloads import find
from .checkpoint import load_weights, save_weights
from .display import describe
from .evaluate import Evaluator, try_measuring
from .resume import kept_batch, newest_plan, with_batch
from .snapshot import Stop, restore_model

MOST_LINES, LONGEST_LINE = 1000, 200
ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


@dataclass
class Job:
    name: str               # of the workload, as the user typed it
    plan: Plan
    settings: Settings
    workload: Workload
    data: Data
    device: torch.device
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    bound_to_passes: str    # why the model runs group by group, or would need to
    average: WeightAverage | None = None        # of its weights; None: the plan has none

    def start(self, workers: Workers) -> tuple[DataParallelStep | LocalSteps, Evaluator]:
        """What takes the job's steps, and what measures its splits; both are to be closed."""
        plan, data = self.plan, self.data
        kind = LocalSteps if plan.local_steps else DataParallelStep
        return (kind(plan, self.workload, data.train, self.model, self.optimizer, workers, self.device, self.average),
                Evaluator(self.workload, data.evaluated(plan.train_eval_examples), plan.eval_batch, workers,
                          self.device, plan.precision, plan.loader_workers))

    def restore_model(self, state: dict) -> None:
        """Restore what ``save_model`` writes from a checkpoint's state."""
        restore_model(state, self.model, self.optimizer)
        if "replicas" in state["step"]:
            load_mean(self.model, [replica["model"] for replica in state["step"]["replicas"].values()])
        if self.average:
            self.average.restore(state["step"]["average"])

    def save_model(self, stop: Stop, workers: Workers) -> str | None:
        """Write the final model, if save_model is set and the run COMPLETE; what became of it; a collective."""
        if (path := self.settings.save_model) is None:
            return None
        if stop.status != Status.COMPLETE:
            return f"model: not saved, as the run is {stop.status.name}"
        with workers.together("the final model"):
            if workers.rank == 0:
                with self.average.applied() if self.average else evaluation_weights(self.model, self.optimizer):
                    save_weights(self.model, path)
        return f"model: {path}{', the averaged weights' if self.average else ''}"


def prepare(name: str, layers: list[dict], workers: Workers, data: Data | None = None,
            batch: dict | None = None) -> Job:
    """The job of the workload under the user's layers of settings; raises the same HvdscaleError on all ranks.

    data    of an earlier preparation; None: it is read
    batch   keys of the settings that an earlier start settled; None: those of the checkpoint, if kept_batch finds any
    """
    hosts = _hosts(workers)
    with workers.together("the settings"):
        workload = find(name)
        settings = settings_of(workload, layers)
        device = group.device(settings.device, workers.local_rank)
    batch = batch or kept_batch(settings, workers)
    with workers.together("the data"):
        data = data or read_data(workload, settings)
    place = Place(workers.size, *_host_share(hosts, 0), device.type, workers.transport)

    def plan_with(**by_default: int) -> Plan:
        defaults, *typed = (with_batch(settings, batch) if batch else settings).layers
        asked = Settings.build({**defaults, **by_default}, *typed)
        plan = with_data(settle(asked, workload, len(data.train), len(data.val), place, data.train_tokens),
                         data.model_args, data.record)
        return replace(plan, exact={**plan.exact, "arithmetic": describe_arithmetic(device)}) if plan.exact else plan

    with workers.together("the plan"):
        plan = plan_with()
        refuse_empty_splits(plan, settings, data)
        if "commit_every" in settings.typed and not workers.elastic:
            raise PlanError("commit_every acts only under horovodrun --host-discovery-script; leave it out")
        if plan.local_steps and workers.elastic:
            raise PlanError("sync_every does not go with an elastic job, whose workers may not share its replicas "
                            "evenly; use checkpoints: horovodrun without --host-discovery-script")
        set_arithmetic(plan, device)
        if device.type == "cpu":
            group.keep_freed_memory()
            local_workers, cores = _host_share(hosts, workers.rank)
            torch.set_num_threads(plan.threads if plan.exact else settings.threads or max(1, cores // local_workers))
        workload.check_label_smoothing(plan.label_smoothing)
        mapped = any(isinstance(split, MapSplit) for split in (data.train, data.val, data.test, data.train_eval))
        if "loader_workers" in settings.typed and plan.loader_workers and not mapped:
            raise PlanError("loader_workers applies only to map-style data sets (MapSplit), but the examples of "
                            f"{workload.name} are in memory or memory-mapped; leave it out")
        model = make_model(workload, plan, device)
        if settings.init_from:
            load_weights(model, settings.init_from)
        own = identify(name, workload, data, model)
    found = {**agree_on(plan, own, data, workers), "accepted": settings.accepted}
    share_model(model, workers)
    resumed = newest_plan(settings, workers)
    known = resumed and resumed["problem"]["ghost_batch"]
    with workers.together("the model"):
        plan, reason = fit_to_groups(
            plan, settings.group_by_group, workload, data.train, model, device,
            None if settings.ghost_batch else lambda default: plan_with(ghost_batch=known or default))
        plan = replace(plan, job={part: value for part, value in found.items() if value})
        if plan.noise_steps and not draws_at_visits(plan, workload, data.train, model, device):
            plan = replace(plan, fixed_examples=plan.train_examples)
        optimizer = outer_optimizer(plan, model, make_optimizer(plan, model))
        splits = data.evaluated(plan.train_eval_examples)
        first = next((name for name in plan.eval_splits if len(splits[name])), None)
    if plan.eval_every and first:
        with workers.together(f"the evaluation of {'unaugmented ' if first == 'train' else ''}{first} examples"):
            try_measuring(workload, splits[first], model, plan.precision, device)
    average = WeightAverage(plan, model) if plan.average else None
    return Job(name, plan, settings, workload, data, device, model, optimizer, reason, average)


def read_data(workload: Workload, settings: Settings) -> Data:
    data_dir = settings.data_dir and os.path.expanduser(settings.data_dir)
    data = load_data(workload, data_dir, settings.data_args, allow_missing=settings.allow_missing,
                     cache_dir=settings.cache_dir)
    return data.with_train_subset(settings.train_subset)


def with_data(plan: Plan, model_args: Mapping, record: Mapping) -> Plan:
    """The plan with the arguments that the data determines; raises UsageError if the user sets one of them too."""
    for name in plan.model_args.keys() & model_args.keys():
        raise UsageError(f"model_args.{name} = {plan.model_args[name]!r} cannot be set: the data determines "
                         f"it ({model_args[name]!r}); leave it out")
    return replace(plan, model_args={**model_args, **plan.model_args}, data={**plan.data, **record})


def refuse_empty_splits(plan: Plan, settings: Settings, data: Data) -> None:
    followed = plan.plateau["metric"] if plan.plateau else ""
    needed = {followed.partition("/")[0]: f"decay_metric {followed}"}
    needed |= {plan.stop_target.split: f"the target {plan.target}"} if plan.stop_target else {}
    optional = {"test"} if settings.eval_splits == KEYS["eval_splits"].default else set()
    for split in plan.eval_splits if plan.eval_every else ():
        if len(getattr(data, split)) == 0 and (split in needed or split not in optional):
            why = (f"{needed[split]} is measured on it" if split in needed else
                   f"eval_splits = {settings.eval_splits!r} names it")
            raise PlanError(f"the {split} split has no examples, but {why}, so every value would be NaN; provide "
                            f"examples, or name other splits ({', '.join(SPLITS)})")


def sketch(name: str, layers: list[dict], workers: Workers) -> str | None:
    """The plan in words, from the published sizes of missing data; None if there are none; the same on all ranks."""
    hosts = _hosts(workers)
    with workers.together("the plan"):
        workload = find(name)
        card = workload.card
        settings = settings_of(workload, layers)
        if card is None or settings.data_dir is not None or settings.in_tokens:
            return None                             # a card has no number of tokens
        device = group.device(settings.device, workers.local_rank)
        place = Place(workers.size, *_host_share(hosts, 0), device.type, workers.transport)
        examples = min(card.train_examples, settings.train_subset or card.train_examples)
        plan = with_data(settle(settings, workload, examples, card.val_examples, place), card.model_args, {})
        workload.check_label_smoothing(plan.label_smoothing)
        with torch.device("meta"):
            build_model(workload, plan.model_args)
    return (describe(plan, "none: a dry run") +
            f"\n  note: sizes as published: {card.train_examples:,} training examples; no data was read")


def settings_of(workload: Workload, layers: list[dict]) -> Settings:
    """The user's layers over the workload's defaults, which include OMP_NUM_THREADS if it is a number."""
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    threads = {"threads": int(wanted)} if wanted.isdecimal() and int(wanted) else {}
    return Settings.build({**workload.defaults, **threads}, *layers)


def _hosts(workers: Workers) -> list[tuple[str, frozenset, int]]:
    """Each rank's host, its workers' cores there, and the number of workers there, including other groups."""
    return workers.gather((socket.gethostname(), workers.cores(), workers.local_size), "hosts")


def _host_share(hosts: list[tuple[str, frozenset, int]], rank: int) -> tuple[int, int]:
    """Number of workers on the rank's host, and of cores there that they may use."""
    mine = [cores for host, cores, _ in hosts if host == hosts[rank][0]]
    return max(len(mine), hosts[rank][2]), len(frozenset().union(*mine))


def agree_on(plan: Plan, job: dict, data: Data, workers: Workers) -> dict:
    """Rank 0's job; raises RanksDifferError on all ranks if some rank has another plan, other data or source."""
    settled = json.dumps(plan.as_record({}), sort_keys=True)
    found = f"{len(data.train)} training, {len(data.val)} validation and {len(data.test)} test examples"
    if data.record:
        found += f", with {json.dumps(dict(data.record), sort_keys=True)}"
    by_rank = workers.gather((found, hashlib.sha256(settled.encode()).hexdigest(), job), "plan")
    for rank, (there, fingerprint, other) in enumerate(by_rank):
        if there != by_rank[0][0]:
            raise RanksDifferError(f"rank {rank} found {there}, rank 0 {by_rank[0][0]}; give all workers the same "
                                   "files")
        if fingerprint != by_rank[0][1]:
            raise RanksDifferError(f"rank {rank} has another plan than rank 0; give all workers the same options, "
                                   "configuration file and kind of device")
        if changes := changes_of(by_rank[0][2], {**other, "model": {}}):
            raise RanksDifferError(f"rank {rank} has another job than rank 0: {'; '.join(changes)}; give all workers "
                                   "the same files")
    return by_rank[0][2]


def identify(name: str, workload: Workload, data: Data | None, model: nn.Module | None) -> dict:
    """The part ``job`` of the plans of a workload of this name, module:object or built-in; None: unknown."""
    own = ":" in name
    defaults = {key: value for key, value in workload.defaults.items() if key_of(key) not in OF_PLACE}
    found = {"source": digest_source(sys.modules[name.partition(":")[0]]) if own else {VERSION: __version__},
             "defaults": json.loads(json.dumps(defaults, default=repr)),
             "model": {} if model is None else describe_model(model, with_lines=own),
             "data": {} if data is None else data.digests}
    return {part: value for part, value in found.items() if value}


def describe_model(model: nn.Module, with_lines: bool) -> dict:
    """The model's parameters, a digest of their names and shapes, its printed lines; {} where they are not made."""
    try:
        shapes = [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]
        count = sum(math.prod(shape) for _, shape in shapes)
        lines = [line[:LONGEST_LINE] for line in ADDRESS.sub("0x", repr(model)).splitlines()] if with_lines else []
    except Exception:                                           # of the user's __repr__
        return {}
    rest = [f"{len(lines) - MOST_LINES} more: {digest_of(lines[MOST_LINES:])}"] if len(lines) > MOST_LINES else []
    return {"torch": torch.__version__.partition("+")[0], "parameters": digest_of(shapes),
            "count": count, **({"lines": lines[:MOST_LINES] + rest} if lines else {})}


def current_job(name: str, workload: Workload, data: Data | None, model_args: Mapping) -> dict:
    """The job of a workload with its data, by default arguments but for these; None, or a model that fails: unknown."""
    model = None
    if data is not None:
        try:
            with OwnGenerators():
                model = build_model(workload, {**data.model_args, **model_args})
        except StoppedError:
            raise
        except Exception:                       # of the user's code; a run says what is wrong
            pass
    return identify(name, workload, data, model)


def main(name: str, keys: str) -> None:
    """Print the job and notes; one line on stderr and an error's exit code if there is no such workload."""
    notes = []
    try:
        workload = find(name)
        settings, data = settings_of(workload, [json.loads(keys)]), None
        try:
            data = read_data(workload, settings)
        except DataError as missing:
            notes.append(f"the data cannot be read here, so whether it changed is unknown: {missing}")
        job = current_job(name, workload, data, settings.model_args)
    except HvdscaleError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    print("\n" + json.dumps({"job": job, "notes": notes}))


if __name__ == "__main__":
    main(*sys.argv[1:])
