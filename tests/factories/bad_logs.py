"""Logs broken at random, from good ones: bytes, HDF5 structure, values of columns, and plans.

    for number in range(1000):
        said = break_log(random.Random(number), good_path, broken_path)

What is broken follows from the random numbers alone, so each case can be made again.
"""
import copy
import json
import math
import random
import shutil

import h5py
import numpy as np

from hvdscale.log.schema import TABLES

INTEGERS = (0, 1, -1, 7, 2 ** 31, -2 ** 31, 2 ** 62, 2 ** 63 - 1, -2 ** 63)
FLOATS = (0.0, -1.0, math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, 1e-300)
TEXTS = ("", "x", "<script>alert(1)</script>", "\x1b[31m", "\u202e", "a/b", "nan", "1e999", "val/error<0.1", "%s{}",
         "n" * 5000)
VALUES = (None, True, False, 0, -1, 3, 2 ** 40, 10 ** 30, 0.5, -1e308, 1e-320, math.nan, math.inf, "", "text", "12",
          "val/error<", [], [1, "a", None], [[[]]], {}, {"a": {"b": [1]}}, {"name": 3}, [{}], [{"name": "lr"}])


def break_log(random_, good, broken):
    """Writes a broken copy of a log; what was done, in words."""
    shutil.copyfile(good, broken)
    how = random_.choice((break_bytes, break_structure, break_values, break_values, break_plan, break_plan, break_plan))
    return f"{how.__name__}: {how(random_, broken)}"


def break_bytes(random_, path):
    """Some bytes changed, cut off, put in or zeroed."""
    with open(path, "rb") as file:
        data = bytearray(file.read())
    how = random_.choice(("change", "change", "change", "cut", "zero", "insert", "append"))
    at = random_.randrange(len(data))
    if random_.random() < 0.5:                      # where the structure is, rather than the data
        at = random_.randrange(min(len(data), 4096))
    length = random_.choice((1, 2, 8, 64, 1000))
    if how == "change":
        for place in [at] + [random_.randrange(len(data)) for _ in range(random_.choice((0, 0, 3, 30)))]:
            data[place] = random_.randrange(256)
    elif how == "cut":
        del data[at:]
    elif how == "zero":
        data[at:at + length] = bytes(len(data[at:at + length]))
    elif how == "insert":
        data[at:at] = random_.randbytes(length)
    else:
        data += random_.randbytes(length)
    with open(path, "wb") as file:
        file.write(data)
    return f"{how} at {at}, {length}"


def break_structure(random_, path):
    """An attribute, a column's type, shape, unit or presence, a table's row count, or the heap of texts."""
    how = random_.choice((_attribute, _attribute, _row_count, _column_gone, _column_type, _unit, _heap, _link))
    with h5py.File(path, "r+") as file:
        return f"{how.__name__} {how(random_, file)}"


def break_values(random_, path):
    """Some or all values of one or two columns."""
    said = []
    with h5py.File(path, "r+") as file:
        for _ in range(random_.choice((1, 1, 2))):
            said.append(_values(random_, file))
    return ", ".join(said)


def break_plan(random_, path):
    """The plan of some trials: entries of other types, gone, or the text itself no JSON."""
    with h5py.File(path, "r+") as file:
        spans = file["trials/plan"][:int(file["trials/committed_rows"][0])]
        heap = file["text"][:].tobytes()
        rows = range(len(spans)) if random_.random() < 0.5 else [random_.randrange(len(spans))]
        plan = json.loads(heap[spans[rows[0]][0]:][:spans[rows[0]][1]])
        text, said = _changed_plan(random_, plan)
        data = text.encode("utf-8", "surrogatepass")
        for row in rows:
            spans[row] = len(heap), len(data)
        _replace(file["trials"], "plan", spans)
        del file["text"]
        file["text"] = np.frombuffer(heap + data, np.uint8)
    return f"{said} in {len(rows)} trials"


def _changed_plan(random_, plan):
    """(text of a plan, what was done to it)."""
    whole = random_.random()
    if whole < 0.15:
        text = random_.choice(("", "{", "null", "[]", "3", '"x"', "{}", "[" * 100_000, "NaN",
                               '{"a":' * 5000 + "1" + "}" * 5000, '{"a":' * 500 + "1" + "}" * 500, "1" * 10_000,
                               '{"problem": ' + "9" * 6000 + "}", "\ud800", "{\"a\": 1}" * 2,
                               json.dumps({"problem": {"model_args": {str(i): i for i in range(20_000)}}})))
        return text, f"plan = {text[:20]!r}"
    said = []
    for _ in range(random_.choice((1, 1, 3))):
        places = list(_places(plan))
        table, key = random_.choice(places)
        value = copy.deepcopy(random_.choice((*VALUES, "gone")))         # it may be changed in its turn
        said.append(f"{key} = {value!r}")
        if value == "gone":
            del table[key]
        else:
            table[key] = value
        if not list(_places(plan)):
            break
    return json.dumps(plan), ", ".join(said)


def _places(value):
    """Every (container, key) within."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield value, key
        yield from _places(inner)


def _replace(group, name, values):
    attributes = dict(group[name].attrs)
    del group[name]
    group[name] = values
    for key, value in attributes.items():
        group[name].attrs[key] = value


def _columns(file):
    """(table, column) of all."""
    found = []
    for table in TABLES:
        file[table].visititems(lambda name, item, table=table: found.append((table, name))
                               if isinstance(item, h5py.Dataset) and name != "committed_rows" else None)
    return found


def _column(random_, file):
    table, name = random_.choice(_columns(file))
    return file[table], name


def _attribute(random_, file):
    name = random_.choice((*file.attrs, "changes", "merged"))
    value = random_.choice((*INTEGERS, *FLOATS, *TEXTS[:5], "{", '{"a": 1}', "[1]", np.arange(3), np.zeros((2, 2))))
    if random_.random() < 0.2 and name in file.attrs:
        del file.attrs[name]
        return f"{name} gone"
    file.attrs[name] = value
    return f"{name} = {value!r}"


def _row_count(random_, file):
    table = random_.choice(TABLES)
    value = random_.choice((np.array([random_.choice(INTEGERS)]), np.array([10 ** 9]), np.array([]), np.array(3),
                            np.array([1.5]), np.array(["x"], "S1"), np.array([[1]])))
    del file[table]["committed_rows"]
    file[table]["committed_rows"] = value
    return f"{table} {value!r}"


def _column_gone(random_, file):
    group, name = _column(random_, file)
    del group[name]
    return f"{group.name}/{name}"


def _column_type(random_, file):
    group, name = _column(random_, file)
    rows = len(group[name])
    value = random_.choice((
        lambda: np.zeros(rows, "S4"), lambda: np.zeros((rows, 3)), lambda: np.zeros((rows, 2), int),
        lambda: np.zeros(rows, "i2"), lambda: np.zeros(rows, "f4"), lambda: np.zeros(rows, "i1"),
        lambda: np.zeros(rows, complex), lambda: np.zeros(()), lambda: np.zeros(rows, bool),
        lambda: np.zeros(max(0, rows - 1)),
        lambda: np.zeros(rows, "u8"), lambda: np.zeros(rows, [("a", int), ("b", float)])))()
    if random_.random() < 0.2:
        del group[name]
        shape = (10 ** 12,) if random_.random() < 0.5 else (10 ** 9,)
        group.create_dataset(name, shape=shape, chunks=(1024,), dtype=random_.choice(("i8", "f8")))
        file[group.name.strip("/")]["committed_rows"][0] = random_.choice((shape[0], rows))
        return f"{group.name}/{name} of {shape} rows"
    _replace(group, name, value)
    return f"{group.name}/{name} {value.dtype} {value.shape}"


def _unit(random_, file):
    group, name = _column(random_, file)
    key = random_.choice(("unit", "meaning"))
    value = random_.choice(("milliseconds", "percent", "", 3, np.arange(2), "seconds"))
    if random_.random() < 0.2:
        del group[name].attrs[key]
        return f"{group.name}/{name} {key} gone"
    group[name].attrs[key] = value
    return f"{group.name}/{name} {key} = {value!r}"


def _heap(random_, file):
    size = len(file["text"])
    value = random_.choice((np.zeros(0, np.uint8), np.zeros(size, np.uint8), np.full(size, 0xFF, np.uint8),
                            np.zeros(size), np.zeros((size, 2))))
    del file["text"]
    file["text"] = value
    return f"{value.dtype} {value.shape}"


def _link(random_, file):
    name = random_.choice(TABLES)
    del file[name]
    value = random_.choice(("gone", "dataset", "soft", "external", "loop"))
    if value == "dataset":
        file[name] = np.zeros(3)
    elif value == "soft":
        file[name] = h5py.SoftLink("/nowhere")
    elif value == "external":
        file[name] = h5py.ExternalLink("no.h5", "/x")
    elif value == "loop":
        file[name] = file["/"]
    return f"{name} {value}"


def _values(random_, file):
    group, name = _column(random_, file)
    dataset = group[name]
    values = dataset[...]
    if not len(values):
        return f"{group.name}/{name} has none"
    how = random_.choice(("one", "one", "all", "shuffle", "reverse", "copy", "negative"))
    choices = INTEGERS if values.dtype.kind in "iu" else FLOATS
    if how == "one":
        values[random_.randrange(len(values))] = _fitting(random_.choice(choices), values.dtype)
    elif how == "all":
        values[...] = _fitting(random_.choice(choices), values.dtype)
    elif how == "shuffle":
        values = values[random_.sample(range(len(values)), len(values))]
    elif how == "reverse":
        values = values[::-1]
    elif how == "copy":
        values[...] = values[random_.randrange(len(values))]
    else:
        values = -values
    dataset[...] = values
    return f"{group.name}/{name} {how}"


def _fitting(value, dtype):
    """The value, cut to what a narrow integer holds."""
    return value if dtype.kind == "f" else int(value) % 128 - 64 if dtype.itemsize == 1 else value


def generator(number):
    """The random numbers of one case."""
    return random.Random(number)
