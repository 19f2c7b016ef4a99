"""The callbacks for other training libraries, under the libraries themselves: the log of a plain loop."""
import importlib.util
import sys

import numpy as np
import pytest

from hvdscale.log.check import check
from tests.conftest import launcher_command

LIBRARIES = {"lightning": ["lightning"], "transformers": ["transformers", "accelerate"]}
QUIET = {"PYTHONWARNINGS": "default", "HF_HUB_OFFLINE": "1"}


def train(run, tmp_path, how, workers=1, passes=1):
    """The checked log of one of the loops."""
    for name in LIBRARIES.get(how, ()):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}: pip install {' '.join(LIBRARIES[how])}")
    launcher = launcher_command("torchrun", workers) if workers > 1 else []
    path = tmp_path / f"{how}{workers}.h5"
    run(*launcher, sys.executable, "-m", "tests.recorders.loops", how, 8, 1, path, ACCUMULATION=str(passes), **QUIET)
    return check(path)


@pytest.mark.parametrize("how", LIBRARIES)
@pytest.mark.parametrize("workers, passes", [(1, 1), (2, 1), (1, 2)])
def test_a_library_under_its_callback_gives_the_numbers_of_a_plain_loop(how, workers, passes, run, tmp_path):
    with train(run, tmp_path, how, workers, passes) as log, train(run, tmp_path, "plain") as plain:
        assert log.evaluations["step"].tolist() == plain.evaluations["step"].tolist()
        for name in ("examples", "val/error", "val/loss"):
            np.testing.assert_allclose(log.evaluations[name], plain.evaluations[name], rtol=1e-6)
        assert log.steps["step"].tolist() == plain.steps["step"].tolist()
        if (how, workers) != ("lightning", 2):          # whose losses are those of the first worker
            np.testing.assert_allclose(log.steps["loss"], plain.steps["loss"], rtol=1e-6)
        for name in ("dataset", "optimizer", "global_batch", "seed", "status", "stop_reason"):
            assert log.trials[name].tolist() == plain.trials[name].tolist()
        assert log.trials["workers"].tolist() == [workers] and log.trials["accumulation"].tolist() == [passes]
        assert log.evaluations["train_seconds"][-1] >= log.steps["step_seconds"].sum()
