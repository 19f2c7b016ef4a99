"""A token job: sentences of different lengths, padded batch by batch, with a loss that is a mean over tokens.

A small tagger learns which words are odd numbers. The padding counts neither in the loss nor in the metrics, as
both give the number of real tokens. Its dropout draws random numbers, and a collate function may pad, so the model runs
one ghost group at a time: any number of workers makes the same updates.

    horovodrun -np 2 hvdscale-train tokens:workload --epochs 3
"""
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from hvdscale.modules import Dropout
from hvdscale.workload import Data, MapSplit, Workload

WORDS, PADDING = 50, 0


class Sentences(Dataset):
    """Sentences of 3 to 20 words 1 .. WORDS; a word's tag says whether it is odd, or 2 after a word twice as large."""

    def __init__(self, sentences, seed):
        drawn = torch.Generator().manual_seed(seed)
        lengths = torch.randint(3, 21, (sentences,), generator=drawn).tolist()
        self.words = [torch.randint(1, WORDS + 1, (length,), generator=drawn) for length in lengths]

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        words = self.words[i]
        before = torch.cat([words[:1], words[:-1]])
        return words, torch.where(before >= 2 * words, 2, words % 2)


def pad(examples):
    """A batch: words and tags, each padded to the longest sentence, and which of them are words."""
    words, tags = (pad_sequence(list(column), batch_first=True, padding_value=PADDING) for column in zip(*examples))
    return {"words": words, "tags": tags, "is_word": words != PADDING}


class Tagger(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed, self.drop = nn.Embedding(WORDS + 1, width), Dropout(0.1)
        self.read, self.tag = nn.GRU(width, width, batch_first=True), nn.Linear(width, 3)

    def forward(self, words):
        return self.tag(self.read(self.drop(self.embed(words)))[0])


class Tokens(Workload):
    dataset, model = "sentences", "tagger"
    metrics = {"nats": "min", "error": "min"}
    defaults = dict(lr=0.003, base_batch=16, local_batch=16, optimizer="adam", epochs=8.0, eval_every_epochs=1.0,
                    target="val/error<0.1")

    def load(self, data_dir):
        return Data(MapSplit(Sentences(800, 1), pad), MapSplit(Sentences(200, 2), pad))

    def build(self, width=32):
        return Tagger(width)

    def loss(self, model, batch):                   # the mean is over words, not over sentences
        here = batch["is_word"]
        return cross_entropy(model(batch["words"])[here], batch["tags"][here], reduction="sum"), here.sum()

    def measure(self, model, batch):
        here = batch["is_word"]
        logits, tags = model(batch["words"])[here], batch["tags"][here]
        return {"nats": (cross_entropy(logits, tags, reduction="sum"), len(tags)),
                "error": ((logits.argmax(1) != tags).sum(), len(tags))}


workload = Tokens()
