"""Small inputs of every kind that a report or a plan is made of, whose JSON tests/golden/json keeps."""
from functools import partial

import numpy as np

from hvdscale.analysis.worker_plan import Request
from hvdscale.log.schema import RANK_PARTS, Status
from hvdscale.scaling.runs import write_log
from tests.analysis.size.test_sizes import PATTERN
from tests.factories import landscapes, local_steps, size_grids
from tests.factories.branches import Losses, branches
from tests.factories.logs import log, save, study, trial
from tests.factories.studies import realistic

SIZES = {"gpt_10M": 1e7, "gpt_20M": 2e7, "gpt_40M": 4e7}
TIMES = dict(step=10, data=0.5, forward=2, backward=4, waiting=1, optimizer=1)  # ms; 1.5 are spent elsewhere


def scaling():
    """Weak and strong scaling with repeats, parts of a step, noise scales, a diverged and an unfinished trial."""
    random = np.random.default_rng(1)
    found = [*study().values()]
    more = [trial(100 + 10 * workers + seed, (0, 60, 120, 180), (0.9, 0.3, 0.1, 0.01), workers=workers, batch=128,
                  seed=seed, target="val/error<0.02", dataset="mnist", model="simple_cnn", train_examples=55000,
                  communication_share=0.1 * workers, cores=2, losses=np.linspace(2, 1, 60),
                  step_seconds=0.1 / workers + 0.001 * random.random(60), sqnorms=[
                      (9 + random.random(), 3 + random.random(), 128 / workers) for _ in range(60)] if workers > 1
                  else None) for workers in (1, 2, 4) for seed in (0, 1)]
    lost = [trial(1, status=Status.INFEASIBLE, dataset="mnist", model="simple_cnn", train_examples=55000,
                  target="val/error<0.02", batch=64, workers=2, seed=9),
            trial(2, status=Status.RUNNING, dataset="mnist", model="simple_cnn", train_examples=55000,
                  target="val/error<0.02", batch=64, workers=2, seed=8)]
    return [*found, log(*more, path="strong.h5"), log(*lost, path="lost.h5")]


def single_runs():
    """One run a worker count, of two targets of a metric, one of which some do not meet; and a second workload."""
    runs = [trial(workers, (0, 100, 200, 300), (0.9, 0.4, 0.15, 0.05 if workers < 4 else 0.12), workers=workers,
                  batch=32 * workers, peak_lr=0.1 * workers) for workers in (1, 2, 4)]
    other = [trial(10 + workers, (0, 100), (0.9, 0.1), workers=workers, batch=64, model="other",
                   optimizer="sgd") for workers in (1, 2)]
    return [log(*runs, *other)]


def untargeted():
    """Throughput alone, and one workload evaluated at the end of its budget alone."""
    fast = [trial(workers, (0, 100), (0.9, 0.5), workers=workers, batch=32 * workers, target=None,
                  step_seconds=np.full(50, 0.1 + 0.01 * workers)) for workers in (1, 2, 4)]
    ends = [trial(20 + 3 * at + seed, (0, 500), (0.9, 0.1 + 0.02 * abs(at - 2) + 0.003 * seed), batch=2 ** (4 + at),
                  seed=seed, model="ends", target=None) for at in range(5) for seed in range(3)]
    return [log(*fast), log(*ends, path="ends.h5")]


def searches():
    """Searches of hvdscale with pruned, diverged and repeated draws, to two targets."""
    return [log(*realistic(batch, 0.1, fewest, repeats=2), path=f"b{batch}.h5")
            for batch, fewest in ((64, 1900), (256, 700))]


def landscape():
    """Searches over rate and momentum at four batches, and runs by a rule."""
    runs = [landscapes.searched(batch, 0.02 * batch ** 0.5, 4000 / batch + 30, count=12, momentum=True, seed=3)
            for batch in (16, 64, 256, 512)]
    ruled = [landscapes.run(900 + at, batch, 90, every=10, budget=900, lr=0.005 * batch, momentum=0.9, searched=False,
                            rule=("linear", 16, 0.08)) for at, batch in enumerate((64, 256))]
    return [landscapes.logged(*own, path=f"b{at}.h5") for at, own in enumerate((*runs, ruled))]


def foreign():
    """Trials at many settings that no search of hvdscale made: of two models, with a choice of label smoothing."""
    random = np.random.default_rng(4)
    found = []
    for model, pace in (("net", 1.0), ("wide", 0.7)):
        for batch in (8, 32, 128):
            for at in range(10):
                lr, steps = float(np.exp(random.uniform(-5, 0))), np.arange(0, 401, 20)
                fall = pace * min(batch, 100) * np.exp(-np.log(lr / (0.001 * batch)) ** 2 / 4) / 1500
                found.append(trial(len(found) + 1, steps, np.maximum(0.9 * np.exp(-fall * steps), 0.02 + lr / 20),
                                   batch=batch, seed=at, model=model, peak_lr=lr, budget=400, eval_every=20,
                                   status=Status.INFEASIBLE if lr > 0.8 else Status.COMPLETE))
    return [log(*found, path="foreign.h5")]


def growing():
    """A batch that grows, beside the constant ones."""
    from tests.analysis.test_growing_batch import PACES, constant, grown
    return [log(*(constant(batch, w, seed) for batch in PACES for w in (1, 2, 4) for seed in (0, 1)),
                *(grown(w, seed) for w in (1, 2, 4) for seed in (0, 1)))]


def replicas():
    """Replicas that are synchronized every H steps, of which the largest H does not meet, beside synchronous runs."""
    return [log(*local_steps.study(seeds=2, unmet=(256,)), *(local_steps.run((2, 16), seed) for seed in range(2)))]


def branched():
    def losses(critical, factor, order):
        return float(Losses(critical).expected(factor)) + 0.02 * order + 1e-4 * (factor * order % 3)
    made = {step: partial(losses, critical) for step, critical in ((10, 2.0), (100, 8.0), (400, 100.0))}
    return [log(*branches(made), path="branches.h5"), *single_runs()]


def record_of_rank(rank, workers, own):
    """What a script left of a rank: ten updates of 8 examples, with these parts of its ``own``, in turn."""
    return {"rank": rank, "workers": workers, "optimizer": "sgd", "rate": 0.1, "torch": "2", "device": "cpu",
            "memory": 1, "parameters": 10, "watts": None,
            "look": (own.get("without_core", 0.01),) * 2, "local_workers": 1,
            "clock": own.get("clock"), "slowed_by": own.get("slowed_by"),
            "line": own.get("line", ""), "remarks": [], "profile": own.get("profile"),
            "updates": {**{name: list(np.resize({**TIMES, **own}[name], 10) / 1000) for name in RANK_PARTS},
                        "examples": [8] * 10, "tokens": [0] * 10, "batches": [1] * 10, "passes": [1] * 10,
                        "apart": [True] + [False] * 9}}


def ranks_log(path, *parts):
    """The log of a script of so many ranks, with their parts."""
    records = [record_of_rank(rank, len(parts), own) for rank, own in enumerate(parts)]
    write_log(str(path), "train.py", records, None, {"local_workers": len(parts), "untimed_passes": 10}, {}, [])


# by name: the logs, the targets, and what else is asked
REPORTS = {
    "scaling": (scaling, (), {}),
    "single-runs": (single_runs, ("val/error<0.2", "val/error<0.1"), {"budgets": "100 steps"}),
    "untargeted": (untargeted, (), {}),
    "searches": (searches, (), {"crossing": "lasting"}),
    "landscape": (landscape, (), {"budgets": "60 steps, 2 epochs", "rules": ["linear", "sqrt<=4", "none"]}),
    "foreign": (foreign, ("val/error<0.2", "val/error<0.1"), {}),
    "growing": (growing, (), {}), "replicas": (replicas, (), {}),
    "branched": (branched, (), {}),
    "sizes": (partial(size_grids.runs_to_target, seeds=2, models=SIZES), ("val/error<0.2",), {"sizes": [PATTERN]}),
    "grids": (partial(size_grids.grids, SIZES), (), {"sizes": [PATTERN], "laws": ["batch = 0.0404 * parameters^0.5"]}),
}
PLANS = {
    "plan": (scaling, Request((1, 2, 4, 8, 16, 32), price=2.0, per_node=4)),
    "plan-searched": (searches, Request((1, 2, 4), local_batch=64)),
    "plan-growing": (growing, Request((1, 2, 4, 8))), "plan-replicas": (replicas, Request((4, 8), per_node=1)),
}


def saved(made, folder):
    """The folder with the logs as files."""
    folder.mkdir(parents=True)
    for at, one in enumerate(made):
        save(one, folder / f"{at}.h5")
    return folder
