"""Logs of language models of several sizes, as made up: steps to a loss by batch, and losses over rates and batches."""
import numpy as np

from tests.factories.logs import log, trial

MODELS = {"gpt_10M": 1e7, "gpt_20M": 2e7, "gpt_40M": 4e7, "gpt_1.2B": 1.2e9}


def runs_to_target(exponent=0.5, seeds=3, noise=0.02, models=MODELS):
    """A log a model whose B_crit is 64 at ten million parameters and grows as their power."""
    random = np.random.default_rng(3)
    return [log(*_runs_of(model, 64 * (size / 1e7) ** exponent, seeds, noise, random), path=f"{model}.h5")
            for model, size in models.items()]


def _runs_of(model, b_crit, seeds, noise, random):
    for at, batch in enumerate(2 ** np.arange(3, 13, 1)):
        for seed in range(seeds):
            steps = int(400 * (1 + b_crit / batch) * np.exp(noise * random.standard_normal()))
            yield trial(1 + at * seeds + seed, (0, int(0.99 * steps), steps), (3.0, 0.3, 0.1), batch=int(batch),
                        seed=seed, model=model, dataset="text")


def grids(models=MODELS, noise=0.002):
    """A log a model of a search over rates and batches at a fixed budget: the best batch grows as parameters^0.5, the
    best rate falls as parameters^-0.3."""
    random = np.random.default_rng(5)
    return [log(*_grid_of(model, size / 1e7, noise, random), path=f"{model}.grid.h5") for model, size in models.items()]


def _grid_of(model, times, noise, random):
    batches, rates = 2.0 ** np.arange(3, 12), 0.001 * 2.0 ** np.arange(-5, 5)
    for at, (batch, rate) in enumerate((one, other) for one in batches for other in rates):
        x, y = np.log2(batch / (32 * times ** 0.5)), np.log2(rate / (0.001 * times ** -0.3))
        loss = 2.5 * times ** -0.05 + 0.01 * (x * x + y * y - x * y) + noise * random.standard_normal()
        yield trial(at + 1, (0, 1000), (9.0, loss), batch=int(batch), model=model, dataset="text", peak_lr=rate,
                    target=None, budget=1000, sweep={
                        "study": model, "draw": at + 1, "point": {"learning_rate": rate}, "seed": 0, "space": [],
                        "objective": "val/error", "minimizes": True, "targets": [], "trials": 90, "max_draws": 90,
                        "repeat": 0, "prune_keep": None})
