"""Runs of the toy workload by one worker, as the command carries them out, and what is compared of two runs."""
import os
import signal
from dataclasses import replace

import numpy as np
import torch

from hvdscale.log.check import check
from hvdscale.training.checkpoint import listed, read
from hvdscale.update.step import DataParallelStep
from tests.parallel import toy

WORKLOAD = replace(toy.WORKLOAD, load=toy.load_augmented)
# batch-norm, dropout and augmentation together
KEYS = dict(steps=30, eval_every=10, checkpoint_every=7, model_args={"norm": "ours", "dropout": 0.3}, threads=1)


class Signalled(DataParallelStep):
    """A step that sends its process a signal when it is the one of that number."""

    at = -1

    def __call__(self, step, *given):
        if step == self.at:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().__call__(step, *given)


def state_of(folder):
    """What the newest checkpoint holds of model, optimizer and step."""
    state = read(listed(folder)[0][1])
    return {part: state[part] for part in ("model", "optimizer", "step")}


def assert_same_state(one, other, where=""):
    """Equal to the last bit."""
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and torch.equal(one, other), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_same_state(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        for number, pair in enumerate(zip(one, other)):
            assert_same_state(*pair, f"{where}/{number}")
    else:
        assert one == other, where


def columns_of(path):
    """All columns of the log that are not in seconds, once it has passed its check."""
    log = check(path)
    without = {"trials": ("plan", "workers", "local_batch"), "restarts": tuple(log.restarts)}
    return {f"{table.name}/{name}": table[name] for table in log.tables for name in table
            if not name.endswith("seconds") and name not in without.get(table.name, ())}


def assert_same_columns(one, other, but=()):
    """Equal to the last bit; ``but`` names columns of /trials that may differ."""
    one, other = ({name: values for name, values in columns_of(path).items() if name.partition("/")[2] not in but}
                  for path in (one, other))
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)
