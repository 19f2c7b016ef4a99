"""Jobs of users' own, as tests need them: each is a workload that hvdscale-train can be given by module:object."""
import os
from dataclasses import replace

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from hvdscale.modules import Dropout
from hvdscale.workload import Data, Draws, MapSplit, Split, Workload

COMMON = dict(lr=0.05, global_batch=12, base_batch=12, steps=6, eval_every=3, eval_batch=5, ghost_batch=4,
              noise_every=0)


class Sentences(Dataset):
    """Sentences of 1 to 6 words out of 11, each word with a tag of 3; words are left out at random in training."""

    def __init__(self, sentences, seed, drop=0.0):
        drawn = np.random.default_rng(seed)
        self.words = [drawn.integers(1, 11, 1 + drawn.integers(6)) for _ in range(sentences)]
        self.drop = drop

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        words = torch.from_numpy(self.words[i])
        return {"words": torch.where(torch.rand(len(words)) < self.drop, 0, words), "tags": words % 3}


def padded(examples):
    """Words and tags side by side, filled up with zeros, and which are words."""
    batch = {key: nn.utils.rnn.pad_sequence([e[key] for e in examples], batch_first=True) for key in ("words", "tags")}
    lengths = torch.tensor([len(e["words"]) for e in examples])
    return {**batch, "is_word": torch.arange(batch["words"].shape[1]) < lengths[:, None]}


class Tokens(Workload):
    """Variable lengths: batches are padded, and the mean is over words."""

    dataset, model = "tokens", "tagger"
    metrics = {"nats": "min", "odd": "max"}
    defaults = COMMON

    def load(self, data_dir):
        return Data(MapSplit(Sentences(41, 1, drop=0.3), padded), MapSplit(Sentences(17, 2), padded),
                    train_eval=MapSplit(Sentences(41, 1), padded))

    def build(self, width=8):
        return nn.Sequential(nn.Embedding(11, width), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3))

    def losses(self, model, batch):
        return nn.functional.cross_entropy(model(batch["words"])[batch["is_word"]], batch["tags"][batch["is_word"]],
                                           reduction="none")

    def loss(self, model, batch):
        losses = self.losses(model, batch)
        return losses.sum(), len(losses)

    def measure(self, model, batch):
        losses = self.losses(model, batch)
        return {"nats": (losses.sum(), len(losses)), "odd": ((batch["words"] % 2).sum(), batch["is_word"].sum())}


class Dropped(Tokens):
    """Tokens with our dropout, a local batch and no ghost batch of its own."""

    defaults = {**{key: value for key, value in COMMON.items() if key not in ("ghost_batch", "global_batch")},
                "local_batch": 16}

    def build(self, width=8):
        return nn.Sequential(nn.Embedding(11, width), Dropout(0.3), nn.Linear(width, 3))


class Some(Tokens):
    """Tokens, of which those count that have a tag below ``tags``, of sentences that begin with an even word."""

    def __init__(self, tags):
        self.tags = tags

    def loss(self, model, batch):
        counts = batch["is_word"] & (batch["tags"] < self.tags) & (batch["words"][:, :1] % 2 == 0)
        losses = nn.functional.cross_entropy(model(batch["words"])[counts], batch["tags"][counts], reduction="none")
        return losses.sum(), counts.sum()


class TwoHeads(nn.Module):
    """Two outputs: class logits, and the input again from the hidden layer."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh())
        self.classify, self.restore = nn.Linear(8, 3), nn.Linear(8, 6)

    def forward(self, x):
        hidden = self.body(x)
        return self.classify(hidden), self.restore(hidden)


class TwoTerms(Workload):
    """A model with two outputs, a loss of two terms, values in memory that are moved and scaled in training."""

    dataset, model = "values", "two_heads"
    metrics = {"cross_entropy": "min", "squares": "min", "accuracy": "max"}
    defaults = {**COMMON, "target": "val/accuracy>0.99"}

    def load(self, data_dir):
        drawn = np.random.default_rng(5)

        def split(n, augment=None):
            return Split(torch.from_numpy(drawn.normal(size=(n, 6))), torch.from_numpy(drawn.integers(3, size=n)),
                         augment=augment)
        return Data(split(41, self.augment), split(17), split(7))

    @staticmethod
    def augment(inputs, draws: Draws):
        return inputs * (0.5 + draws.uniform(1)) + draws.uniform(6)

    def build(self):
        return TwoHeads()

    def loss(self, model, batch):
        inputs, labels = batch
        logits, restored = model(inputs)
        total = nn.functional.cross_entropy(logits, labels, reduction="sum") + 0.1 * (restored - inputs).square().sum()
        return total, len(labels)

    def measure(self, model, batch):
        inputs, labels = batch
        logits, restored = model(inputs)
        n = len(labels)
        return {"cross_entropy": (nn.functional.cross_entropy(logits, labels, reduction="sum"), n),
                "squares": ((restored - inputs).square().sum(), n),
                "accuracy": ((logits.argmax(1) == labels).sum(), n)}


class NeverF1(TwoTerms):
    """Beside the means a metric that is made of a part, and is NaN always."""

    metrics = {**TwoTerms.metrics, "macro_f1": "max"}
    summarized, parts = ("macro_f1",), {"calls": 1}

    def measure(self, model, batch):
        return {**super().measure(model, batch), "calls": torch.ones(1)}

    def summarize(self, means, parts):
        return {"macro_f1": np.nan}


class Mistaken(NeverF1):
    """With the mistake that MISTAKE names: a method that raises, or what it gives."""

    def load(self, data_dir):
        return super().load(self.raises("load"))

    def loss(self, model, batch):
        self.raises("loss")
        return super().loss(model, batch)

    def measure(self, model, batch):
        self.raises("measure")
        return {**super().measure(model, batch), "calls": torch.ones(3 if os.environ["MISTAKE"] == "length" else 1)}

    def summarize(self, means, parts):
        self.raises("summarize")
        given = {"name": {"f1": 0.5}, "two": {"macro_f1": [1, 2]}}.get(os.environ["MISTAKE"])
        return given or {"macro_f1": 1 / (parts["calls"].item() - 1)}

    @staticmethod
    def raises(method):
        if os.environ["MISTAKE"] == method:
            raise ValueError("mistaken")


class Empty(TwoTerms):
    """Without examples in the splits that it is told."""

    def __init__(self, *empty):
        self.empty = empty

    def load(self, data_dir):
        data = super().load(data_dir)
        return replace(data, **{name: getattr(data, name).first(0) for name in self.empty})


class Bare(Workload):
    """What a workload must not be."""

    dataset, metrics, defaults = 7, ("error",), None


TOKENS, DROPPED, HALF, NONE, TWO_TERMS, BARE = Tokens(), Dropped(), Some(2), Some(0), TwoTerms(), Bare()

MISTAKEN = Mistaken()
NEVER_F1, NO_VAL, NO_TEST, NO_VAL_NOR_TEST = NeverF1(), Empty("val"), Empty("test"), Empty("val", "test")


class Halved(torch.optim.Optimizer):
    """An optimizer of one's own: plain gradient descent at half the rate."""

    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p -= group["lr"] / 2 * p.grad
