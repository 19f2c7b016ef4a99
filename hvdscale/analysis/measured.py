"""What logs measured beside steps and times: the model's parameters, peak memory, and the power of GPUs.

hvdscale-scale script logs them, under ``measured`` of the plan; hvdscale's trainer logs the number of parameters."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ..errors import UsageError
from ..formatting.numbers import byte_size
from .trials import Trial, parameters_of


@dataclass(frozen=True)
class Footprint:
    """Of a worker."""

    parameters: int = 0                 # of the model, 0: not known
    memory: Mapping[int, int] = field(default_factory=dict)     # by local batch, the most bytes that it took
    watts: float = np.nan               # of its GPU, the mean over runs, NaN: not known

    def most_local(self, limit: float) -> int:
        """Examples of a worker that ``limit`` bytes hold. Memory is a line through the smallest and the largest local
        batch; of one alone it is taken as proportional to the examples, the most that it can be at larger ones. Raises
        UsageError where no log measured memory, or one example is too many."""
        if not self.memory:
            raise UsageError("--memory: no log here measured how much memory a worker takes, as those of "
                             "hvdscale-scale script do; --max-local-batch N says how many examples it holds")
        (first, least), (last, most) = min(self.memory.items()), max(self.memory.items())
        each = (most - least) / (last - first) if last > first and most > least else most / last
        found = int(last + (limit - most) / each)
        if found < 1 or len(self.memory) == 1 and found < first:
            raise UsageError(f"--memory: {byte_size(int(limit))} a worker are less than the {byte_size(least)} of "
                             f"{first:,} examples, the fewest that were measured; time smaller batches")
        return found


def measured_of(trials: Iterable[Trial]) -> Footprint:
    memory: dict[int, int] = {}
    parameters, watts = 0, []
    for trial in trials:
        measured = trial.measured
        parameters = max(parameters, int(measured.get("parameters") or parameters_of(trial.plan)))
        local = int(trial.execution.get("local_batch") or 0)
        if local and measured.get("peak_memory_bytes"):
            memory[local] = max(memory.get(local, 0), *measured["peak_memory_bytes"])
        if measured.get("watts"):
            watts.append(float(np.mean(measured["watts"])))
    return Footprint(parameters, memory, float(np.mean(watts)) if watts else np.nan)
