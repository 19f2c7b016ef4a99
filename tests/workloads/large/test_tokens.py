"""The token cache: what is in it is the text, it is made once and whole, and what is wrong with it is found."""
import errno
import gzip
import hashlib
import multiprocessing
import os
import pickle
import resource
import signal
import time

import numpy as np
import pytest

from hvdscale.errors import DataError
from hvdscale.plan.shards import Visits
from hvdscale.workloads.large import tokens
from hvdscale.workloads.large.readers import text as reader
from hvdscale.workloads.large.readers.text import Text
from hvdscale.workloads.large.tokens import IGNORED, Mapped, SentenceSplit, StreamSplit, open_cache
from hvdscale.workloads.large.vocabulary import learn

LINES = ["the cat sat", "", "on the mat", "a ü☃ b", "x"]


@pytest.fixture
def made(tmp_path):
    """Open a cache of one part, train, of these lines."""
    def made(lines=LINES, vocabulary="char", **more):
        path = tmp_path / "train.txt"
        content = "".join(f"{line}\n" for line in lines)
        if not path.exists() or path.read_text() != content:
            path.write_text(content)
        return open_cache({"train": [Text(path)]}, vocabulary, cache_dir=str(tmp_path / "cache"), **more)
    return made


def visits(*indices):
    return Visits(np.array(indices, np.int64), np.zeros(len(indices), np.int64))


def everything(split):
    return split.take(visits(*range(len(split))))


def expected(lines, vocabulary):
    """The tokens of the lines, each ended, by a loop."""
    found = []
    for line in lines:
        found += [*vocabulary.encode([line])[0].tolist(), vocabulary.eos]
    return found


def counting(monkeypatch):
    """A list that grows with each text that is encoded."""
    made, encode = [], tokens._encode
    monkeypatch.setattr(tokens, "_encode", lambda *args: made.append(args[1]) or encode(*args))
    return made


@pytest.mark.parametrize("kind", ["char", "word", "byte", "bpe:280"])
@pytest.mark.parametrize("chunk", [16, 2**20])
def test_a_cache_holds_each_lines_tokens_and_its_end(made, kind, chunk, monkeypatch):
    if ":" in kind:
        pytest.importorskip("sentencepiece")
    monkeypatch.setattr(reader, "CHUNK", chunk)
    lines = [line for line in LINES * 7 if len(line) < 12]
    cache = made(lines, kind)
    text, vocabulary = cache.parts["train"], cache.vocabulary
    assert vocabulary.content == learn(kind, [lines]).content
    assert text.tokens.rows(np.array([0]), len(text.tokens))[0].tolist() == expected(lines, vocabulary)
    assert text.lines == len(lines)
    ids, counts = text.of_lines(np.arange(len(lines)), 20, -1)
    for line, row, count in zip(lines, ids.tolist(), counts):
        wanted = expected([line], vocabulary)
        assert count == len(wanted) and row == wanted + [-1] * (20 - len(wanted))


def test_blank_lines_can_be_left_out(made):
    assert made(blank_lines=False).parts["train"].lines == 4
    assert made(["a", " ", "\t", "b"], blank_lines=False).parts["train"].lines == 2
    assert made(["a", " ", "\t", "b"]).parts["train"].lines == 4


def test_parts_share_a_vocabulary_learned_from_those_named(tmp_path):
    files = {}
    for name, line in [("one", "abc"), ("two", "xyz"), ("three", "abz!")]:
        (tmp_path / name).write_text(line + "\n")
        files[name] = [Text(tmp_path / name)]
    files["all"] = files["one"] + files["two"]
    cache = open_cache(files, "char", ("one", "two"), str(tmp_path / "cache"))
    assert "".join(cache.vocabulary.tokens[4:]) == "abcxyz"
    assert {name: (part.lines, part.unknown) for name, part in cache.parts.items()} == {
        "one": (1, 0), "two": (1, 0), "three": (1, 1), "all": (2, 0)}


def test_sixteen_bits_are_used_where_they_hold_the_vocabulary(made):
    words = [f"w{number}" for number in range(2**16)]
    few, many = made([" ".join(words[:-4])], "word"), made([" ".join(words)], "word")
    assert (len(few.vocabulary), few.parts["train"].tokens.dtype) == (2**16, np.uint16)
    assert (len(many.vocabulary), many.parts["train"].tokens.dtype) == (2**16 + 4, np.uint32)
    for cache in (few, many):
        text = cache.parts["train"]
        assert np.sort(text.of_lines(np.array([0]), text.lines * len(text.tokens), 0)[0][0])[-1] == len(
            cache.vocabulary) - 1


def test_a_parts_checksum_does_not_depend_on_chunks_or_packing(made, tmp_path, monkeypatch):
    wanted = hashlib.sha256("".join(f"{line}\n" for line in LINES).encode()).hexdigest()
    cache = made()
    assert cache.parts["train"].sha256 == wanted
    assert cache.text_sha256 == hashlib.sha256(f"{wanted}  train\n".encode()).hexdigest()[:16]
    monkeypatch.setattr(reader, "CHUNK", 16)
    (tmp_path / "packed").write_bytes(gzip.compress("\r\n".join(LINES).encode()))
    packed = open_cache({"train": [Text(tmp_path / "packed")]}, "byte", cache_dir=str(tmp_path / "cache"))
    assert packed.text_sha256 == cache.text_sha256
    for other in (["the cat sag", *LINES[1:]], LINES[::-1], LINES[:-1]):
        assert made(other, "byte").text_sha256 != cache.text_sha256


# splits

@pytest.mark.parametrize("sequence", [1, 4, 7, 34, 35, 36, 100])
def test_a_stream_predicts_each_token_once_from_the_one_before_it(made, sequence):
    cache = made()
    stream = expected(LINES, cache.vocabulary)
    split = StreamSplit(cache.parts["train"], sequence)
    batch = everything(split)
    assert batch.inputs.shape == batch.labels.shape == (-(-len(stream) // sequence), sequence)
    counted = batch.labels != IGNORED
    assert batch.labels[counted].tolist() == stream
    assert batch.inputs[counted].tolist() == [cache.vocabulary.eos, *stream[:-1]]
    assert set(batch.inputs[~counted].tolist()) <= {cache.vocabulary.pad, stream[-1]}


@pytest.mark.parametrize("sequence", [1, 3, 12, 40])
def test_a_sentence_is_predicted_from_its_beginning_to_its_end_or_cut(made, sequence):
    cache = made(blank_lines=False)
    kept = [line for line in LINES if line]
    split = SentenceSplit(cache.parts["train"], sequence)
    batch = everything(split)
    assert batch.inputs.shape == (len(kept), sequence)
    for line, inputs, labels in zip(kept, batch.inputs.tolist(), batch.labels.tolist()):
        wanted = expected([line], cache.vocabulary)[:sequence]
        assert labels == wanted + [IGNORED] * (sequence - len(wanted))
        assert inputs[:len(wanted)] == [cache.vocabulary.bos, *wanted][:len(wanted)]
    long = sum(len(line) + 1 > sequence for line in kept)
    assert cache.parts["train"].longer_than(sequence) == long


@pytest.mark.parametrize("kind", [StreamSplit, SentenceSplit])
def test_an_example_does_not_depend_on_what_else_is_taken(made, kind):
    split = kind(made().parts["train"], 7)
    whole = everything(split)
    assert whole.inputs.shape[1] == 7
    drawn = np.random.default_rng(0).integers(0, len(split), 20)
    for part in (drawn[:1], drawn, drawn[:0]):
        batch = split.take(visits(*part))
        assert batch.inputs.shape == (len(part), 7)
        assert batch.inputs.equal(whole.inputs[part]) and batch.labels.equal(whole.labels[part])


@pytest.mark.parametrize("kind", [StreamSplit, SentenceSplit])
def test_the_first_examples_are_a_split(made, kind):
    split = kind(made().parts["train"], 7)
    assert len(split.first(2)) == 2 and len(split.first(2).first(9)) == 2 and len(split.first(10**6)) == len(split)
    assert everything(split.first(2)).labels.equal(everything(split).labels[:2])


def in_process(function, *args):
    """Start function(say, *args) in another process; gives the process and a function that waits for what it says."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=function, args=(send.send, *args))
    process.start()

    def said():
        assert receive.poll(120)
        return receive.recv()
    return process, said


def test_a_split_goes_to_another_process_mapped_or_not(made):
    split = StreamSplit(made().parts["train"], 7)
    for _ in range(2):
        assert len(pickle.dumps(split)) < 2000
        process, said = in_process(lambda say: say(everything(split).labels.tolist()))
        assert said() == everything(pickle.loads(pickle.dumps(split))).labels.tolist()
        process.join()
        everything(split)               # which maps it here


def test_a_mapped_file_is_let_go_of_and_reads_the_same(tmp_path, monkeypatch):
    values = np.random.default_rng(0).integers(0, 2**16, 10**6).astype(np.uint16)
    values.tofile(tmp_path / "values")
    monkeypatch.setattr(tokens, "MAPPED_BYTES", 10**5)
    mapped, drawn = Mapped(tmp_path / "values", np.uint16, len(values)), np.random.default_rng(1)
    for _ in range(100):
        starts = drawn.integers(0, len(values) - 50, 16)
        np.testing.assert_array_equal(mapped.rows(starts, 50), [values[start:start + 50] for start in starts])


# once, and whole

def test_a_cache_is_made_once(made, monkeypatch):
    done = counting(monkeypatch)
    first, again = made(), made()
    assert done == ["train"] and again.folder == first.folder
    assert everything(StreamSplit(again.parts["train"], 5)).labels.equal(
        everything(StreamSplit(first.parts["train"], 5)).labels)


def test_other_text_settings_or_vocabularies_make_another_cache(made, tmp_path, monkeypatch):
    done, path = counting(monkeypatch), tmp_path / "train.txt"

    def opened(text, vocabulary="char"):
        return open_cache({"train": [text]}, vocabulary, cache_dir=str(tmp_path / "cache"))
    found = [made(), made(vocabulary="word"), made(blank_lines=False), made(LINES + ["more"])]
    os.utime(path, ns=(1, 1))
    found += [opened(Text(path)), opened(Text(path, 0, 12)), opened(Text(path, 12))]
    for words in ("a", "a\nb"):
        (tmp_path / "words").write_text(words)
        found.append(opened(Text(path), str(tmp_path / "words")))
    assert len({cache.folder for cache in found}) == len(found) == len(done)


def test_without_a_folder_caches_are_in_the_users(made, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    (tmp_path / "a.txt").write_text("a\n")
    found = open_cache({"train": [Text(tmp_path / "a.txt")]}, "char")
    assert found.folder.parent == tmp_path / "xdg" / "hvdscale" / "tokens"


def damage(file):
    file.write_bytes(file.read_bytes()[:-1])


def test_one_list_as_words_and_as_characters_makes_two_caches(made, tmp_path):
    found = {}
    for name in ("list.txt", "list.words"):
        (tmp_path / name).write_text("a\nb\n")
        found[name] = made(["a b", "b"], str(tmp_path / name)).parts["train"]
    assert [len(found[name].tokens) for name in found] == [3 + 1 + 1 + 1, 2 + 1 + 1 + 1]


@pytest.mark.parametrize("name", ["0.tokens", "0.starts", "manifest.json", "vocabulary.txt"])
@pytest.mark.parametrize("how", [damage, lambda file: file.unlink(), lambda file: file.write_bytes(b"")],
                         ids=["cut", "gone", "empty"])
def test_a_damaged_cache_is_made_anew(made, name, how, monkeypatch):
    cache = made()
    wanted = everything(StreamSplit(cache.parts["train"], 5)).labels
    how(cache.folder / name)
    done = counting(monkeypatch)
    again = made()
    assert done == ["train"]
    assert everything(StreamSplit(again.parts["train"], 5)).labels.equal(wanted)


def test_a_manifest_with_any_part_changed_is_found_or_harmless(made):
    cache = made()
    whole = (cache.folder / "manifest.json").read_bytes()
    wanted = everything(StreamSplit(cache.parts["train"], 5)).labels
    for at in range(0, len(whole), 9):
        (cache.folder / "manifest.json").write_bytes(whole[:at] + bytes([whole[at] ^ 0x11]) + whole[at + 1:])
        assert everything(StreamSplit(made().parts["train"], 5)).labels.equal(wanted)


def test_a_token_that_is_none_and_a_cache_that_is_gone_after_it_was_opened_name_it(made, worded):
    cache = made()
    content = bytearray((cache.folder / "0.tokens").read_bytes())
    content[4:6] = b"\xff\xff"
    (cache.folder / "0.tokens").write_bytes(content)
    with worded.error(DataError, unlike=r"(?<=tokens/)\w{24}"):
        everything(StreamSplit(made().parts["train"], 5))
    split = StreamSplit(made().parts["train"], 5)
    (split.text.tokens.path).unlink()
    with worded.error(DataError, unlike=r"(?<=tokens/)\w{24}"):
        everything(split)


def left(tmp_path):
    return [path.name for path in (tmp_path / "cache" / "tokens").iterdir() if path.suffix != ".lock"]


def test_an_error_leaves_nothing_behind(made, tmp_path, monkeypatch):
    with pytest.raises(DataError, match="is empty"):
        made([], "byte")
    with pytest.raises(DataError, match="different words"):
        made(vocabulary="word:1000")
    monkeypatch.setattr(tokens.Screen, "due", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        made()
    assert left(tmp_path) == []


def test_a_full_file_system_is_a_clear_error_and_is_cleared(made, tmp_path, worded):
    (tmp_path / "train.txt").write_text("words\n" * 100_000)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with worded.error(DataError):
            open_cache({"train": [Text(tmp_path / "train.txt")]}, "byte", cache_dir=str(tmp_path / "cache"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert left(tmp_path) == []


@pytest.mark.parametrize("refusing, number, said", [
    ("pathlib.Path.mkdir", errno.EROFS, "cannot be written there: Read-only.*cache_dir=DIR"),
    ("fcntl.flock", errno.ENOLCK, "refuses locks .*cache_dir=DIR")])
def test_an_unusable_cache_folder_is_an_error_unless_the_cache_exists(made, monkeypatch, refusing, number, said):
    made()

    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))
    monkeypatch.setattr(refusing, refuse)
    made()
    with pytest.raises(DataError, match=said):
        made(vocabulary="word")


def test_a_file_in_the_place_of_the_folder_is_a_clear_error(made, tmp_path, worded):
    (tmp_path / "cache").write_text("a file")
    with worded.error(DataError):
        made()


def test_a_vocabulary_is_looked_for_in_the_users_home(made, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "words").write_text("cat\nsat\n")
    assert len(made(vocabulary="~/words").vocabulary) == 6
    with pytest.raises(DataError, match="vocabulary=~nobody-has-this-name/words: cannot be read"):
        made(vocabulary="~nobody-has-this-name/words")


def build_slowly(say, tmp_path, seconds):
    """Open the cache; what is said: that it is being made, and its tokens."""
    encode = tokens._encode

    def slow(*args):
        say("building")
        time.sleep(seconds)
        return encode(*args)
    tokens._encode = slow
    cache = open_cache({"train": [Text(tmp_path / "train.txt")]}, "char", cache_dir=str(tmp_path / "cache"))
    say(len(cache.parts["train"].tokens))


def test_one_of_several_processes_makes_the_cache_and_the_others_wait_for_it(tmp_path):
    (tmp_path / "train.txt").write_text("the cat\n" * 10)
    heard = []
    for process, said in [in_process(build_slowly, tmp_path, 0.5) for _ in range(3)]:
        heard.append(said())
        if heard[-1] == "building":
            assert said() == 80
        process.join()
    assert sorted(heard, key=str) == [80, 80, "building"]


def test_what_a_killed_builder_leaves_is_not_taken_for_a_cache_and_is_removed(made, tmp_path):
    (tmp_path / "train.txt").write_text("the cat\n" * 10)
    process, said = in_process(build_slowly, tmp_path, 600)
    assert said() == "building"
    process.kill()
    process.join()
    assert len(left(tmp_path)) == 1
    cache = made(["the cat"] * 10)
    assert len(cache.parts["train"].tokens) == 80
    assert left(tmp_path) == [cache.folder.name]


def test_another_hosts_unfinished_work_is_let_be(made, tmp_path):
    name = made().folder.name
    other = tmp_path / "cache" / "tokens" / f"{name}.otherhost.abc"
    other.mkdir()
    damage(tmp_path / "cache" / "tokens" / name / "0.tokens")
    made()
    assert sorted(left(tmp_path)) == [name, other.name]


def test_a_cache_made_elsewhere_meanwhile_is_used(made, tmp_path, monkeypatch):
    rename, made_by = os.rename, []

    def late(source, target):
        rename(source, target)
        made_by.append(target)
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
    monkeypatch.setattr(tokens.os, "rename", late)
    assert made().folder == made_by[0]


def test_progress_is_told_every_few_seconds_by_the_builder_alone(made, capsys, monkeypatch):
    made()
    assert capsys.readouterr() == ("", "")
    clock = iter(range(0, 10_000, 2))
    monkeypatch.setattr(tokens.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(reader, "CHUNK", 1000)
    made(["some words of text"] * 2000, "word")
    said = capsys.readouterr().err.splitlines()
    assert 5 < len(said) < 40
    assert said[0].startswith("vocabulary word: ") and said[0].endswith(" MB/s")
    assert said[-1].startswith("tokens of train: ") and "% of 0 MB" in said[-1]
    made(["some words of text"] * 2000, "word")
    assert capsys.readouterr() == ("", "")


def use_it(say, path, cache_dir, vocabulary):
    """Make the cache and take examples from all over it; says by how many MiB the peak of memory rose in each."""
    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    before = peak()
    split = StreamSplit(open_cache({"train": [Text(path)]}, vocabulary, cache_dir=cache_dir).parts["train"], 64)
    built, drawn = peak(), np.random.default_rng(0)
    tokens.MAPPED_BYTES = 2**21
    for _ in range(500):
        split.take(Visits(drawn.integers(0, len(split), 2), np.zeros(2, np.int64)))
    say((built - before, peak() - built))


def test_building_and_reading_take_memory_for_a_part_of_the_text_only(tmp_path):
    (tmp_path / "text").write_text(("some words of text here " * 20 + "\n") * 100_000)
    process, said = in_process(use_it, tmp_path / "text", str(tmp_path / "cache"), "byte")
    building, reading = said()
    process.join()
    assert building < 40 and reading < 16, (building, reading)          # MiB, of 46 MiB of text and 92 of tokens


@pytest.mark.parametrize("kind, sequence", [(kind, sequence) for kind in (StreamSplit, SentenceSplit)
                                            for sequence in (1, 3, 7, 100)])
def test_the_tokens_of_a_split_are_its_labels_without_padding(made, kind, sequence, monkeypatch):
    monkeypatch.setattr(tokens, "CHUNK", 2)
    split = kind(made().parts["train"], sequence)
    for examples in range(1, len(split) + 1):
        few = split.first(examples)
        assert few.count_tokens() == int((everything(few).labels != IGNORED).sum())
