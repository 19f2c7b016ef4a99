"""Translation: what stands in a batch, the loss per token, BLEU over whole splits, and files that are not right."""
import gzip
import json
import lzma
import math
import random

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from hvdscale.data.splits import refuse_not_finite
from hvdscale.errors import DataError, UsageError
from hvdscale.plan.settings import Settings
from hvdscale.plan.shards import Visits
from hvdscale.training.evaluate import Evaluator
from hvdscale.workers.group import SingleWorker
from hvdscale.workload import bound_loss, build_model, load_data, measured, problems, to_device
from hvdscale.workloads.large import translation
from hvdscale.workloads.large.tokens import IGNORED
from tests.conftest import DATA, lacks

sacrebleu = pytest.importorskip("sacrebleu")

CPU = torch.device("cpu")
JOB = translation.workload("multi30k", "transformer")
PAD, BEGIN, END = 0, 2, 3           # of a vocabulary that is learned
WORDS = {f"w{number}": f"v{number}" for number in range(12)}        # of a made language, translated word by word


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
    return load_data(JOB, str(folder), {"vocabulary": "word", "longest": 6, **data_args},
                     cache_dir=str(folder.parent / "cache"))


def model_of(data, **sizes):
    return JOB.build(**data.model_args, **{"width": 16, "layers": 1, "hidden": 16, "heads": 2, **sizes})


def visits(*indices):
    return Visits(np.array(indices), np.zeros(len(indices), int), 0)


@pytest.fixture
def folder(tmp_path):
    return folder_of(tmp_path)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return load(folder_of(tmp_path_factory.mktemp("made")))


@pytest.fixture
def refused(worded):
    def refused(folder, error=DataError, **data_args):
        with worded.error(error):
            load(folder, **data_args)
    return refused


# batches

def test_a_batch_holds_sources_and_shifted_targets_as_tokens(data, folder):
    batch = data.train.take(visits(3, 0))
    vocabulary = data.val.references.vocabulary
    for row, number in enumerate((3, 0)):
        source, target = sentences(0, 60)[number]
        ids, other = (vocabulary.encode([line])[0].tolist() for line in (source, target))
        assert batch.source[row].tolist() == [*ids, END] + [PAD] * (6 - len(ids))
        assert batch.inputs[row].tolist() == [BEGIN, *other, END, *[PAD] * 6][:7]
        assert batch.labels[row].tolist() == [*other, END] + [IGNORED] * (6 - len(other))
    assert batch.references is None and len(batch) == 2


def test_the_tokens_of_training_are_the_targets_labels_without_padding(data):
    for few in (data.train, data.train.first(3)):
        labels = few.take(visits(*range(len(few)))).labels
        assert few.count_tokens() == int((labels != IGNORED).sum())


def test_held_out_pairs_are_padded_to_the_longest_of_their_batch_alone(data):
    pairs = sentences(1, 23)
    for indices in [(0,), (1, 2), range(23)]:
        batch = data.train.take(visits(*indices))
        assert {part.shape for part in (batch.source, batch.inputs, batch.labels)} == {(len(indices), 7)}
        batch = data.val.take(visits(*indices))
        words = max(len(pairs[i][0].split()) for i in indices)
        assert {part.shape for part in (batch.source, batch.inputs, batch.labels)} == {(len(indices), words + 1)}
        assert batch.references.lines == [pairs[i][1] for i in indices]


def test_the_pair_may_be_turned_round(folder):
    there, back = (load(folder, pair=pair).val.take(visits(4)) for pair in ("en-de", "de-en"))
    assert torch.equal(there.labels, back.source) and torch.equal(there.source, back.labels)
    assert back.references.lines == [sentences(1, 23)[4][0]]


@torch.no_grad()
def test_empty_and_long_pairs_are_left_out_of_training_alone_and_counted(folder, worded):
    odd = [("w1", ""), ("", "v1"), ("", ""), ("w1 " * 7, "v1"), ("w1", "v1 " * 9), ("w1 w1 w1 w1 w1 w1", "v2")]
    for part in ("train", "val"):
        write(folder, part, odd + sentences(0, 5))
    data = load(folder)
    assert (len(data.train), len(data.val)) == (6, 11)
    assert data.record["left_out"] == {"empty": 3, "too_long": 2}
    worded(data.notes)
    assert data.train.kept.tolist() == [5, 6, 7, 8, 9, 10]
    batch = data.val.take(visits(0, 1, 2, 4))
    assert batch.references.lines == ["", "v1", "", "v1 " * 9]
    assert batch.source[1:3].tolist() == [[END, PAD]] * 2 and batch.labels[0, :2].tolist() == [END, IGNORED]
    with torch.no_grad():
        found = measured(JOB, model_of(data).eval(), batch)
    assert found.sums["cross_entropy"][1] == 1 + 2 + 1 + 10


def test_held_out_sentences_beyond_a_bound_are_cut_and_counted(folder, monkeypatch):
    monkeypatch.setattr(translation, "MOST_EVALUATED", 4)
    data = load(folder)
    assert data.record["cut"]["val"] == sum(2 * (len(source.split()) > 3) for source, _ in sentences(1, 23)) > 0
    assert data.val.take(visits(*range(23))).source.shape == (23, 4)


def test_the_record_is_plain_and_says_how_bleu_is_taken(data):
    assert json.loads(json.dumps(data.record)) == data.record
    assert data.record["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert len(data.record["vocabulary_sha256"]) == 64 and len(data.record["text_sha256"]) == 16
    assert data.model_args == {"vocabulary": 28, "pad": PAD, "begin": BEGIN, "end": END}


def test_a_vocabulary_with_other_special_tokens_tells_the_model(folder):
    words = [*{word for pair in sentences(0, 60) for line in pair for word in line.split()}]
    (folder / "words.txt").write_text("\n".join(sorted(words) + ["</s>", "<s>", "<pad>", "<unk>"]))
    data = load(folder, vocabulary=str(folder / "words.txt"))
    assert data.model_args == {"vocabulary": 28, "pad": 26, "begin": 25, "end": 24}
    batch = data.train.take(visits(0, 1))
    assert (batch.source.max(), batch.inputs[:, 0].tolist()) == (26, [25, 25])
    assert (batch.source == 24).sum(1).tolist() == (batch.labels == 24).sum(1).tolist() == [1, 1]
    model = model_of(data)
    assert (model.pad, model.begin, model.end) == (26, 25, 24)


def test_there_may_be_no_test_split_and_other_names(folder):
    for language in ("en", "de"):
        (folder / f"val.{language}").rename(folder / f"dev.{language}")
    data = load(folder, val="dev", test="none")
    assert (len(data.val), len(data.test)) == (23, 0) and list(data.record["cut"]) == ["val"]
    assert len(load(folder, train="dev", val="dev", test="dev").train) == 23


def test_a_batch_goes_to_a_device_and_is_looked_at_with_its_references(data):
    batch = data.val.take(visits(0, 1))
    moved = to_device(batch, CPU, torch.float64)
    assert moved.references is batch.references and moved.source.dtype == torch.int64
    refuse_not_finite(moved, visits(0, 1), "in val")


# loss and metrics

def reference(model, batch, smoothing):
    """The loss token by token: 1 - s on the target, s / (K - 1) on each of the others."""
    losses = []
    for source, inputs, labels in zip(batch.source, batch.inputs, batch.labels):
        n = int((labels != IGNORED).sum())
        log_p = model(source[source != PAD][None], inputs[None, :n])[0].log_softmax(1)
        for place in range(n):
            q = torch.full_like(log_p[place], smoothing / (log_p.shape[1] - 1))
            q[labels[place]] = 1 - smoothing
            losses.append(-(q * log_p[place]).sum())
    return sum(losses), len(losses)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
def test_the_loss_is_smoothed_over_the_targets_tokens_without_padding(data, smoothing):
    model, batch = model_of(data).double().eval(), data.train.take(visits(*range(12)))
    total, count = bound_loss(JOB, smoothing)(model, batch)
    wanted, tokens = reference(model, batch, smoothing)
    assert count == tokens == sum(len(target.split()) + 1 for _, target in sentences(0, 12))
    assert total.item() == pytest.approx(wanted.item(), rel=1e-12)


@torch.no_grad()
def test_the_metrics_are_those_of_each_token_and_sacrebleus_of_the_whole(data):
    model, batch = model_of(data).double().eval(), data.val.take(visits(*range(23)))
    found = measured(JOB, model, batch)
    cross_entropy, tokens = reference(model, batch, 0.0)
    assert found.sums["cross_entropy"] == (pytest.approx(cross_entropy.item(), rel=1e-12), tokens)
    wrong = sum(int((model(row[None], inputs[None])[0].argmax(1) != labels)[labels != IGNORED].sum())
                for row, inputs, labels in zip(batch.source, batch.inputs, batch.labels))
    assert found.sums["error"] == (wrong, tokens)
    lines = translation.translations(model, batch)
    whole = sacrebleu.corpus_bleu(lines, [[target for _, target in sentences(1, 23)]])
    summary = JOB.summarize({"cross_entropy": 2.0}, {"bleu_counts": JOB.measure(model, batch)["bleu_counts"].numpy()})
    assert summary == {"perplexity": pytest.approx(math.exp(2)), "bleu": whole.score}


class Doubles(TorchDispatchMode):
    """Keeps the number of elements of the largest tensor of doubles that is made."""

    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and found.dtype == torch.float64:
            self.most = max(self.most, found.numel())
        return found


@torch.no_grad()
def test_the_cross_entropy_is_summed_in_doubles_without_copying_logits(data):
    batch = data.train.take(visits(*range(12)))
    logits, counted = model_of(data).eval()(batch.source, batch.inputs).bfloat16(), batch.labels != IGNORED
    with Doubles() as doubles:
        total, count = JOB.measure(lambda *_: logits, batch)["cross_entropy"]
    assert doubles.most <= counted.sum()
    wanted = functional.cross_entropy(logits[counted].double(), batch.labels[counted], reduction="sum")
    assert total.dtype == torch.float64 and total.item() == pytest.approx(wanted.item(), rel=1e-6)
    assert count == counted.sum()


@pytest.mark.parametrize("beam", [1, 3])
def test_a_translation_has_its_own_bound_and_does_not_depend_on_the_others(folder, monkeypatch, beam):
    monkeypatch.setattr(translation, "BEYOND", 2)
    data = load(folder, beam=beam)
    model = model_of(data).eval()
    lines = translation.translations(model, data.val.take(visits(*range(23))))
    for number, (source, _) in enumerate(sentences(1, 23)):
        assert len(lines[number].split()) <= len(source.split()) + 1 + 2
    if beam == 1:
        assert lines == [translation.translations(model, data.val.take(visits(i)))[0] for i in range(23)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Data, a model after 150 steps of Adam on it, and BLEU on validation before them."""
    torch.manual_seed(0)
    data = load(folder_of(tmp_path_factory.mktemp("larger"), train=400))
    model, drawn = model_of(data, width=32, hidden=64, dropout=0.0), np.random.default_rng(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    before = evaluated(data, SingleWorker(), 23, model)["val/bleu"]
    for _ in range(150):
        total, count = JOB.loss(model, data.train.take(visits(*drawn.integers(0, 400, 32))))
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
    return data, model, before


def evaluated(data, workers, chunk, model):
    return Evaluator(JOB, data.evaluated(9), chunk, workers, CPU)(model.eval(), ("train", "val", "test"))


def test_bleu_rises_with_training_and_is_sacrebleus_of_the_split(trained):
    data, model, before = trained
    found = evaluated(data, SingleWorker(), 23, model)
    whole = sacrebleu.corpus_bleu(translation.translations(model, data.val.take(visits(*range(23)))),
                                  [[target for _, target in sentences(1, 23)]])
    assert found["val/bleu"] == whole.score > 30 > before
    assert math.isnan(found["train/bleu"]) and found["train/cross_entropy"] < 1
    assert found["val/perplexity"] == math.exp(found["val/cross_entropy"])


# what is built in

@pytest.mark.parametrize("dataset", translation.MODELS)
def test_the_card_has_a_batch_as_the_splits_do_and_the_defaults_are_keys(dataset, data):
    job = translation.workload(dataset, "transformer")
    assert not problems(job)
    batch, taken = job.card.batch(), data.train.take(visits(0))
    assert {part.shape for part in (batch.source, batch.inputs, batch.labels)} == {(1, job.corpus.longest + 1)}
    assert batch.source.dtype == taken.source.dtype and batch.source.is_meta
    with torch.device("meta"):
        model = build_model(job, job.card.model_args)
    assert job.loss(model, batch)[0].shape == ()
    settings = Settings.build(job.defaults)
    assert (settings.optimizer, settings.beta2, settings.label_smoothing) == ("adam", 0.98, 0.1)


# data that is not right

@pytest.mark.parametrize("part", ["train", "val", "test_2016_flickr"])
def test_a_missing_or_damaged_file_is_named(folder, part, refused):
    path = folder / f"{part}.de"
    content = path.read_bytes()
    path.write_bytes(content[content.index(b"\n") + 1:])
    refused(folder)
    path.unlink()
    refused(folder)
    (folder / "more").mkdir()
    (folder / f"more/{part}-v7.de-en.de.gz").write_bytes(gzip.compress(content))
    (folder / f"more/{part}-v7.de-en.en.xz").write_bytes(lzma.compress((folder / f"{part}.en").read_bytes()))
    load(folder, **{part.partition("_")[0]: f"more/{part}-v7.de-en"})


def test_a_wrong_folder_and_none_are_named(tmp_path, worded, refused):
    with worded.error(DataError):
        translation.workload("wmt", "transformer").load(None, pair="de-fr")
    refused(tmp_path / "none")
    refused(tmp_path)


def test_nothing_left_to_train_on_says_why(folder, refused):
    write(folder, "train", [("w1 w2", "v1 v2"), ("w1", "")])
    refused(folder, longest=1)


@pytest.mark.parametrize("data_args", [{"pair": "en"}, {"pair": "en-en"}, {"pair": "en-de-fr"}, {"pair": "../en-de"},
                                       {"pair": 3}, {"longest": 0}, {"longest": "long"}, {"longest": 2.5}, {"beam": 0},
                                       {"beam": True}, {"vocabulary": "bpe:2"}, {"colour": 1}])
def test_a_data_argument_that_means_nothing_is_named(folder, data_args, refused):
    (name, value), = data_args.items()
    refused(folder, UsageError, **data_args)


# real text

@pytest.fixture
def multi30k():
    folder = DATA / "multi30k"
    if not folder.is_dir():
        lacks("multi30k", f"needs Multi30k's files in {folder}")
    return folder


def test_the_published_files_give_the_published_pairs(multi30k, tmp_path):
    data = JOB.load(str(multi30k), vocabulary="bpe:1000", longest=100, cache_dir=str(tmp_path))
    assert [len(split) for split in (data.train, data.val, data.test)] == [29000, 1014, 1000]
    assert data.record["left_out"] == {"empty": 0, "too_long": 0} and data.notes == ()
    batch = data.val.take(visits(0, 1))
    assert batch.references.lines == ["Eine Gruppe von Männern lädt Baumwolle auf einen Lastwagen",
                                      "Ein Mann schläft in einem grünen Raum auf einem Sofa."]
    vocabulary = batch.references.vocabulary
    assert [vocabulary.decode(row[row >= 0].tolist()) for row in batch.labels] == batch.references.lines
    assert vocabulary.decode(batch.source[0].tolist()) == "A group of men are loading cotton onto a truck"
