"""Parallel text on disk: the files of both languages are found, and what lacks is a DataError that names it."""
import gzip
import lzma

import pytest

from hvdscale.errors import DataError
from hvdscale.workloads.large.translation import find_parallel

LANGUAGES = ("en", "de")
PACK = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


def write(folder, prefix="train", endings=("", "")):
    for language, ending in zip(LANGUAGES, endings):
        (folder / f"{prefix}.{language}{ending}").write_bytes(PACK[ending](f"in {language}\n".encode()))


def read(text):
    return [chunk.lines for side in text for chunk in side.chunks()]


@pytest.mark.parametrize("endings", [("", ""), (".gz", ".gz"), (".xz", ".gz")])
def test_both_files_are_found_packed_or_not(tmp_path, endings):
    write(tmp_path, endings=endings)
    assert read(find_parallel(tmp_path, "train", "train", LANGUAGES)) == [["in en"], ["in de"]]


def test_the_pair_of_languages_says_which_is_the_source(tmp_path):
    write(tmp_path)
    assert read(find_parallel(tmp_path, "train", "train", ("de", "en"))) == [["in de"], ["in en"]]


def test_a_prefix_may_name_a_sub_folder_and_have_dots_in_it(tmp_path):
    (tmp_path / "training").mkdir()
    write(tmp_path / "training", "europarl-v7.de-en")
    assert find_parallel(tmp_path, "train", "training/europarl-v7.de-en", LANGUAGES)[1].path.is_file()


def test_a_missing_language_is_named_with_what_is_there(tmp_path):
    write(tmp_path)
    (tmp_path / "train.de").unlink()
    with pytest.raises(DataError, match=f"^{tmp_path}: has no train.de or train.de.gz; it holds train.en. The prefix"):
        find_parallel(tmp_path, "train", "train", LANGUAGES)
    with pytest.raises(DataError, match="no val.en or val.en.gz and no val.de or val.de.gz; it holds train.en. The"):
        find_parallel(tmp_path, "val", "val", LANGUAGES)


def test_what_is_no_folder_and_what_is_no_file_are_named(tmp_path):
    with pytest.raises(DataError, match="none: has no train.en .*; there is no such folder"):
        find_parallel(tmp_path / "none", "train", "train", LANGUAGES)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match="file: has no train.en .*; it is a file, not a folder. The prefix"):
        find_parallel(tmp_path / "file", "train", "train", LANGUAGES)
    (tmp_path / "train.en").mkdir()
    with pytest.raises(DataError, match="has no train.en or train.en.gz and no train.de or train.de.gz"):
        find_parallel(tmp_path, "train", "train", LANGUAGES)
