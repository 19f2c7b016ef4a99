"""Whether a change is better, worse or alike, by a test that may be looked at after every run: see ../README.rst; and
the ledger, a file of what comparisons against one baseline have spent of an error.

The k-th comparison may spend 1 / sqrt(k) - 1 / sqrt(k + 1) of it (Foster & Stine 2008, alpha-spending), so that all
together never spend more. A comparison that shares a run with an earlier one is that one, looked at again."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import scipy

from ...errors import HvdscaleError, UsageError
from ...system.inputs import input_text, refusal
from ...system.lock import Lock
from ...system.outputs import replace_own
from ..trials import Trial

MIXTURE = 16.0      # G
PAIRED = 0.2        # weight of the pairs
UNLIKE = 0.6        # u, the log r that halves the likelihood of a null hypothesis
LOG_RATIOS = np.linspace(-5, 5, 51)                             # log r; w: most often alike, and an effect of G
EFFECTS, SHARES = MIXTURE * np.array([[1.0], [50.0], [2500.0]]), np.array([[0.94], [0.04], [0.02]])
WEIGHTS = SHARES * (0.7 * (np.arange(51) == 25) + 0.3 * np.exp(-0.5 * (LOG_RATIOS / 0.7) ** 2) / 8.77)
FINEST = 1e-8       # variance of a logarithm that is taken for none
LEAST = 3           # runs of each side that a decision takes: of two, both may be unlucky alike
POWER = 0.8
OFFSETS = np.geomspace(1e-5, 50, 1500)      # of the ends of an interval from its middle
DRAWS = 200                     # of runs to come
LOOKS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 25, 30, 40, MOST_MORE := 50)       # numbers of runs that are foreseen
BETTER, WORSE, ALIKE, OPEN = DECISIONS = ("better", "worse", "alike", "open")
FORMAT = {"format": "hvdscale-ledger", "version": 1}


@dataclass(frozen=True, eq=False)
class Sides:
    """Logarithms of a measurement that is better if lower, of both sides: arrays of shape (..., runs)."""

    before: np.ndarray
    after: np.ndarray
    pairs: int = 0                      # so many runs at the beginning of each side are of the same seeds
    rough: float | np.ndarray = 0.0     # variance that the spacing of evaluations adds to each

    @property
    def runs(self) -> tuple[int, int]:
        """Of the baseline, of the candidate."""
        return self.before.shape[-1], self.after.shape[-1]

    @property
    def difference(self) -> np.ndarray:
        return self.after.mean(-1) - self.before.mean(-1)

    @property
    def variances(self) -> list[np.ndarray]:
        """Of a run of the baseline, of the candidate; of at least two runs each."""
        return [side.var(-1, ddof=1) + np.maximum(self.rough, FINEST) for side in (self.before, self.after)]

    def mean_of_pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean difference of pairs, and the variance of one."""
        apart = self.after[..., :self.pairs] - self.before[..., :self.pairs]
        return apart.mean(-1), apart.var(-1, ddof=1) + 2 * np.maximum(self.rough, FINEST)

    def log_evidence(self, true: float | np.ndarray = 0.0) -> np.ndarray:
        """log E against a true difference, of shape (...); of at least two runs of each."""
        (n, k), over = self.runs, np.exp(-2 * LOG_RATIOS)                   # 1 / r^2
        before, after = (one[..., None] for one in self.variances)
        squares, away = (n - 1) * before + (k - 1) * after * over, (self.difference - true)[..., None] ** 2
        m, common = n * k * over / (n + k * over), -k * LOG_RATIOS - 0.5 * np.log(n + k * over)
        effect = 1 + m * EFFECTS * (1 + 1 / over) / 2
        null = common - (n + k - 1) / 2 * np.log(squares + m * away) - np.log1p((LOG_RATIOS / UNLIKE) ** 2)
        apart = common - (n + k - 1) / 2 * np.log(squares[..., None, :] + m / effect * away[..., None, :]) + np.log(
            WEIGHTS / effect ** 0.5) - null.max(-1)[..., None, None]
        found = np.log(np.exp(np.minimum(apart, 700)).sum((-2, -1)))
        if self.pairs < LEAST:
            return found
        mean, variance = self.mean_of_pairs()
        square, grown = (mean - true) ** 2 * self.pairs / variance / (self.pairs - 1), 1 + self.pairs * MIXTURE
        paired = self.pairs / 2 * np.log((1 + square) / (1 + square / grown)) - 0.5 * np.log(grown)
        return np.logaddexp(np.log(1 - PAIRED) + found, np.log(PAIRED) + paired)

    def interval(self, error: float) -> tuple[float, float]:
        """Ends of the difference, of one pair of sides; infinite where no difference is excluded."""
        beyond = [self.log_evidence(self.difference + sign * OFFSETS) >= -np.log(error) for sign in (-1, 1)]
        low, high = (OFFSETS[one.argmax()] if one.any() else np.inf for one in beyond)
        return float(self.difference - low), float(self.difference + high)

    def decide(self, error: float, within: float) -> np.ndarray:
        """DECISIONS by index, of shape (...), alike within a share; of at least LEAST runs of each."""
        alike, apart = self._log_alike(within) <= np.log(error), -self.log_evidence() <= np.log(error)
        return np.select([alike, apart & (self.difference < 0), apart], [2, 0, 1], 3)

    def _log_alike(self, within: float) -> np.ndarray:
        """Logarithm of the smallest error at which both are alike."""
        near = np.log1p(within)
        inside = np.abs(self.difference) <= near
        least = np.minimum(self.log_evidence(-near), self.log_evidence(near)) if inside.any() else 0.0
        return np.where(inside, -least, np.inf)

    def chance(self, decision: str, within: float) -> float:
        """The smallest error at which they are decided so; of OPEN at which they would be better or worse."""
        return float(np.exp(np.minimum(self._log_alike(within) if decision == ALIKE else -self.log_evidence(), 0)))

    def draw(self, runs: int) -> list[np.ndarray]:
        """Deviations of runs of the baseline and of the candidate, shape (DRAWS, runs), alike as those of one seed."""
        luck, *own = np.random.default_rng([0, 13]).standard_normal((3, DRAWS, runs))
        variances, alike = self.variances, 0.0
        if self.pairs >= LEAST:
            alike = float(np.clip((sum(variances) - self.mean_of_pairs()[1]) / 2, 0, min(variances)))
        return [np.sqrt(alike) * luck + np.sqrt(variance - alike) * each for variance, each in zip(variances, own)]

    def smallest(self, error: float) -> float:
        """The smallest difference, as a share, that so many runs show with probability POWER; inf: none."""
        before, after = (side[:, :runs] for side, runs in zip(self.draw(max(self.runs)), self.runs))
        made, sizes = Sides(before, after, self.pairs), np.sqrt(sum(self.variances)) * np.geomspace(0.1, 100, 40)
        shares = [float(np.mean(made.log_evidence(size) >= -np.log(error))) for size in sizes]
        return float(np.expm1(np.interp(POWER, shares, sizes))) if shares[-1] >= POWER else np.inf

    def runs_more(self, error: float, within: float, both: bool) -> tuple[float, float]:
        """Quartiles of the number of runs more, of both sides or of the candidate alone, that decide if the difference
        and the spread are as they seem; inf: more than MOST_MORE."""
        draws, all_paired = np.full(DRAWS, np.inf), both and self.runs == (self.pairs, self.pairs)
        more = [side.mean() + each for side, each in zip((self.before, self.after), self.draw(MOST_MORE))]
        for count in LOOKS:
            still = np.flatnonzero(np.isinf(draws))
            before, after = (np.concatenate([np.broadcast_to(side, (len(still), len(side))), each[still, :count]], -1)
                             for side, each in zip((self.before, self.after), more))
            sides = Sides(before if both else self.before, after, self.pairs + count * all_paired, self.rough)
            draws[still[sides.decide(error, within) < DECISIONS.index(OPEN)]] = count
        low, high = np.sort(draws)[[DRAWS // 4, 3 * DRAWS // 4]]
        return float(low), float(high)


def smallest_difference(reached: float, variance: float | np.ndarray, freedom: float) -> float:
    """The share that shows beyond so many standard errors with probability POWER; inf: none."""
    if not np.isfinite(reached):
        return np.inf
    return float(np.expm1(scipy.special.nctdtrinc(freedom, 1 - POWER, reached) * np.sqrt(variance)))


def spend(path: str, confidence: float, what: str, baseline: Iterable[Trial], candidate: Iterable[Trial]) -> float:
    """The share of the error for this comparison, entered in the file, which is made where there is none. Another
    measure or target of the same runs, ``what``, is another comparison. UsageError for another baseline or level,
    HvdscaleError where the file is no ledger or not writable."""
    ours, theirs = {*map(digest_of, baseline)}, {f"{digest_of(trial)} {what}" for trial in candidate}
    with Lock.take(path, attempts=250):
        ledger = _read(path, confidence)
        if ledger["confidence"] != confidence:
            raise UsageError(f"--ledger {path}: is kept at a confidence of {ledger['confidence']:g}; give --confidence "
                             f"{ledger['confidence']:g}, or another --ledger")
        known, earlier = set(ledger["baseline"]), ledger["comparisons"]
        if known and not known & ours:
            raise UsageError(f"--ledger {path}: is of another baseline, with none of these runs; give another --ledger")
        at = max((at for at, one in enumerate(earlier) if theirs & set(one)), default=len(earlier))
        earlier[at:at + 1] = [sorted(theirs.union(*earlier[at:at + 1]))]
        ledger["baseline"] = sorted(known | ours)
        replace_own(path, json.dumps(ledger, indent=1) + "\n")
    return share_of_error(at + 1)


def share_of_error(number: int) -> float:
    """What the comparison of this number, from 1, may spend."""
    return number ** -0.5 - (number + 1) ** -0.5


def digest_of(trial: Trial) -> str:
    """Equal for one run, wherever its log lies."""
    digest = sha256(json.dumps([str(trial.workload), trial.workers, trial.seed, trial.setting, trial.started]).encode())
    for values in (trial.step, *(trial.metrics[name] for name in sorted(trial.metrics))):
        digest.update(np.ascontiguousarray(values, float).tobytes())
    return digest.hexdigest()[:16]


def _read(path: str, confidence: float) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(input_text(path))
        if {name: found[name] for name in FORMAT} == FORMAT and 0 < found["confidence"] < 1 and all(
                isinstance(run, str) for one in (found["baseline"], *found["comparisons"]) for run in one):
            return found
    except FileNotFoundError:
        return {**FORMAT, "confidence": confidence, "baseline": [], "comparisons": []}
    except OSError as error:
        raise HvdscaleError(f"--ledger {path}: {refusal(error)}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise HvdscaleError(f"--ledger {path}: is no ledger of hvdscale-report compare; give another file")
