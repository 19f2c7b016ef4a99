"""Parameters that are divided among the ranks: FullyShardedDataParallel, fully_shard with its local gradients, and
tensor parallelism."""
from __future__ import annotations

from types import ModuleType

from .listener import Watch

TENSOR_PARALLEL = "parallelize_module"


def install(watch: Watch) -> None:
    """Tell when a model is sharded, by whatever module of torch."""
    def noting(original):
        def shard(*args, **options):
            watch.tell("sharded", original.__qualname__.split(".")[0])
            return original(*args, **options)
        return shard

    def follow_class(module: ModuleType) -> None:
        watch.patches.replace(module.FullyShardedDataParallel, "__init__", noting)

    def follow_function(module: ModuleType) -> None:
        watch.patches.replace(module, "fully_shard", noting)

    def noting_gradients(original):
        def reduce(fsdp_params, unsharded_grads, *args, **options):
            for one, gradient in zip(fsdp_params, unsharded_grads):
                watch.tell("gradient", one.sharded_param, gradient)
            return original(fsdp_params, unsharded_grads, *args, **options)
        return reduce

    def follow_reduction(module: ModuleType) -> None:
        watch.patches.replace(module, "foreach_reduce", noting_gradients)

    if watch.details:
        watch.patches.when_imported("torch.distributed.fsdp._fully_shard._fsdp_param_group", follow_reduction)
    watch.patches.when_imported("torch.distributed.fsdp.fully_sharded_data_parallel", follow_class)
    for name in ("torch.distributed.tensor.parallel.api", "torch.distributed.tensor.parallel"):
        watch.patches.when_imported(name, lambda module: watch.patches.replace(module, TENSOR_PARALLEL, noting))
    for name in ("torch.distributed.fsdp._fully_shard._fully_shard", "torch.distributed.fsdp._fully_shard",
                 "torch.distributed.fsdp"):
        watch.patches.when_imported(name, follow_function)
