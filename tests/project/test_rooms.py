"""The rooms of the package, and that imports lead down only: between rooms, and between files."""
import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import hvdscale

PACKAGE = Path(hvdscale.__file__).parent
ROOMS = ("errors", "target", "formatting", "system", "workers", "plan", "log", "data", "modules", "workload",
         "workloads", "update", "analysis", "training", "exchange", "report", "sweep", "doctor", "cli")     # upwards
FILES = {".".join(("hvdscale", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
         for path in PACKAGE.rglob("*.py")}


def imports(files):
    """(importing module, line of the import, imported module) of every import of the package's own, wherever it is."""
    for module, (path, text) in files.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = ".".join(filter(None, [*package.split(".")[:len(package.split(".")) - node.level + 1],
                                              node.module]))
                for name in node.names:
                    inner = f"{base}.{name.name}"
                    yield module, f"{path}:{node.lineno}", inner if inner in files else base


def room_of(module):
    return module.split(".")[1] if "." in module else None         # None: __init__, which has the version alone


def upward(files, rooms=ROOMS):
    """Imports of a room from one above it, each as file:line and what it imports."""
    return [f"{line} imports {imported}" for module, line, imported in imports(files)
            if None not in (room_of(module), room_of(imported))
            and rooms.index(room_of(module)) < rooms.index(room_of(imported))]


def read(files):
    return {module: (path, path.read_text()) for module, path in files.items()}


def test_every_file_is_in_a_room():
    assert {room_of(module) for module in FILES} == {*ROOMS, None}


def test_no_import_leads_up_between_rooms():
    assert not upward(read(FILES))


def test_no_files_import_each_other_in_a_circle():
    lower = {}
    for module, _, imported in imports(read(FILES)):
        if imported != module:
            lower.setdefault(module, set()).add(imported)
    try:
        TopologicalSorter(lower).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(error.args[1]))


def test_an_import_that_leads_up_is_named_with_its_line():
    files = read(FILES)
    path, text = files["hvdscale.system.cores"]
    files["hvdscale.system.cores"] = path, text + "\n\ndef usable():\n    from ..report.table import as_text\n"
    assert upward(files) == [f"{path}:{text.count(chr(10)) + 4} imports hvdscale.report.table"]


def test_the_guide_to_the_code_lists_the_rooms_in_their_order():
    text = (PACKAGE / "README.rst").read_text()
    listed = re.findall(r"^    hvdscale/(\w+)(?:/|\.py)  ", text, re.M)
    assert sorted(listed) == sorted({*ROOMS})
