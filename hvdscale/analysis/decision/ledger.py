"""What comparisons against one baseline have spent of an error, in a file.

The k-th comparison may spend 1 / sqrt(k) - 1 / sqrt(k + 1) of it (Foster & Stine 2008, alpha-spending), so that all
together never spend more. A comparison that shares a run with an earlier one is that one, looked at again."""
from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import numpy as np

from ...errors import HvdscaleError, UsageError
from ...system.inputs import input_text, refusal
from ...system.lock import Lock
from ...system.outputs import replace_own
from ..trials import Trial

FORMAT = {"format": "hvdscale-ledger", "version": 1}


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
    about = [str(trial.workload), trial.workers, trial.seed, trial.setting, trial.started]
    digest = sha256(json.dumps(about).encode())
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
