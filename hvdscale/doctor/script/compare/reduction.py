"""How the gradient that an optimizer took is made of the ranks' local ones: weights by least squares."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..record import BackwardPass, LossCall, Update

ACTIVE = 0.999          # factor of clipping under which it has changed anything


@dataclass(frozen=True)
class Reduction:
    """One update's gradient as sum over ranks and passes of weight times local gradient."""

    weights: np.ndarray             # shape (ranks that took it, ranks that computed, passes)
    residual: float                 # what the sum leaves of it, relative
    spread: float                   # how far the ranks' gradients are apart, relative
    gradients: list[np.ndarray]     # of each rank, after the reduction and before clipping that came later
    clipped: list[float] | None = None      # factors by which ranks clipped their local gradients, before the reduction


def find_reduction(updates: list[Update], limit: float) -> Reduction | None:
    """The reduction of an update, given on each rank; None where their passes differ, or some number is not finite."""
    numbers = {len(update.passes) for update in updates}
    sizes = {len(one) for update in updates for one in (update.gradient, *(each.gradient for each in update.passes))}
    if len(numbers) != 1 or 0 in numbers or len(sizes) > 1 or not are_finite(updates):
        return None
    local = np.stack([one.gradient for one in passes_of(updates)], axis=1)
    final = _solve(local, [update.gradient for update in updates], updates)
    if not all(update.clips for update in updates):
        return final
    before = _solve(local, [update.before_clips for update in updates], updates)
    if len(updates) == 1 or before.spread <= limit and final.residual >= before.residual - limit:
        return before
    if before.spread > limit and final.spread <= limit:
        factors = [min(1.0, update.clips[-1].limit / max(update.clips[-1].norm, 1e-12)) for update in updates]
        return Reduction(final.weights, final.residual, final.spread, final.gradients, factors)
    return before


def are_finite(updates: list[Update]) -> bool:
    """Whether all gradients are, the local ones and those that the steps took."""
    return all(np.isfinite(one).all() for update in updates for one in (
        update.gradient, update.before_clips, *(each.gradient for each in update.passes)))


def _solve(local: np.ndarray, gradients: list[np.ndarray], updates: list[Update]) -> Reduction:
    shape = len(updates), len(updates[0].passes)
    own = [slice(None) if update.own is None or not update.own.any() else update.own for update in updates]
    weights = np.stack([np.linalg.lstsq(local[at], each[at], rcond=None)[0].reshape(shape)
                        for at, each in zip(own, gradients)])
    residual = max(apart(local[at] @ weight.reshape(-1), each[at]) for at, weight, each in zip(own, weights, gradients))
    spread = max(apart(gradients[0], each) for each in gradients)
    return Reduction(weights, residual, spread, gradients)


def only_call(one: BackwardPass) -> LossCall | None:
    """The pass's loss call; None where there are several or none that counts targets."""
    return one.losses[0] if len(one.losses) == 1 and one.losses[0].count and one.losses[0].total else None


@dataclass(frozen=True)
class Weighing:
    """With which weight the targets of all ranks and passes enter the gradient."""

    scale: float            # 1: the gradient is the mean over all targets, up to how they are weighed among each other
    counts: np.ndarray      # of targets, shape (ranks, passes)
    weights: np.ndarray     # of each rank's and pass's mean in the gradient, in the same shape
    error: float            # difference to the mean over all targets times ``scale``, relative


def weigh(updates: list[Update], reduction: Reduction) -> Weighing | None:
    """The weighing of an update's targets on all ranks; None where some pass's loss is unknown."""
    calls = [[only_call(one) for one in update.passes] for update in updates]
    if not all(call for row in calls for call in row):
        return None
    counts = np.array([[call.count for call in row] for row in calls])
    totals = np.array([[call.total for call in row] for row in calls])
    weights = reduction.weights[0]
    scale = float(f"{(weights * totals).sum():.6g}")       # without what rounding adds
    exact = sum(scale * counts[rank, at] / counts.sum() / totals[rank, at] * one.gradient
                for rank, update in enumerate(updates) for at, one in enumerate(update.passes))
    return Weighing(scale, counts, weights * totals, apart(exact, reduction.gradients[0]))


def factors_of_parts(reference: np.ndarray, found: np.ndarray, own: list[np.ndarray], limit: float) -> list[float]:
    """How many times the reference each rank's part of it is; empty where some part is no multiple, or all are one."""
    parts = [(reference[at], found[at]) for at in own if reference[at].any()]
    factors = [float(one @ many / (one @ one)) for one, many in parts]
    if any(apart(factor * one, many) > limit for factor, (one, many) in zip(factors, parts)):
        return []
    return factors if factors and max(factors) - min(factors) > limit * max(map(abs, factors)) else []


def apart(a: np.ndarray, b: np.ndarray) -> float:
    """The norm of the difference, relative to the larger of both."""
    larger = max(np.linalg.norm(a), np.linalg.norm(b))
    return float(np.linalg.norm(a - b) / larger) if larger else 0.0


def passes_of(updates: list[Update]) -> Iterator[BackwardPass]:
    """The passes of all updates given, such as those of one number on each rank."""
    for update in updates:
        yield from update.passes
