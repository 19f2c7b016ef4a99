"""What a plan calls the fastest, on made jobs whose best worker count and batch are known; tools/coverage has more."""
import numpy as np
import pytest

from tests.factories.advice import advise


@pytest.mark.parametrize("name, most", [("1-8, 3 seeds", 1.4), ("1-2, 3 seeds", 1.4), ("one node of 8 timed", 1.25)])
def test_what_is_called_the_fastest_is_near_the_best(name, most):
    said, rules = advise(name, 5, seed=1)
    assert np.exp(np.mean([one["loss"] for one in said])) <= most
    assert np.mean([one["loss"] for one in said]) < np.mean([one["best measured"] for one in rules])
    assert np.mean([one["held"] for one in said]) > 0.85 and all(one["ends"] for one in said)
