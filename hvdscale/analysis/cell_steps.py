"""What the steps of a cell's runs measured: the gradient noise scale, and where a step's time went."""
from __future__ import annotations

import numpy as np

from .intervals import CONFIDENCE, geometric_mean
from .noise import LEAST_STEPS, Noise, NoiseSteps, noise_scale
from .rank_times import mean_of
from .step_breakdown import NAMES, StepParts
from .steps import RunCell
from .trials import SeedKey

QUARTERS = 4                # of a run's measured steps


def parts_of(cell: RunCell) -> StepParts | None:
    """The parts of a cell's runs; None where no run has them."""
    found = [run.trial.step_parts for run in cell.runs if run.trial.step_parts and run.trial.step_parts.steps]
    if not found:
        return None
    data, compute, communication = (float(np.mean([getattr(one, name) for one in found])) for name in NAMES)
    return StepParts(sum(one.steps for one in found), float(geometric_mean([one.seconds for one in found])), data,
                     compute, communication, mean_of([one.ranks for one in found if one.ranks]))


def noise_of(cell: RunCell, confidence: float = CONFIDENCE) -> Noise | None:
    """The noise scale of a cell's runs, one per seed; None where no step was measured."""
    by_seed: dict[SeedKey, NoiseSteps] = {}
    for run in cell.runs:
        if run.trial.noise is not None:
            by_seed.setdefault(run.trial.seed_key, run.trial.noise)
    runs = list(by_seed.values())
    if not runs:
        return None
    quarters = [[run.part(_quarter(len(run.step), at)) for run in runs] for at in range(QUARTERS)]
    enough = min(sum(len(part.step) for part in parts) for parts in quarters) >= LEAST_STEPS
    names = [name for name in runs[0].groups if all(name in run.groups for run in runs)]
    groups = {name: noise_scale([run.groups[name] for run in runs], confidence) for name in names}
    return Noise(noise_scale(runs, confidence),
                 tuple(noise_scale(parts if enough else [], confidence) for parts in quarters), groups)


def _quarter(steps: int, at: int) -> slice:
    return slice(steps * at // QUARTERS, steps * (at + 1) // QUARTERS)
