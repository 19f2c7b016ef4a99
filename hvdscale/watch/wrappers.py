"""Lightning's and accelerate's choice of devices, which has to be that of the workers that run; and how accelerate
gathers what an evaluation found."""
from __future__ import annotations

import inspect

from .collectives import counting
from .devices import missing
from .lines import line_of_call
from .listener import Watch
from .remarks import WITHOUT_REPEATS

CONNECTORS = {"lightning.pytorch.trainer.connectors.accelerator_connector": "_AcceleratorConnector",
              "pytorch_lightning.trainer.connectors.accelerator_connector": "_AcceleratorConnector",
              "lightning.fabric.connector": "_Connector", "lightning_fabric.connector": "_Connector"}
OF_GPUS = ("gpu", "cuda")
SHARED_MEMORY = "DeepSpeed's op for shared memory, which compiles for minutes, was set aside for Gloo"
DEVICES = "Lightning's devices={!r} and num_nodes={!r} were {} and {}, as the run has {} in all"
ACCELERATOR = "Lightning's accelerator={!r} ({}) was 'cpu', as torch sees no GPU here."


def install(watch: Watch) -> None:
    """Have Lightning's Trainer and Fabric take the workers of this run, whatever number the script names; without GPUs,
    have accelerate join workers on the CPU, which it does only if asked, and Lightning take it in their place."""
    nodes = max(1, watch.workers // max(1, watch.local_workers))

    def choosing(original):
        signature = inspect.signature(original)

        def begin(*args, **options):
            given = signature.bind(*args, **options)
            given.apply_defaults()
            asked = given.arguments["devices"], given.arguments["num_nodes"]
            if asked != (watch.local_workers, nodes):
                watch.tell("remark", DEVICES.format(*asked, watch.local_workers, nodes, watch.workers))
            given.arguments.update(devices=watch.local_workers, num_nodes=nodes)
            if given.arguments["accelerator"] in OF_GPUS and missing():
                watch.tell("instead", ACCELERATOR.format(given.arguments["accelerator"], line_of_call()))
                given.arguments["accelerator"] = "cpu"
            return original(*given.args, **given.kwargs)
        return begin

    for name, connector in CONNECTORS.items():
        watch.patches.when_imported(name, lambda module, connector=connector: watch.patches.replace(
            getattr(module, connector), "__init__", choosing))
    watch.patches.when_imported("accelerate.accelerator", lambda module: watch.patches.replace(
        module.Accelerator, WITHOUT_REPEATS, counting(watch)))

    watch.patches.when_imported("deepspeed.comm.torch", lambda module: watch.patches.replace(
        module, "build_shm_op", lambda original: lambda: watch.tell("remark", SHARED_MEMORY)))
    if missing():
        watch.patches.when_imported("accelerate.state", lambda module: watch.patches.replace(
            module.PartialState, "__init__", _joining_on_cpu))


def _joining_on_cpu(original):
    def begin(state, *args, **options):
        options.pop("cpu", None)
        return original(state, True, *args[1:], **options)
    return begin
