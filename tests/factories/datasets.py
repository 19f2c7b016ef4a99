"""Map-style data sets for tests, of the kinds that users have."""
import os
import random
import signal

import numpy as np
import torch
from torch.utils.data import Dataset


class Noisy(Dataset):
    """Dicts whose values draw from all three global generators."""

    def __init__(self, examples=13):
        self.examples = examples

    def __len__(self):
        return self.examples

    def __getitem__(self, i):
        return {"number": i, "noise": torch.rand(2, dtype=torch.float64),
                "numpy": np.random.normal(), "python": random.random()}


class Ragged(Noisy):
    """Vectors of 1 to 4 numbers."""

    def __getitem__(self, i):
        return torch.arange(1 + i % 4, dtype=torch.float64)


class Broken(Noisy):
    """One example that cannot be read, as ``how`` says."""

    def __init__(self, at, how="raise", examples=13):
        super().__init__(examples)
        self.at, self.how = at, how

    def __getitem__(self, i):
        if i == self.at and self.how == "raise":
            raise OSError("no such picture")
        if i == self.at and self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(i)


def padded(vectors):
    """Lengths, and the vectors side by side, filled up with zeros."""
    return torch.tensor([len(v) for v in vectors]), torch.nn.utils.rnn.pad_sequence(vectors, batch_first=True)
