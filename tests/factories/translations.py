"""Parallel text of a made language, whose translation is word by word, and what is trained on it."""
import random

from hvdscale.workload import load_data
from hvdscale.workloads.large import translation

WORDS = {f"w{number}": f"v{number}" for number in range(12)}


def sentences(seed, n, longest=6):
    """n pairs of lines, of 1 .. longest words."""
    drawn = random.Random(seed)
    lines = [drawn.choices([*WORDS], k=drawn.randint(1, longest)) for _ in range(n)]
    return [(" ".join(line), " ".join(WORDS[word] for word in line)) for line in lines]


def write(folder, part, pairs):
    for number, language in enumerate(("en", "de")):
        (folder / f"{part}.{language}").write_text("".join(f"{pair[number]}\n" for pair in pairs), encoding="utf-8")


def folder_of(tmp_path, train=60, val=23, test=7):
    """A data set's folder."""
    folder = tmp_path / "text"
    folder.mkdir()
    for seed, (part, n) in enumerate({"train": train, "val": val, "test_2016_flickr": test}.items()):
        write(folder, part, sentences(seed, n))
    return folder


def load(folder, **data_args):
    """The data in the folder, with a vocabulary of words and sentences of 6 of them by default."""
    job = translation.workload("multi30k", "transformer")
    return load_data(job, str(folder), {"vocabulary": "word", "longest": 6, **data_args},
                     cache_dir=str(folder.parent / "cache"))


def model_of(data, **sizes):
    job = translation.workload("multi30k", "transformer")
    return job.build(**data.model_args, **{"width": 16, "layers": 1, "hidden": 16, "heads": 2, **sizes})
