"""Metaparameters tuned per global batch, read from a TOML file.

    workload = "mnist/simple_cnn"

    [global_batch.256]
    optimizer = "nesterov"
    lr = 0.08
    momentum = 0.92

A batch's table may set any key of the optimizer, the learning rate's schedule, the loss and the model; ``lr`` is the
peak rate at that batch. Other entries in the file, such as the evidence that hvdscale-tune adds, are for people.
"""
from __future__ import annotations

from ..errors import PlanError, UsageError
from .settings import Settings, key_of, read_toml

TUNABLE = frozenset({"optimizer", "lr", "momentum", "momentum_half_life", "lr_in_velocity", "momentum_correction",
                     "beta1", "beta1_half_life", "beta2", "beta2_half_life", "epsilon", "trust_coefficient",
                     "adamw_lr", "muon_scale", "weight_decay", "decay_timescale", "decay_norm_and_bias", "clip_norm",
                     "label_smoothing", "warmup", "warmup_length", "warmup_start_factor", "decay", "decay_end",
                     "decay_start", "decay_at", "decay_factor", "decay_metric", "decay_patience", "decay_threshold",
                     "decay_cooldown", "end_lr_factor", "optimizer_args", "model_args", "ghost_batch"})


def tuned_for(path: str, workload: str, global_batch: int) -> dict:
    """The keys tuned for the workload at the global batch.

    Raises UsageError for a file that is none of these, PlanError for another workload's file and for a batch without an
    entry, naming those that have one.
    """
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
