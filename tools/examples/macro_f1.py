"""A job of one's own with a metric that is no mean: macro F1, made from counts that add up.

F1 of a class is 2 hits / (true + predicted), and macro F1 is the mean over the classes. It is no mean over examples:
the average of two batches' macro F1 is not that of both. The counts do add up, so ``measure`` gives these as ``parts``,
and ``summarize`` computes the metric from their sums over the whole split, whatever the batches and worker count.

    horovodrun -np 2 hvdscale-train macro_f1:workload --epochs 5
"""
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from hvdscale.workload import Data, Split, Workload

CLASSES = 10


class MacroF1(Workload):
    dataset, model = "digits", "macro_f1"
    metrics = {"cross_entropy": "min", "macro_f1": "max"}       # both are logged, and a target may be on either
    summarized = ("macro_f1",)                                  # those of them that summarize gives
    parts = {"hits": CLASSES, "true": CLASSES, "predicted": CLASSES}        # lengths of the vectors that add up
    defaults = dict(lr=0.05, base_batch=32, local_batch=16, optimizer="momentum", epochs=20.0, eval_every_epochs=1.0,
                    target="val/macro_f1>0.93")

    def load(self, data_dir):
        digits = load_digits()
        images = torch.tensor(digits.data / 16, dtype=torch.float32)
        labels = torch.tensor(digits.target)
        return Data(*map(Split, images.split([1197, 300, 300]), labels.split([1197, 300, 300])))

    def build(self, width=32):
        return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, CLASSES))

    def loss(self, model, batch):                   # the sum over the batch, and how many the mean is over
        images, labels = batch
        return cross_entropy(model(images), labels, reduction="sum"), len(labels)

    def measure(self, model, batch):                # (sum, count) of each mean, and the parts of the rest
        images, labels = batch
        logits = model(images)
        guesses = logits.argmax(1)
        return {"cross_entropy": (cross_entropy(logits, labels, reduction="sum"), len(labels)),
                "hits": labels[guesses == labels].bincount(minlength=CLASSES),
                "true": labels.bincount(minlength=CLASSES),
                "predicted": guesses.bincount(minlength=CLASSES)}

    def summarize(self, means, parts):              # the parts' sums over a split, as numpy arrays
        both = parts["true"] + parts["predicted"]
        f1 = 2 * parts["hits"] / both.clip(min=1)   # a class that is not there and not predicted counts as 0
        return {"macro_f1": f1.mean()}


workload = MacroF1()
