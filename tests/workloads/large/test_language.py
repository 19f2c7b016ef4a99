"""Language models: which files make up each split, what is said of missing or wrong ones, the loss and the metrics."""
import gzip
import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from hvdscale.errors import DataError, UsageError
from hvdscale.plan.shards import Visits
from hvdscale.workload import bound_loss, load_data, measured
from hvdscale.workloads.large import language
from hvdscale.workloads.large.language import MODELS
from hvdscale.workloads.large.readers import text as reader
from hvdscale.workloads.large.tokens import IGNORED
from tests.conftest import DATA, lacks


class Tiny(nn.Module):
    """Logits of the next token from the present one alone."""

    def __init__(self, vocabulary, width=8):
        super().__init__()
        self.embedding, self.readout = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.readout(self.embedding(tokens))


@pytest.fixture
def load(tmp_path):
    """Load a data set's text, as words, with caches in tmp_path."""
    def load(dataset, folder=tmp_path, **more):
        options = {name: more.pop(name) for name in ("allow_missing",) if name in more}
        return load_data(language.workload(dataset, "transformer"), folder and str(folder),
                         {"vocabulary": "word", "sequence": 8, **more}, cache_dir=str(tmp_path / "caches"), **options)
    return load


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "text").mkdir()
    return tmp_path / "text"


def write(folder, **lines):
    """Files of these names, dots as __, each with its own words."""
    for name, count in lines.items():
        (folder / name.replace("__", ".")).write_text("".join(f"{name} {number}\n" for number in range(count)))


@pytest.fixture
def refused(worded):
    def refused(load, *args, **more):
        with worded.error(DataError) as caught:
            load(*args, **more)
        return str(caught.value)
    return refused


def words(data, split):
    """The words of a split, in order."""
    batch = getattr(data, split).take(Visits(np.arange(len(getattr(data, split))), np.zeros(len(getattr(data, split)))))
    return batch.labels[batch.labels != IGNORED].tolist()


def tokens(data):
    return [data.record["tokens"].get(part) for part in ("train", "val", "test")]


# any text

@pytest.mark.parametrize("names", [
    ("wiki__train__tokens", "wiki__valid__tokens", "wiki__test__tokens"), ("train__txt", "valid__txt", "test__txt"),
    ("corpus-train__text", "corpus-dev__text", "corpus-test__text"), ("TRAIN__raw", "Val__raw", "test__raw"),
    ("training__txt", "validation__txt", "test_set__txt")])
def test_files_are_told_by_their_names(load, folder, names):
    write(folder, **dict(zip(names, (10, 4, 3))), README=1, trained_notes__md=1)
    data = load("text", folder)
    assert tokens(data) == [30, 12, 9]          # two words and an end a line
    assert data.record["unknown"]["train"] == 0 and data.record["unknown"]["val"] == 4


def test_several_files_of_one_part_follow_each_other(load, folder):
    write(folder, train_b__txt=2, train_a__txt=3, valid__txt=1)
    (folder / "train_c.txt.gz").write_bytes(gzip.compress(b"more\n"))
    data = load("text", folder)
    assert tokens(data) == [3 * 3 + 2 * 3 + 2, 3, None] and len(data.test) == 0
    ids = words(data, "train")
    assert len(ids) == 17 and ids[0] != ids[9] and ids[15:] == [ids[15], 3]


def test_one_file_is_cut_in_order(load, folder, worded):
    (folder / "some.txt").write_text("".join(f"{number:04d}\n" for number in range(1000)))
    for given in (folder, folder / "some.txt"):
        data = load("text", given)
        assert tokens(data) == [1800, 100, 100]
        assert data.record["unknown"] == {"train": 0, "val": 50, "test": 50}
        worded(data.notes[0])
        assert "some.txt is cut" in data.notes[0]


def test_of_several_files_without_such_names_the_last_is_held_out(load, folder, worded):
    write(folder, a__txt=4, b__txt=4, c__txt=4)
    data = load("common_crawl", folder)
    assert tokens(data) == [24, 6, 6]
    worded(data.record["divided"])


def test_data_arguments_name_files_folders_and_patterns(load, folder):
    write(folder, valid__txt=10, test__txt=4, part_1__data=1, part_2__data=2)
    (folder / "more").mkdir()
    write(folder / "more", any=5)
    assert tokens(load("text", folder, train="valid.txt", val="test.txt")) == [30, 12, None]
    assert tokens(load("text", folder, train="part_*.data")) == [9, 30, 12]
    assert tokens(load("text", folder, train="more")) == [15, 30, 12]
    assert tokens(load("text", None, train=folder / "more" / "any", val=folder / "test.txt")) == [15, 12, None]


@pytest.mark.parametrize("both", ["train_val__txt", "my__valid__test__txt", "training-test__raw"])
def test_a_file_whose_name_says_two_splits_is_refused(load, folder, both, refused):
    write(folder, train__txt=9, valid__txt=4, **{both: 5})
    said = refused(load, "text", folder)
    assert both.replace("__", ".") in said


def test_a_text_that_lies_there_plain_and_packed_is_not_read_twice(load, folder, refused):
    write(folder, a__txt=9, b__txt=4)
    (folder / "b.txt.gz").write_bytes(gzip.compress((folder / "b.txt").read_bytes()))
    refused(load, "text", folder)


def test_a_part_without_files_is_refused_with_what_is_there(load, folder, refused):
    write(folder, valid__txt=10, test__txt=4)
    refused(load, "text", folder)
    refused(load, "text", folder, train="valid.txt")
    refused(load, "text", folder, train="valid.txt", val="valid.txt")
    refused(load, "text", folder, train="none.txt")
    refused(load, "text", folder, train="none*.txt")


def test_a_wrong_folder_is_refused_with_what_is_there(load, folder, tmp_path, refused):
    refused(load, "text", folder)
    refused(load, "text", tmp_path / "none")
    write(folder, picture__png=1)
    refused(load, "common_crawl", folder)
    refused(load, "lm1b", folder)
    for dataset in MODELS:
        refused(load, dataset, None)


def test_text_too_short_for_a_split_is_refused(load, folder, refused):
    (folder / "a.txt").write_text("one line\n")
    refused(load, "text", folder)


def test_a_bad_line_in_any_part_is_named(load, folder, refused):
    write(folder, train__txt=10, valid__txt=4, test__txt=4)
    for name in ("train.txt", "valid.txt", "test.txt"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[:20].replace(b"t", b"\xff", 2) + whole[20:])
        refused(load, "text", folder)
        (folder / name).write_bytes(b"")
        refused(load, "text", folder)
        (folder / name).write_bytes(whole)
    assert tokens(load("text", folder)) == [30, 12, 12]


# numbered sets and LM1B

def shards(folder, numbers, of=5, name="news.en-{:05d}-of-{:05d}", lines=3):
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        (folder / name.format(number, of)).write_text("".join(f"shard{number} word\n" for _ in range(lines)) + "\n")


HELD_OUT = "news.en.heldout-{:05d}-of-{:05d}"


@pytest.fixture
def lm1b(folder):
    """LM1B as the archive lays it out, of 4 shards."""
    base = folder / reader.LM1B_FOLDERS[1]
    shards(base / reader.LM1B_SHARDS, range(1, 5))
    shards(base / reader.LM1B_HELD_OUT, range(3), 50, HELD_OUT, 2)
    return base


def test_lm1b_is_found_from_any_of_its_folders(load, lm1b, folder):
    for place in (folder, lm1b, lm1b / reader.LM1B_SHARDS):
        data = load("lm1b", place)
        assert [len(split) for split in (data.train, data.val, data.test)] == [12, 2, 2]       # no blank lines
        assert not {"missing", "divided"} & set(data.record) and data.record["cut"] == {"train": 0, "val": 0, "test": 0}


def test_validation_is_on_the_first_shard_held_out_and_testing_on_the_second(load, lm1b, monkeypatch, refused):
    found = reader.find_lm1b(lm1b, False)
    assert [text.path.name for text in (*found.val, *found.test)] == [HELD_OUT.format(0, 50), HELD_OUT.format(1, 50)]
    (lm1b / reader.LM1B_HELD_OUT / HELD_OUT.format(1, 50)).unlink()
    assert len(load("lm1b", lm1b).test) == 0
    (lm1b / reader.LM1B_HELD_OUT / HELD_OUT.format(0, 50)).unlink()
    refused(load, "lm1b", lm1b)


def test_without_held_out_shards_the_last_is_held_out(load, folder):
    shards(folder, range(1, 5), lines=4)
    (folder / "news.en-00004-of-00005").write_text("shard4 word\n" * 4)
    data = load("lm1b", folder)
    assert [len(split) for split in (data.train, data.val, data.test)] == [12, 2, 2]
    assert "news.en-00004-of-00005 is held out" in data.record["divided"][0]


def test_missing_shards_are_named_or_recorded(load, lm1b, refused):
    for number in (2, 3):
        (lm1b / reader.LM1B_SHARDS / f"news.en-{number:05d}-of-00005").unlink()
    refused(load, "lm1b", lm1b)
    data = load("lm1b", lm1b, allow_missing=True)
    assert len(data.train) == 6
    assert data.record["missing"] == ["news.en-00002-of-00005", "news.en-00003-of-00005"]
    assert "trains without news.en-00002-of-00005, news.en-00003-of-00005 (--allow-missing)" in data.notes


def test_missing_parts_of_any_numbered_set_are_named(load, folder, refused):
    shards(folder, (0, 1, 3), 5, "c4-train.{:05d}-of-{:05d}.txt")
    write(folder, c5_val__txt=1)
    refused(load, "common_crawl", folder, train="c4*")
    shards(folder / "more", (0, 1, 3), 4, "part-{}-of-{}.txt")
    refused(load, "common_crawl", folder / "more")
    assert load("common_crawl", folder / "more", allow_missing=True).record["missing"] == ["part-2-of-4.txt"]


def test_parts_that_do_not_belong_together_are_named(load, folder, refused):
    shards(folder, range(1, 5))
    (folder / "news.en-00001-of-00005.gz").write_bytes(gzip.compress(b"again\n"))
    refused(load, "lm1b", folder)
    (folder / "news.en-00001-of-00005.gz").unlink()
    shards(folder, (9,), 100)
    refused(load, "lm1b", folder)


def test_sentences_longer_than_the_sequence_are_cut_and_counted(load, folder, worded):
    shards(folder, range(1, 5))
    (folder / "news.en-00002-of-00005").write_text("a b c d e f g h i j\nshort\n")
    data = load("lm1b", folder, sequence=6)
    assert data.record["cut"]["train"] == 1
    worded(data.notes)
    assert data.train.take(Visits(np.array([3, 4]), np.zeros(2))).labels.ne(IGNORED).sum(1).tolist() == [6, 2]


# arguments and record

@pytest.mark.parametrize("given, said", [
    ({"sequence": 0}, "sequence = 0"), ({"sequence": "long"}, "sequence = 'long'"), ({"sequence": True}, "= True"),
    ({"vocabulary": 8000}, "vocabulary = 8000 is not one of bpe:8000"), ({"vocabulary": "bpe"}, "give its size"),
    ({"words": 3}, "has no data argument 'words'; it takes vocabulary, sequence, train, val, test")])
def test_arguments_that_mean_nothing_are_refused(load, folder, given, said):
    write(folder, train__txt=10, valid__txt=4)
    with pytest.raises(UsageError, match=said):
        load("text", folder, **given)


def test_the_record_says_what_the_model_is_given(load, folder):
    write(folder, train__txt=10, valid__txt=4, test__txt=3)
    data = load("text", folder, vocabulary="word:8")
    assert data.model_args == {"vocabulary": 8}
    assert json.loads(json.dumps(data.record)) == {
        "vocabulary": "word:8", "vocabulary_sha256": data.record["vocabulary_sha256"],
        "text_sha256": data.record["text_sha256"], "sequence": 8,
        "tokens": {"train": 30, "val": 12, "test": 9}, "unknown": data.record["unknown"]}
    assert len(data.record["vocabulary_sha256"]) == 64
    share = data.record["unknown"]["train"] / 30
    assert data.notes == (f"{share:.2%} of the training tokens are not in the vocabulary",)


@pytest.mark.parametrize("part", ["train", "valid", "test"])
def test_the_record_tells_a_text_with_another_word_of_as_many_tokens(load, folder, part):
    write(folder, train__txt=10, valid__txt=4, test__txt=3)
    records = [load("text", folder, vocabulary="byte").record]
    path = folder / f"{part}.txt"
    path.write_text(path.read_text().replace("txt 2", "txt 3"))
    records.append(load("text", folder, vocabulary="byte").record)
    first, second = (record.pop("text_sha256") for record in records)
    assert records[0] == records[1] and first != second and len(first) == 16


# loss and metrics

def example_batch():
    drawn = torch.Generator().manual_seed(0)
    labels = torch.randint(7, (3, 5), generator=drawn)
    labels[0, 3:], labels[2] = IGNORED, IGNORED
    return language.Batch(torch.randint(7, (3, 5), generator=drawn), labels)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_the_sum_over_tokens_and_their_number(smoothing):
    torch.manual_seed(1)
    model, batch = Tiny(7).double(), example_batch()
    total, count = bound_loss(language.workload("text", "lstm"), smoothing)(model, batch)
    logp, wanted, counted = model(batch.inputs).log_softmax(2).detach(), 0.0, 0
    for row in range(3):
        for place in range(5):
            label = int(batch.labels[row, place])
            if label != IGNORED:
                others = [logp[row, place, k].item() for k in range(7) if k != label]
                wanted -= (1 - smoothing) * logp[row, place, label].item() + smoothing / 6 * sum(others)
                counted += 1
    assert count == counted == 8 and total.item() == pytest.approx(wanted, rel=1e-12)


def test_metrics_count_tokens_and_leave_out_padding():
    torch.manual_seed(1)
    model, batch, workload = Tiny(7), example_batch(), language.workload("lm1b", "transformer")
    with torch.no_grad():
        found = measured(workload, model, batch)
    loss, count = bound_loss(workload, 0.0)(model, batch)
    assert found.sums["cross_entropy"] == (pytest.approx(loss.item(), rel=1e-6), 8) and count == 8
    counted = batch.labels != IGNORED
    wrong = (model(batch.inputs).argmax(2)[counted] != batch.labels[counted]).sum()
    assert found.sums["error"] == (int(wrong), 8)
    assert workload.summarize({"cross_entropy": 2.0, "error": 0.5}, {}) == {"perplexity": math.exp(2.0)}
    assert workload.summarize({"cross_entropy": 1e4}, {})["perplexity"] == math.inf
    assert math.isnan(workload.summarize({"cross_entropy": math.nan}, {})["perplexity"])


def test_a_batch_of_padding_alone_has_no_tokens():
    batch = example_batch()
    batch.labels[:] = IGNORED
    total, count = bound_loss(language.workload("text", "lstm"), 0.0)(Tiny(7), batch)
    assert (total.item(), count) == (0.0, 0)
    with torch.no_grad():
        found = measured(language.workload("text", "lstm"), Tiny(7), batch)
    assert found.sums == {"cross_entropy": (0.0, 0), "error": (0.0, 0)}


# real text

@pytest.fixture
def real(tmp_path):
    """Load real text from a folder beside the checkout, with caches in tmp_path."""
    def real(dataset, *names, **more):
        place = DATA.joinpath("text", *names)
        if not place.exists():
            lacks("text", f"needs {place}")
        options = {"allow_missing": more.pop("allow_missing", False), "cache_dir": str(tmp_path)}
        return load_data(language.workload(dataset, "transformer"), str(place), more, **options)
    return real


def test_tiny_shakespeare_loads_by_characters(real):
    data = real("text", "tinyshakespeare", "input.txt", vocabulary="char")
    assert data.model_args == {"vocabulary": 64 + 4}           # 65 characters, of which the line feed ends lines
    assert sum(data.record["tokens"].values()) == 1_115_394     # its bytes
    assert data.record["unknown"] == {"train": 0, "val": 0, "test": 0}


def test_wikitext_loads_by_words(real):
    data = real("text", "wikitext-2", train="valid.txt", val="test.txt", vocabulary="word")
    assert tokens(data) == [217_646, 245_569, None]             # as published for its validation and test sets


def test_sentences_in_lm1bs_format_load(real):
    data = real("lm1b", "lm1b_format_lookalike", vocabulary="word:5000", allow_missing=True)
    assert len(data.train) == 7500 and len(data.val) + len(data.test) == 2500
    assert len(data.record["missing"]) == 95
