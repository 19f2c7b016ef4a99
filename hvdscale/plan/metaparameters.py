"""Metaparameters tuned per global batch, read from a TOML file.

    workload = "mnist/simple_cnn"

    [global_batch.256]
    optimizer = "nesterov"
    lr = 0.08
    momentum = 0.92

A batch's table may set any key of the optimizer, the learning rate's schedule, the loss and the model; ``lr`` is the
peak rate at that batch. Other entries in the file, such as the evidence that hvdscale-tune adds, are for people.
"""

from ..errors import PlanError, UsageError
from .settings import Settings, key_of, keys_by_heading, read_toml

_HEADED = keys_by_heading()
TUNABLE = {*_HEADED["Learning rate"], *_HEADED["Optimizer and loss"], "model_args", "ghost_batch"} - {
    "lr_per_example", "base_batch", "lr_rule", "max_lr_factor", "metaparameters", "average", "average_half_life",
    "average_start"}


def tuned_for(path: str, workload: str, global_batch: int) -> dict:
    """The keys tuned for the workload at the global batch; raises UsageError, or PlanError for a missing batch."""
    content = read_toml(path)
    tables = content.get("global_batch")
    if not isinstance(tables, dict) or not all(b.isdecimal() and isinstance(t, dict) for b, t in tables.items()):
        raise UsageError(f"{path}: has no tables such as [global_batch.256]; hvdscale-train needs one per tuned batch")
    if content.get("workload", workload) != workload:
        raise PlanError(f"{path}: was tuned for {content['workload']!r}, not for {workload!r}")
    if str(global_batch) not in tables:
        raise PlanError(f"{workload} has no metaparameters at global batch {global_batch} in {path}; tuned batches: "
                        f"{', '.join(sorted(tables, key=int)) or 'none'}. Choose one of these with --global-batch, or "
                        "--lr-rule linear")
    tuned, where = tables[str(global_batch)], f"{path}: [global_batch.{global_batch}]"
    for name in tuned:
        if key_of(name) not in TUNABLE:
            raise UsageError(f"{where}: {name} cannot be tuned per batch; what can: {', '.join(sorted(TUNABLE))}")
    if "lr" not in tuned:
        raise UsageError(f"{where}: has no lr")
    try:
        return Settings.build({}, tuned).asked()
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
