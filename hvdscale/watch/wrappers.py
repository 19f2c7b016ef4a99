"""What starts or joins workers for a script: those that it starts itself run already, so its function is called as the
worker that this one is; Lightning and accelerate take the devices of those that run. And how accelerate gathers."""

import inspect
import os
import sys
from multiprocessing.process import BaseProcess
from types import SimpleNamespace

import torch.multiprocessing

from ..formatting.numbers import counted
from .collectives import counting
from .devices import missing
from .lines import called_by_script, line_of_call
from .listener import Watch
from .remarks import PROCESSES, WITHOUT_REPEATS

CONNECTORS = {"lightning.pytorch.trainer.connectors.accelerator_connector": "_AcceleratorConnector",
              "pytorch_lightning.trainer.connectors.accelerator_connector": "_AcceleratorConnector",
              "lightning.fabric.connector": "_Connector", "lightning_fabric.connector": "_Connector"}
LOGGERS = {"torch.utils.tensorboard.writer": ("SummaryWriter", "add_scalar"), "wandb.sdk.wandb_run": ("Run", "log"),
           "lightning.pytorch.loggers.csv_logs": ("CSVLogger", "log_metrics"),
           "lightning.fabric.loggers.csv_logs": ("CSVLogger", "log_metrics")}
OF_GPUS = ("gpu", "cuda")
SHARED_MEMORY = "DeepSpeed's op for shared memory, which compiles for minutes, was set aside for Gloo"
DEVICES = "Lightning's devices={!r} and num_nodes={!r} were {} and {}, as the run has {} in all"
ACCELERATOR = "Lightning's accelerator={!r} ({}) was 'cpu', as torch sees no GPU here."
INSTEAD = "The workers that the script starts itself ({}) were the doctor's."
OTHER_COUNT = ("{}: it starts {}, and this run has {}; take the number from torch.cuda.device_count(), or from an "
               "argument of the script for which the doctor is given {{workers}}")
BY_LIBRARY = ("a library that the script calls starts workers itself (torch.multiprocessing). The doctor starts them, "
              "as torchrun does: call the function of one worker where RANK is set")
NOT_FOLLOWED = f"{PROCESSES} ({{}}); torch.multiprocessing.spawn is followed, and so is a script that torchrun starts"


def install(watch: Watch) -> None:
    """Have Lightning's Trainer and Fabric take the workers of this run, whatever number the script names; without GPUs,
    have accelerate join workers on the CPU, which it does only if asked, and Lightning take it in their place."""
    _follow_spawning(watch)
    nodes = max(1, watch.workers // max(1, watch.local_workers))

    def choose(given):
        asked = given["devices"], given["num_nodes"]
        if asked != (watch.local_workers, nodes):
            watch.tell("remark", DEVICES.format(*asked, watch.local_workers, nodes, watch.workers))
        given.update(devices=watch.local_workers, num_nodes=nodes)
        if given["accelerator"] in OF_GPUS and missing():
            watch.tell("instead", ACCELERATOR.format(given["accelerator"], line_of_call()))
            given["accelerator"] = "cpu"
    for name, connector in CONNECTORS.items():
        watch.patches.when_imported(name, lambda module, connector=connector: watch.patches.changing(
            getattr(module, connector), "__init__", choose))
    watch.patches.when_imported("accelerate.accelerator", lambda module: watch.patches.around(
        module.Accelerator, WITHOUT_REPEATS, counting(watch)))
    watch.patches.when_imported("deepspeed.comm.torch", lambda module: watch.patches.replace(
        module, "build_shm_op", lambda original: lambda: watch.tell("remark", SHARED_MEMORY)))
    for name, (owner, method) in LOGGERS.items():
        watch.patches.when_imported(name, lambda module, owner=owner, method=method: watch.patches.before(
            getattr(module, owner), method, lambda _, *given, **named: _log(watch, method, *given, *named.values())))
    if missing():
        watch.patches.when_imported("accelerate.state", lambda module: watch.patches.changing(
            module.PartialState, "__init__", lambda given: given.update(cpu=True)))


def _log(watch: Watch, method: str, name: object, value: object = None, *_: object) -> None:
    if method != "log_metrics" or os.environ.get("RANK", "0") == "0":       # else Lightning's loggers do nothing
        watch.tell("logged", name if isinstance(name, dict) else {name: value})


def _follow_spawning(watch: Watch) -> None:
    def calling(original):
        signature = inspect.signature(original)

        def spawn(*args, **options):
            if not called_by_script():
                raise SystemExit(BY_LIBRARY)
            given = signature.bind(*args, **options)
            given.apply_defaults()
            asked, line = given.arguments, line_of_call()
            if asked["nprocs"] != watch.local_workers:
                raise SystemExit(OTHER_COUNT.format(line, counted(asked["nprocs"], "worker"), watch.local_workers))
            watch.tell("instead", INSTEAD.format(line))
            asked["fn"](int(os.environ.get("LOCAL_RANK", 0)), *asked["args"])
            return None if asked["join"] else SimpleNamespace(
                processes=[], pids=list, join=lambda timeout=None, grace_period=None: True)
        return spawn

    def noting_start(original):
        def start(process):
            if called_by_script():
                watch.tell("remark", NOT_FOLLOWED.format(line_of_call()))
            return original(process)
        return start
    watch.patches.replace(BaseProcess, "start", noting_start)
    for owner in (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
        for name in ("spawn", "start_processes"):
            watch.patches.replace(owner, name, calling)
