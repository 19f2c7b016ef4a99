"""What is read from headers past HDF5 is what HDF5 says, and nothing is read from headers of other kinds."""
import os

import h5py
import numpy as np
import pytest
from tests.factories.log_files import finished

from hvdscale.log.stored import header_at

LONG = np.bytes_("x" * 500)


def headers(path):
    """(dataset, header) of each dataset of a file, by name."""
    with h5py.File(path) as file:
        datasets = {}
        file.visititems(lambda name, what: datasets.update({name: what}) if isinstance(what, h5py.Dataset) else None)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            yield from ((what, header_at(descriptor, h5py.h5o.get_info(what.id).addr)) for what in datasets.values())
        finally:
            os.close(descriptor)


def test_a_column_s_header_says_what_hdf5_says(tmp_path):
    types = {}
    for dataset, header in headers(finished(tmp_path / "w.h5", 300, 2)):
        assert header.shape == dataset.shape
        assert header.texts == {name: value.decode() for name, value in dataset.attrs.items()}
        assert types.setdefault(header.type, dataset.dtype) == dataset.dtype
    assert len(types) == 4, "int64, float64, the status, the bytes of texts"


def test_only_short_texts_of_fixed_size_are_known(tmp_path):
    with h5py.File(tmp_path / "w.h5", "w", libver="v110") as file:
        file["c"] = np.zeros(3)
        file["c"].attrs.update({"number": 1, "any size": "text", "two": np.array([b"a", b"b"]),
                                "none": h5py.Empty("S3"), "padded": np.bytes_("a\u00b5".encode())})
    [(_, header)] = headers(tmp_path / "w.h5")
    assert header.shape == (3,) and header.texts == {"padded": "a\u00b5"}


@pytest.mark.parametrize("libver, make", [
    ("earliest", lambda file: file.create_dataset("c", (3,), "f8")),
    ("v110", lambda file: file.create_dataset("c", data=h5py.Empty("f8"))),
    ("v110", lambda file: file.create_dataset("c", (3,), shared_type(file))),
    ("v110", lambda file: file.create_dataset("c", (3,), "f8").attrs.update(dict.fromkeys("abc", LONG))),
])
def test_a_header_of_another_kind_is_left_to_hdf5(tmp_path, libver, make):
    with h5py.File(tmp_path / "w.h5", "w", libver=libver) as file:
        make(file)
    assert [header for _, header in headers(tmp_path / "w.h5")] == [None]


def shared_type(file):
    file["t"] = np.dtype("f8")
    return file["t"]


@pytest.mark.parametrize("data", [
    b"", b"OHDR", b"OHDR\x02", b"OHDR\x02\x00\xff", b"OHDR\x02\x00\x08\x01\x04\x00\x00\x02\xff\x00\x00",
    b"OHDR\x02\x00\x0c\x0c\xff\x00\x00" + bytes(9), b"\x01" * 64])
def test_bytes_that_are_no_header_are_none(tmp_path, data):
    (tmp_path / "w").write_bytes(data)
    descriptor = os.open(tmp_path / "w", os.O_RDONLY)
    assert header_at(descriptor, 0) is None
    os.close(descriptor)
