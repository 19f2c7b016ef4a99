"""Parameters that are divided among the ranks: FullyShardedDataParallel, fully_shard with its local gradients, and
tensor parallelism."""
from __future__ import annotations

from .listener import Watch

TENSOR_PARALLEL = "parallelize_module"


def install(watch: Watch) -> None:
    """Tell when a model is sharded, by whatever module of torch."""
    def follow(module: str, *path: str) -> None:
        def found(owner) -> None:
            for name in path[:-1]:
                owner = getattr(owner, name)
            watch.patches.before(owner, path[-1], lambda *_, **__: watch.tell("sharded", path[0]))
        watch.patches.when_imported(module, found)

    def reducing(fsdp_params, unsharded_grads, *_, **__):
        for one, gradient in zip(fsdp_params, unsharded_grads):
            watch.tell("gradient", one.sharded_param, gradient)
    if watch.details:
        watch.patches.when_imported("torch.distributed.fsdp._fully_shard._fsdp_param_group",
                                    lambda module: watch.patches.before(module, "foreach_reduce", reducing))
    follow("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel", "__init__")
    for name in ("torch.distributed.tensor.parallel.api", "torch.distributed.tensor.parallel"):
        follow(name, TENSOR_PARALLEL)
    for name in ("torch.distributed.fsdp._fully_shard._fully_shard", "torch.distributed.fsdp._fully_shard",
                 "torch.distributed.fsdp"):
        follow(name, "fully_shard")
