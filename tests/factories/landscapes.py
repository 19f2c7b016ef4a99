"""Sweeps made in memory whose steps to the target are a known function of the learning rate and the batch."""
import math
from types import SimpleNamespace

import numpy as np

from hvdscale.analysis.best_of_n import best_of
from hvdscale.analysis.lr_response import landscape_of, trials_confirm, valley
from hvdscale.analysis.studies import outcomes, studies_of
from hvdscale.log.schema import Status
from hvdscale.target import Target
from tests.factories.logs import MadeTable, log, trial

TARGET = Target.parse("val/error<0.2")
SPACE = [{"name": "lr", "type": "double", "scale": "log", "low": 1e-4, "high": 10.0}]


def run(id, batch, steps, *, every, budget, lr, momentum=math.nan, searched=True, rule=None, diverged=False,
        pruned=None, seed=None, asked_too={}, **changes):
    """A trial that meets TARGET after ``steps`` of its budget (inf: never), evaluated ``every`` steps.

    rule       (name, base batch, base rate) that it was made with, with searched=False
    asked_too  further keys that the user set"""
    end = 2 * every if diverged else min(steps, pruned or budget, budget)
    grid = np.arange(0, end + every, every)
    error = np.where(grid >= steps, 0.1, 0.5)
    status = (Status.INFEASIBLE if diverged else Status.INCOMPLETE if pruned and steps > pruned else Status.COMPLETE)
    sweep = {"study": f"b{batch}", "draw": id, "repeat": 0, "point": {"lr": lr}, "space": SPACE,
             "trials": 20, "max_draws": 60, "objective": "steps", "minimizes": True, "targets": [str(TARGET)],
             "prune_keep": None, "seed": 0}
    problem = {"lr_rule": "none", "base_batch": 16, "base_lr": lr, "lr_factor": 1.0}
    if rule is not None:
        problem = {"lr_rule": rule[0], "base_batch": rule[1], "base_lr": rule[2], "lr_factor": lr / rule[2]}
    made = trial(id, grid, error, batch=batch, seed=id if seed is None else seed, status=status, peak_lr=lr,
                 stop_reason=f"pruned after step {pruned}" if status == Status.INCOMPLETE else "",
                 target=str(TARGET), problem=problem, eval_every=every, budget=budget,
                 asked={"workload": "made/net", "global_batch": batch, "lr": lr, "lr_rule": "none", "steps": budget,
                        "seed": id, "checkpoint": "somewhere", "target": str(TARGET), **asked_too},
                 **({"sweep": sweep} if searched else {}), **changes)
    made.row["budget_steps"] = budget
    made.momentum = momentum
    return made


def logged(*runs, path="made.h5", **metaparameters):
    """The log of these runs; metaparameters: further columns, one value a run."""
    made = log(*runs, path=path)
    columns = {"metaparameters/momentum": np.array([one.momentum for one in runs]),
               **{f"metaparameters/{name}": np.array(values, float) for name, values in metaparameters.items()}}
    made.trials = MadeTable({**made.trials, **columns})
    return made


def searched(batch, best, fewest, *, count=20, seed=0, noise=0.2, above=3.0, momentum=False, keep=None, width=4.6,
             **changes):
    """The trials of a search at one batch: log steps are those of a valley about the rate ``best``, and noise above 0.

    best      rate with the fewest steps, effective where ``momentum`` is drawn too
    keep      prune as a search does; above: the slope beyond the best rate; width: of the rates drawn, in e-folds"""
    random = np.random.default_rng([seed, batch])
    every, budget = max(1, round(fewest / 20)), 8 * math.ceil(fewest)
    runs, met = [], []
    for id in range(count):
        effective = best * math.exp(random.uniform(-width, width))
        mu = 1 - 10 ** random.uniform(-2, -0.3) if momentum else math.nan
        exact = fewest * math.exp(valley(math.log(effective / best), 1.0, above) + random.exponential(noise))
        steps = math.ceil(exact / every) * every
        steps = steps if steps <= budget else math.inf
        limit = sorted(met)[keep - 1] if keep and len(met) >= keep else None
        runs.append(run(id, batch, steps, every=every, budget=budget, lr=effective * (1 - mu if momentum else 1),
                        momentum=mu, diverged=math.log(effective / best) > 3.5, pruned=limit, **changes))
        if steps <= (limit or budget):
            met.append(steps)
    return runs


def curve_of(*logs, target=TARGET, perfect_until=None, confidence=0.95):
    """What rules_along takes of a curve: the studies of these logs, with their best trials."""
    points = []
    studies = studies_of(logs)
    for study in studies:
        reached, rows = outcomes(study, target), np.flatnonzero(study.feasible & ~study.repeat)
        met = np.isfinite(reached.steps[rows])
        steps = best_of(reached.steps[rows], reached.before[rows], reached.last_step[rows]) if len(rows) else None
        points.append(SimpleNamespace(
            global_batch=study.global_batch, study=study, target=target, reached=reached, trials=len(rows),
            met=int(met.sum()), steps=steps or SimpleNamespace(met=False),
            best=int(rows[reached.steps[rows].argmin()]) if met.any() else None))
    return SimpleNamespace(workload=studies[0].workload, target=target, points=tuple(points), searched=tuple(points),
                           confidence=confidence,
                           regimes=SimpleNamespace(perfect_until=SimpleNamespace(value=perfect_until)))


# log(steps) beside the best rate, by u = log(rate / best rate), of searches along it alone
TOPS = {"valley": lambda u: valley(u, 1.0, 2.0, 1.0), "parabola": lambda u: 0.35 * u ** 2,
        "wide flat top": lambda u: np.maximum(0, np.abs(u) - 1.2) * 1.5,
        "one-sided cliff": lambda u: np.where(u > 0.3, np.inf, np.maximum(0, -u - 0.3))}
FEWEST, BUDGET = 500.0, 3000.0


def trials_along(shape, count, noise, random):
    """(log rates, steps at the evaluation before, steps; inf: not met) of ``count`` trials; the best rate is 1."""
    u = random.uniform(-3.5, 2.5, count)
    steps = FEWEST * np.exp(TOPS[shape](u) + noise * random.standard_normal(count))
    steps = np.ceil(steps / 10) * 10
    return u, np.where(steps <= BUDGET, steps - 10, BUDGET), np.where(steps <= BUDGET, steps, np.inf)


def claims(shape, count, searches, seed=0, tolerance=0.2):
    """(share of the rates whose true loss is within tolerance that are called surely lost, share of the true claims of
    the fitted landscape that the trials confirm, the first share without their confirmation)."""
    random, found = np.random.default_rng([seed, count]), {True: [], False: []}
    for number in range(searches):
        trials = trials_along(shape, count, (0.05, 0.1, 0.2)[number % 3], random)
        landscape = landscape_of(*trials)
        for rate in random.uniform(-3, 2, 4):
            lost = np.expm1(float(TOPS[shape](rate))) > tolerance
            if landscape and landscape.bracketed and landscape.tried(rate):
                claimed = landscape.loss(rate, 0.95).low > 1 + tolerance
                found[lost].append((claimed, claimed and trials_confirm(landscape, rate, *trials, 1 + tolerance)))
    false, true = (np.reshape(found[lost], (-1, 2)).mean(0) for lost in (False, True))        # NaN of none
    return float(false[1]), float(true[1] / true[0]), float(false[0])
