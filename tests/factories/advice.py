"""Jobs whose true time to target is known at every worker count and batch: what a plan's advice is held against.

Steps follow S = S_min (1 + (B_crit / B)^p)^(1/p). A pass of b examples takes c0 (f + (1 - f) b / 32). A ring's or a
tree's allreduce is added to it. Runs scale weakly, 32 examples a worker, with noise in their steps and times."""
from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr

from hvdscale.analysis.next_runs import decide_until
from hvdscale.analysis.report_data import analyse
from hvdscale.analysis.trials import read_trials
from hvdscale.analysis.worker_plan import Request, plans_of

from .logs import log, trial
from .timings import RING, TREE, allreduce, links_of

LOCAL, COUNTS = 32, (1, 2, 4, 8, 16, 32, 64)
STEP_NOISE, TIME_NOISE, GRID = 0.10, 0.02, 0.03     # of log S and log t; evaluations, as a share of S
NODE = 8


@dataclass(frozen=True)
class Design:
    """What was run: worker counts and seeds; whether eight workers are a node, and one node was timed."""

    counts: tuple[int, ...]
    seeds: int
    nodes: bool = False
    early: bool = False         # the knee


DESIGNS = {"1-16 workers, 3 seeds": Design((1, 2, 4, 8, 16), 3), "1-8, 3 seeds": Design((1, 2, 4, 8), 3),
           "1-4, 2 seeds": Design((1, 2, 4), 2), "1-2, 3 seeds": Design((1, 2), 3),
           "one node of 8 timed": Design((1, 2, 4, 8), 3, nodes=True),
           "early knee, 1-8": Design((1, 2, 4, 8), 3, early=True), "early knee, 1-2": Design((1, 2), 3, early=True)}


# geometric mean of the true time of what version 0.6.0 called the fastest over the best: f = 0.2, and drawn; 25 jobs
BEFORE = dict(zip(DESIGNS, ((1.21, 1.15), (1.51, 1.43), (2.82, 2.66), (5.44, 4.74), (2.10, 1.77), (1.09, 1.07),
                            (1.46, 1.30))))


@dataclass(frozen=True)
class Job:
    """One job; ``per_node`` workers share a node, with links within and between nodes: (law, hop, volume)."""

    s_min: float
    b_crit: float
    p: float
    c0: float
    fixed: float
    between: tuple[str, float, float]
    within: tuple[str, float, float] = (RING, 0.0, 0.0)
    per_node: int = 1

    def steps(self, batch):
        return self.s_min * (1 + (self.b_crit / batch) ** self.p) ** (1 / self.p)

    def step_seconds(self, workers, local):
        counts = min(workers, self.per_node), -(-workers // self.per_node)
        links = sum(allreduce(law, count, *link) for count, (law, *link) in zip(counts, (self.within, self.between)))
        return self.c0 * (self.fixed + (1 - self.fixed) * local / LOCAL) + links

    def seconds(self, workers, local):
        """True time to target."""
        return self.steps(workers * local) * self.step_seconds(workers, local)

    @property
    def best(self):
        """The least time of all worker counts and batches."""
        return min(self.seconds(workers, 2 ** power) for workers in COUNTS for power in range(6))


def log_uniform(random, low, high):
    return float(np.exp(random.uniform(np.log(low), np.log(high))))


def job(design, random, fixed=None):
    """A job of a design; fixed: the share of a full pass that does not depend on its examples, else drawn."""
    low, high = (16, 192) if design.early else (48, 1536)
    made = {"s_min": log_uniform(random, 300, 3000), "b_crit": log_uniform(random, low, high),
            "p": float(random.choice([1, 2, 4])), "c0": log_uniform(random, 0.03, 0.6),
            "fixed": random.uniform(0.05, 1)}
    made["fixed"] = made["fixed"] if fixed is None else fixed

    def link():
        share = log_uniform(random, *((0.3, 2) if design.early else (0.03, 0.6)))
        hops, law = random.uniform(0, 0.8), TREE if random.uniform() < 0.5 else RING
        return law, *links_of(law, 8, share * made["c0"], hops)
    if design.nodes:                # links between nodes are no faster than those within one
        within, between = sorted((link(), link()), key=lambda one: allreduce(one[0], 8, *one[1:]))
        return Job(**made, within=within, between=between, per_node=NODE)
    return Job(**made, between=link())


def run(job, workers, local, seed, random, step_noise=STEP_NOISE, time_noise=TIME_NOISE):
    """A run to the target, with noise."""
    steps = job.steps(workers * local)
    every = max(1, round(GRID * steps))
    met = max(1, int(np.ceil(steps * np.exp(step_noise * random.standard_normal()) / every))) * every
    seconds = job.step_seconds(workers, local) * np.exp(time_noise * random.standard_normal())
    return trial(10000 * local + 10 * workers + seed, (0, met - every, met), (0.9, 0.5, 0.1),
                 (0, (met - every) * seconds, met * seconds), workers=workers, batch=workers * local, seed=seed,
                 eval_every=every, local_workers=min(workers, job.per_node), train_examples=10 ** 6)


def probe(job, workers, local, random, steps=50, time_noise=TIME_NOISE):
    """Fifty steps without evaluation."""
    seconds = job.step_seconds(workers, local) * np.exp(time_noise * random.standard_normal())
    return trial(10000 * local + 10 * workers + 9, (), (), (), workers=workers, batch=workers * local, target=None,
                 eval_every=0, step_seconds=np.full(steps, seconds), local_workers=min(workers, job.per_node),
                 train_examples=10 ** 6)


def plan(trials, workers=COUNTS, **request):
    """The plan of these trials for these counts."""
    [group] = analyse(read_trials(log(*trials)))
    [found] = plans_of(group, Request(workers, **request))
    return found


def runs_of(job, workers, local, seeds, random, first):
    """Runs with seeds from ``first`` on; a probe where there are none."""
    if not seeds:
        return [probe(job, workers, local, random)]
    return [run(job, workers, local, first + one, random) for one in range(seeds)]


def loss_of(job, plan):
    """log of the true time of what a plan calls fastest over that of the best."""
    fastest = plan.fastest
    return float(np.log(job.seconds(fastest.workers, fastest.global_batch / fastest.workers) / job.best))


def play(job, trials, enough, random):
    """Measure until the expected loss is low enough: (the first plan, the last, worker-hours over those before)."""
    trials, first = list(trials), plan(trials)
    plans, before = [first], sum(_hours(job, one) for one in trials)

    def measure(wanted):
        for one in wanted:
            for made in runs_of(job, one.place.workers, one.place.local_batch, one.seeds, random, len(trials)):
                made.row["id"] = 10 ** 7 + len(trials)
                trials.append(made)
        plans.append(plan(trials))
        return plans[-1]
    for _ in decide_until(measure, first, enough):
        pass
    return first, plans[-1], sum(_hours(job, one) for one in trials) / before - 1


def _hours(job, made):
    workers, steps = made.row["workers"], made.step[-1] if len(made.step) else len(made.step_seconds)
    return workers * steps * job.step_seconds(workers, made.row["global_batch"] / workers) / 3600


def made(name, number, seed=0, fixed=None):
    """(the job, its runs) of a design's number."""
    design = DESIGNS[name]
    random = np.random.default_rng([seed, list(DESIGNS).index(name), number])
    found = job(design, random, fixed)
    return found, [run(found, workers, LOCAL, one, random) for workers in design.counts for one in range(design.seeds)]


def by_rule(job, found):
    """What rules of thumb lose at 32 examples a worker: the best measured, 64 workers, the noise scale as the batch
    (within a factor 2), and 4 times the most workers measured if the last doubling gained 15 %."""
    measured = {one.workers: found.curve.at(one.global_batch).value * one.value for one in found.times.timings.found
                if one.place.examples == LOCAL}
    *_, before, most = min(measured), *sorted(measured)
    fastest = min(measured, key=measured.get)
    gains = before == most or measured[before] / measured[most] > 1.15
    scale = job.b_crit * 2.0 ** np.random.default_rng(int(1e6 * job.c0)).uniform(-1, 1)
    picked = {"best measured": fastest, "64 workers": 64, "4x, if it gains": min(64, 4 * most) if gains else fastest,
              "noise scale": min(COUNTS, key=lambda workers: abs(np.log(workers * LOCAL / scale)))}
    return {name: float(np.log(job.seconds(workers, LOCAL) / job.best)) for name, workers in picked.items()}


def judge(job, found):
    """What was said of the fastest, and what is true: the loss, the expected one, the chance to be within 20 %, whether
    it is, whether the fewest and the most workers of the fastest hold, and the share of intervals that hold."""
    decision, best = found.decision, min((job.seconds(w, 2 ** power), w) for w in COUNTS for power in range(6))[1]
    few, many = decision.fastest_workers
    true = [(option, job.seconds(option.workers, option.global_batch / option.workers)) for option in found.options]
    loss = loss_of(job, found)
    return {"loss": loss, "expected": float(np.log1p(decision.loss(found.fastest.at))),
            "chance": decision.chance(found.fastest.at, 0.2), "within": loss <= np.log(1.2),
            "ends": few <= best <= many, "no gain": many < COUNTS[-1], "held": float(np.mean([
                option.seconds.low <= seconds <= option.seconds.high for option, seconds in true]))}


def advise(name, jobs, seed=0, fixed=None):
    """judge and by_rule of jobs of a design: two lists of one record each."""
    found = [(job, plan(trials)) for job, trials in (made(name, number, seed, fixed) for number in range(jobs))]
    return [judge(*pair) for pair in found], [by_rule(*pair) for pair in found]


SCALED, STEPS, STEP_SECONDS, TIMING = (1, 2, 4, 8), 3000, 0.01, 0.02    # of runs that scale perfectly, with noise


def plan_of_runs(seeds, noise, random):
    """A plan from runs at SCALED with a fixed batch a worker; log(steps) of a run has this noise."""
    made = []
    for workers in SCALED:
        for seed in range(seeds):
            steps = max(2, round(STEPS / workers * np.exp(noise * random.standard_normal())))
            seconds = STEP_SECONDS * np.exp(TIMING * random.standard_normal())
            made.append(trial(100 * workers + seed, (0, steps - 1, steps), (0.9, 0.5, 0.1),
                              (0, (steps - 1) * seconds, steps * seconds), workers=workers, batch=32 * workers,
                              seed=100 * workers + seed, eval_every=1, train_examples=10 ** 6))
    return plan(made, workers=SCALED, local_batch=32)


def deadlines_kept(seeds, noise, plans, seed=0, sure=0.95):
    """(how often a run keeps a deadline that a plan is this sure of, how often the mean of many runs does)."""
    random, kept = np.random.default_rng([seed, seeds]), []
    for _ in range(plans):
        found = plan_of_runs(seeds, noise, random)
        for option in found.options:
            true = STEPS / option.workers * STEP_SECONDS
            room = random.uniform(-1, 4) * noise
            found.request = replace(found.request, deadline=true * np.exp(room))
            if found.chance_within(option) >= sure:
                kept.append((ndtr(room / np.hypot(noise, TIMING)), room > 0))
    return tuple(float(share) for share in np.mean(kept, 0))
