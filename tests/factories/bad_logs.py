"""Logs broken at random, from good ones: bytes, HDF5 structure, values of columns, and plans.

    for number in range(1000):
        said = break_log(random.Random(number), good_path, broken_path)

What is broken follows from the random numbers alone, so each case can be made again."""
import copy
import json
import math
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
    """An attribute has another value, or a table or column another type, shape or place; or it is gone."""
    with h5py.File(path, "r+") as file:
        names = []
        file.visit(names.append)
        name = random_.choice(names)
        return _attribute(random_, random_.choice((file, file[name]))) if random_.random() < 0.4 else _member(
            random_, file, name)


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
        attributes = dict(file["trials/plan"].attrs)
        del file["trials/plan"]
        file["trials/plan"] = spans
        file["trials/plan"].attrs.update(attributes)
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


def _attribute(random_, holder):
    name = random_.choice((*holder.attrs, "changes", "merged"))
    value = random_.choice((*INTEGERS, *FLOATS, *TEXTS[:5], "{", '{"a": 1}', "[1]", "percent", "milliseconds",
                            np.arange(3), np.zeros((2, 2))))
    if random_.random() < 0.2 and name in holder.attrs:
        del holder.attrs[name]
        return f"{holder.name} {name} gone"
    holder.attrs[name] = value
    return f"{holder.name} {name} = {value!r}"


def _member(random_, file, name):
    """Something else in the place of a table or a column, under its attributes."""
    attributes, rows = dict(file[name].attrs), len(file[name])
    kinds = "S4", "i1", "i2", "u1", "u8", "f4", bool, complex, [("a", int), ("b", float)]
    value = random_.choice((
        None, file["/"], h5py.SoftLink("/nowhere"), h5py.ExternalLink("no.h5", "/x"), 10 ** 9, 10 ** 12,
        *(np.zeros(rows, kind) for kind in kinds), np.zeros((rows, 3)), np.zeros(()), np.zeros(max(0, rows - 1)),
        np.full(rows, 0xFF, np.uint8), np.array([random_.choice(INTEGERS)]), np.array([1.5]), np.array([[1]])))
    del file[name]
    if isinstance(value, int):
        file.create_dataset(name, (value,), random_.choice(("i8", "f8")), chunks=(1024,))
    elif value is not None:
        file[name] = value
    if isinstance(value, (int, np.ndarray)):
        file[name].attrs.update(attributes)
    return f"{name} {value!r}"


def _values(random_, file):
    name = random_.choice([f"{table}/{name}" for table in TABLES for name in file[table]
                           if isinstance(file[table][name], h5py.Dataset) and name != "committed_rows"])
    dataset = file[name]
    values = dataset[...]
    if not len(values):
        return f"{name} has none"
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
    return f"{name} {how}"


def _fitting(value, dtype):
    """The value, cut to what a narrow integer holds."""
    return value if dtype.kind == "f" else int(value) % 128 - 64 if dtype.itemsize == 1 else value
