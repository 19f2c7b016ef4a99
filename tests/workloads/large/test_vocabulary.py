"""Vocabularies: text comes back from its tokens, learning gives the same each time, what is none is refused."""
import pickle
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from hvdscale.errors import DataError, UsageError
from hvdscale.workloads.large import vocabulary as module
from hvdscale.workloads.large.vocabulary import Bytes, Listed, Pieces, is_learned, learn, parse, read, sample
from tests.wording import refusals

WORDS = ["the", "cat", "sat", "mat", "on", "a", "dog", "ran", "far", "away", "über", "naïve"]
KINDS = ("bpe:300", "unigram:290", "word", "word:9", "char", "char:12", "byte")


def text(lines=400, seed=0):
    drawn = random.Random(seed)
    weights = range(len(WORDS), 0, -1)
    return [" ".join(drawn.choices(WORDS, weights, k=drawn.randrange(9))) for _ in range(lines)]


@pytest.fixture(scope="module")
def learned():
    pytest.importorskip("sentencepiece")
    return {kind: learn(kind, [text()]) for kind in KINDS}


def by_line(vocabulary, lines, **more):
    ids, counts = vocabulary.encode(lines, **more)
    assert len(counts) == len(lines) and counts.sum() == len(ids)
    return [part.tolist() for part in np.split(ids, np.cumsum(counts)[:-1])]


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_within_the_vocabulary_and_the_special_ones_come_first(learned, kind):
    vocabulary = learned[kind]
    ids, _ = vocabulary.encode(text())
    assert 0 < ids.max() < len(vocabulary)
    assert (vocabulary.pad, vocabulary.unk, vocabulary.bos, vocabulary.eos) == (0, 1, 2, 3)
    assert not set(ids.tolist()) & {vocabulary.pad, vocabulary.bos, vocabulary.eos}


@pytest.mark.parametrize("kind", ["bpe:300", "unigram:290", "word", "char", "byte"])
def test_text_comes_back_from_its_tokens(learned, kind):
    vocabulary = learned[kind]
    for line, ids in zip(text(), by_line(vocabulary, text())):
        assert vocabulary.decode([vocabulary.bos, *ids, vocabulary.eos, vocabulary.pad]) == line


@pytest.mark.parametrize("kind", ["bpe:300", "unigram:290", "byte"])
@pytest.mark.parametrize("line", ["", " ", "  two  spaces ", "unseen ☃ 漢字 𝄞", "<unk> <s> </s> <pad>", "tab\tand\x0b"])
def test_pieces_and_bytes_spell_whatever_comes(learned, kind, line):
    ids, = by_line(learned[kind], [line])
    assert learned[kind].decode(ids) == line
    assert learned[kind].unk not in ids


def test_sizes_are_those_asked_for(learned):
    assert [len(learned[kind]) for kind in KINDS] == [
        300, 290, len(WORDS) + 4, 9, len(set("".join(WORDS)) | {" "}) + 4, 12, 260]


def test_words_and_characters_are_ordered_by_how_often_they_come(learned):
    counts = Counter(" ".join(text()).split())
    wanted = [word for word, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))]
    assert learned["word"].tokens[4:] == wanted
    assert learned["word:9"].tokens[4:] == wanted[:5]
    ids, = by_line(learned["word:9"], [" ".join(wanted)])
    assert ids == [4, 5, 6, 7, 8] + [1] * (len(wanted) - 5)
    assert learned["word:9"].decode(ids[3:6]) == f"{wanted[3]} {wanted[4]} <unk>"


def test_a_word_unk_in_the_text_is_unknown_and_other_special_words_are_too(learned):
    vocabulary = learn("word", [["a <unk> b </s> c <pad>"]])
    assert vocabulary.tokens == ["<pad>", "<unk>", "<s>", "</s>", "a", "b", "c"]
    assert by_line(vocabulary, ["a <unk> b </s> c <pad> <s>"]) == [[4, 1, 5, 1, 6, 1, 1]]


def test_characters_not_met_in_learning_are_unknown(learned):
    ids, = by_line(learned["char"], ["a☃t"])
    assert ids[1] == 1 and learned["char"].decode(ids) == "a\N{REPLACEMENT CHARACTER}t"


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_text_gives_the_same_vocabulary_however_it_comes_in_chunks(learned, kind):
    lines = text()
    again = learn(kind, [lines[at:at + 7] for at in range(0, len(lines), 7)])
    assert again.content == learned[kind].content and again.sha256 == learned[kind].sha256


@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_is_the_same_from_its_file_and_from_a_pickle(learned, kind, tmp_path):
    vocabulary = learned[kind]
    vocabulary.encode(["made use of"])
    path = tmp_path / f"vocabulary{vocabulary.suffix}"
    path.write_bytes(vocabulary.content)
    for other in (read(path), pickle.loads(pickle.dumps(vocabulary))):
        assert type(other) is type(vocabulary) and len(other) == len(vocabulary)
        assert by_line(other, text()) == by_line(vocabulary, text())
        assert other.sha256 == vocabulary.sha256


def test_words_of_one_letter_each_are_words_again_from_their_file(tmp_path):
    vocabulary = learn("word", [["a b a"]])
    path = tmp_path / f"vocabulary{vocabulary.suffix}"
    path.write_bytes(vocabulary.content)
    assert read(path).words and read(path).decode([4, 5]) == "a b"
    path = tmp_path / f"vocabulary{Listed([], words=False).suffix}"
    path.write_bytes(vocabulary.content)
    assert not read(path).words and read(path).decode([4, 5]) == "ab"


def test_threads_change_nothing(learned):
    assert by_line(learned["bpe:300"], text(), threads=3) == by_line(learned["bpe:300"], text())


def test_a_model_without_special_tokens_gets_them_after_its_last(tmp_path):
    package = pytest.importorskip("sentencepiece")
    package.SentencePieceTrainer.train(
        sentence_iterator=iter(text()), model_prefix=str(tmp_path / "plain"), model_type="bpe", vocab_size=60,
        minloglevel=3)              # unk, bos and eos are 0, 1, 2, and there is no pad
    vocabulary = read(tmp_path / "plain.model")
    assert (vocabulary.unk, vocabulary.bos, vocabulary.eos, vocabulary.pad, len(vocabulary)) == (0, 1, 2, 60, 61)
    assert vocabulary.decode([*vocabulary.encode(["the cat"])[0], 60]) == "the cat"
    with pytest.raises(DataError, match=r"plain.vocab: line \d+ is .* not one word.*give the .model"):
        read(tmp_path / "plain.vocab")


def test_a_list_of_words_or_of_single_characters_keeps_its_numbers_and_gets_the_special_ones_it_lacks(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("<S>\r\n</S>\r\n<UNK>\r\nthe\r\ncat\r\n")
    vocabulary = read(path)
    assert vocabulary.words and vocabulary.tokens[3:] == ["the", "cat", "<pad>"]
    assert (vocabulary.bos, vocabulary.eos, vocabulary.unk, vocabulary.pad) == (0, 1, 2, 5)
    assert by_line(vocabulary, ["cat the dog <S>"]) == [[4, 3, 2, 2]]
    path = tmp_path / "characters.txt"
    path.write_bytes("a\n \nü\n\r\n☃\n".encode())
    vocabulary = read(path)
    assert not vocabulary.words and by_line(vocabulary, ["ü a\r☃"]) == [[2, 1, 0, 3, 4]]


# what cannot be

def test_a_vocabulary_that_means_nothing_is_refused_before_any_text_is_read(golden):
    golden("vocabulary", refusals("vocabulary", UsageError, globals()))


def test_what_is_no_kind_is_a_file(worded):
    assert not is_learned("words.txt") and not is_learned("bpe8000") and not is_learned("/a/b.model")
    with worded.error(DataError):
        read(Path("bpe8000"))


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "char"])
def test_a_size_too_large_for_the_text_is_refused_with_the_largest(kind):
    pytest.importorskip("sentencepiece")
    with pytest.raises(DataError, match=rf"vocabulary={kind}:5000: .*ask for {kind}:(\d+) or fewer") as caught:
        learn(f"{kind}:5000", [text()])
    most = int(str(caught.value).split(f"ask for {kind}:")[1].split()[0])
    assert len(learn(f"{kind}:{most}", [text()])) == most
    with pytest.raises(DataError):
        learn(f"{kind}:{most + 1}", [text()])


def test_a_size_too_small_for_the_characters_is_refused_with_the_least():
    pytest.importorskip("sentencepiece")
    many = ["".join(map(chr, range(0x4e00 + 50 * n, 0x4e00 + 50 * n + 50))) for n in range(4)]
    with pytest.raises(DataError, match=r"ask for bpe:(\d+) or more") as caught:
        learn("bpe:300", [many])
    least = int(str(caught.value).split("ask for bpe:")[1].split()[0])
    assert len(learn(f"bpe:{least}", [many])) == least


@pytest.mark.parametrize("kind", ["bpe:300", "unigram:290", "word", "char"])
@pytest.mark.parametrize("chunks", [[], [[]], [["", ""]]])
def test_text_without_a_word_is_refused(kind, chunks, worded):
    pytest.importorskip("sentencepiece")
    with worded.error(DataError):
        learn(kind, chunks)


def test_files_that_are_no_vocabulary_are_refused_by_name(tmp_path, worded):
    pytest.importorskip("sentencepiece")
    for name, content, said in [
            ("a.txt", b"the cat\nsat\n", "line 1 is 'the cat', not one word"),
            ("b.txt", b"one\n\ntwo\n", "line 2 is ''"),
            ("c.txt", b"one\ntwo\none\n", "line 3 has 'one' again, after line 1"), ("d.txt", b"", "lists no tokens"),
            ("e.txt", b"<unk>\n</s>\n", "lists no tokens"), ("f.txt", b"\xff\xfe\0", "a SentencePiece model nor"),
            ("g.model", b"words\nin a text\n", "a SentencePiece model nor"), ("h.model", b"", "model without pieces")]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=f"{tmp_path / name}: .*{said}"):
            read(tmp_path / name)
    with worded.error(DataError):
        read(tmp_path)


def test_a_file_too_large_for_a_vocabulary_is_not_read(tmp_path, monkeypatch, worded):
    monkeypatch.setattr(module, "MOST_LISTED", 100)
    (tmp_path / "text").write_text("x" * 101)
    with worded.error(DataError):
        read(tmp_path / "text")


def test_a_damaged_model_is_refused_or_encodes(learned):
    whole, drawn = learned["bpe:300"].content, random.Random(4)
    refusals = 0
    for _ in range(60):
        damaged = bytearray(whole[:drawn.randrange(len(whole))] if drawn.random() < 0.5 else whole)
        if damaged:
            damaged[drawn.randrange(len(damaged))] ^= 1 << drawn.randrange(8)
        try:
            vocabulary = parse(bytes(damaged), Path("damaged.model"))
        except DataError as error:
            assert str(error).startswith("damaged.model: ")
            refusals += 1
        else:
            ids, _ = vocabulary.encode(text(20))
            assert ids.max() < len(vocabulary)
    assert refusals > 10


def test_counting_words_takes_bounded_memory_and_finds_frequent_ones(monkeypatch):
    monkeypatch.setattr(module, "MOST_COUNTED", 100)
    chunks = [[f"the cat the rare{chunk}x{number}" for number in range(50)] for chunk in range(40)]
    found = learn("word:8", chunks)
    assert found.tokens[4:6] == ["the", "cat"] and len(found) == 8
    assert len(learn("word", chunks)) <= 4 + 100 + 50
    assert len(learn("word", chunks[:2])) == 4 + 2 + 2 * 50


# the sample

def test_a_sample_has_lines_of_everywhere_in_order_no_more_than_asked_for_long_ones_cut():
    chunks = [[f"{number:06d}" for number in range(at, at + 100)] for at in range(0, 20_000, 100)]
    for most in (600, 6000, 60_000):
        found = [int(line) for line in sample(chunks, most)]
        assert most / 3 < 6 * len(found) <= most and found == sorted(found) and len(set(found)) == len(found)
        assert np.mean(found) == pytest.approx(10_000, rel=0.25)
        assert found == [int(line) for line in sample(chunks, most)]
    assert len(sample(chunks, 120_000)) == 20_000
    line = "x" * (2 * module.LONGEST + 5)
    assert [len(part) for part in sample([["", line, ""]], 10**6)] == [module.LONGEST, module.LONGEST, 5]


def test_without_the_package_the_message_names_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sentencepiece", None)
    with pytest.raises(DataError, match="needs sentencepiece.*pip install sentencepiece"):
        learn("bpe:300", [text()])
    assert isinstance(learn("byte", []), Bytes) and Pieces.suffix == ".model"
