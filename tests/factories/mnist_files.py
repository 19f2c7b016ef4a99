"""IDX files, and data sets in MNIST's format."""
from pathlib import Path

import numpy as np


def idx(array, magic=None):
    """An IDX file's bytes."""
    header = (0x800 | array.ndim if magic is None else magic).to_bytes(4, "big")
    return header + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def write_mnist(folder, train=60_000, test=10_000, seed=0):
    """The four files, of noise around one image for each class; its strength differs, so that no class is certain."""
    random = np.random.default_rng(seed)
    means = random.integers(0, 256, (10, 28, 28))
    for part, examples in (("train", train), ("t10k", test)):
        labels = random.integers(0, 10, examples, dtype=np.uint8)
        images = np.empty((examples, 28, 28), np.uint8)
        for start in range(0, examples, 1000):
            rows = slice(start, start + 1000)
            noise = random.integers(0, 256, images[rows].shape)
            share = random.uniform(0, 0.5, len(noise))[:, None, None]
            images[rows] = share * means[labels[rows]] + (1 - share) * noise
        (Path(folder) / f"{part}-images-idx3-ubyte").write_bytes(idx(images))
        (Path(folder) / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels))
