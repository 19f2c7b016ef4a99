"""The model of the same step times, which many plans of the same logs ask for, fitted once."""
import pickle

import pytest

from hvdscale.analysis import step_time


@pytest.fixture(scope="session", autouse=True)
def kept_fits():
    kept, fit_steps = {}, step_time.fit_steps

    def fit_once(timings, between, spread, draws):
        timed = [(one.workers, one.per_node, one.global_batch, one.passes, one.seconds) for one in timings]
        key = pickle.dumps((timed, between, spread, draws))
        if key not in kept:
            kept[key] = fit_steps(timings, between, spread, draws)
        return kept[key]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(step_time, "fit_steps", fit_once)
        yield
