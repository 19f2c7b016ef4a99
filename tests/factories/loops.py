"""Made-up loops of changes to a trainer, each decided by steps to a target, looked at after every run."""
from __future__ import annotations

import numpy as np
import scipy

from hvdscale.analysis.decision.sequence import BETTER, DECISIONS, LEAST, WORSE, Sides, share_of_error

CHANGES, BASE, MOST = 30, 10, 10        # of a loop; runs of the baseline, the most of a candidate
ERROR, WITHIN = 0.05, 0.02
KINDS = {"log-normal": {}, "one run in ten five times as long": {"slow": 0.1}, "a third do not meet": {"unmet": 0.35},
         "luck 0.8 alike": {"luck": 0.8}, "luck 0.8 alike, one in ten slow": {"luck": 0.8, "slow": 0.1},
         "evaluations one deviation apart": {"spacing": 1.0}, "each its own noise": {"noises": (0.02, 0.2, 0.02, 0.2)},
         "noise of 2%, then of 10 to 20%": {"noises": (0.02, 0.02, 0.1, 0.2)}, "two modes, 1.5 apart": {"far": 1.5}}


def made_runs(random, noise, shape, luck=None, alike=0.0, slow=0.0, unmet=0.0, spacing=0.0, far=0.0):
    """Logarithms of steps to target, shape (..., runs); ``luck``: that of the seeds, on both sides."""
    own = random.standard_normal(shape)
    own = 0.2 * own + far * random.choice((-1, 1), shape) if far else own
    logs = noise * (own if luck is None else np.sqrt(alike) * luck + np.sqrt(1 - alike) * own)
    logs = logs + np.log(5) * (random.random(shape) < slow)
    if spacing:
        logs = np.ceil(logs / (spacing * noise)) * spacing * noise
    return np.minimum(logs, noise * scipy.special.ndtri(1 - unmet)) if unmet else logs


def loops(count, kind="log-normal", seed=0, paired=True):
    """(share of loops that keep a change without effect, that call one worse); paired: by the baseline's seeds."""
    random, how = np.random.default_rng([seed, 5]), dict(KINDS[kind])
    alike, noises = how.pop("luck", 0.0), np.log(how.pop("noises", (0.02, 0.2)))
    noise = np.exp(random.uniform(*noises[:2], (count, 1)))
    luck = random.standard_normal((count, BASE))
    before, found = made_runs(random, noise, (count, BASE), luck, alike, **how), np.zeros((2, count), bool)
    for number in range(1, CHANGES + 1):
        theirs = np.exp(random.uniform(*noises[2:], (count, 1))) if len(noises) > 2 else noise
        after = made_runs(random, theirs, (count, MOST), luck[:, :MOST] if paired else None, alike, **how)
        rough = (how.get("spacing", 0) * noise[:, 0]) ** 2 / 12
        open_ = np.ones(count, bool)
        for runs in range(LEAST, MOST + 1):
            sides = Sides(before, after[:, :runs], runs if paired else 0, rough)
            decided = sides.decide(ERROR * share_of_error(number), WITHIN)
            found |= open_ & (decided == [[DECISIONS.index(BETTER)], [DECISIONS.index(WORSE)]])
            open_ &= decided == 3
    return tuple(float(one) for one in found.mean(1))


def fixed_runs(effect, error):
    """The fewest runs of each with which Student's test, done once, finds an effect, in deviations, at 80 %."""
    def power(runs):
        freedom = 2 * runs - 2
        least = scipy.special.stdtrit(freedom, 1 - error / 2)
        return 1 - scipy.special.nctdtr(freedom, effect * np.sqrt(runs / 2), least)
    return next(runs for runs in range(2, 100) if power(runs) >= 0.8)


def seen_by_five():
    """The smallest effect, in deviations, that five runs of each see at 80 % with an error of ERROR."""
    return next(effect for effect in np.arange(0.5, 5, 0.01) if fixed_runs(effect, ERROR) <= 5)


def found_changes(count, error=ERROR, alike=0.0, seed=0, paired=True):
    """(share of changes of twice that size that are found, mean runs of each over those of a fixed-size test)."""
    random, effect, most = np.random.default_rng([seed, 6]), 2 * seen_by_five(), 30
    luck = random.standard_normal((count, most))
    before = made_runs(random, 1.0, luck.shape, luck, alike)
    after = made_runs(random, 1.0, luck.shape, luck if paired else None, alike) - effect
    runs_of = np.full(count, most)
    for runs in range(most, LEAST - 1, -1):
        decided = Sides(before[:, :runs], after[:, :runs], runs if paired else 0).decide(error, 0.0)
        runs_of[decided == DECISIONS.index(BETTER)] = runs
    return float(np.mean(runs_of < most)), float(runs_of.mean()) / fixed_runs(effect, error)
