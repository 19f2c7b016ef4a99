"""The rooms of the package; that imports lead down only, and to what is of special interest from one file each."""
import ast
import re
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import hvdscale

PACKAGE = Path(hvdscale.__file__).parent
ROOMS = ("errors", "target", "formatting", "system", "workers", "watch", "plan", "log", "data", "modules", "workload",
         "workloads", "update", "analysis", "training", "exchange", "recorders", "report", "sweep", "scaling", "doctor",
         "cli")                                                                                             # upwards
# what few people need: a folder or file, and the one that reaches it, beside those of the same name in other rooms
SPECIAL = {
    "training.elastic": "cli.train",
    "workers.elastic": "workers.transport",
    "workloads.large": "workloads",
    "plan.branches": "cli.branch",
    "training.branches": "cli.branch",
    "analysis.branches": "report.views.branches",
    "report.views.branches": "report.pages",
    "analysis.landscapes": "report.views.landscapes",
    "report.views.landscapes": "report.pages",
    "report.papers": "report.pages",
    "exchange.archive": "cli.exchange",
    "exchange.benchmarks": "cli.exchange",
}
FILES = {".".join(("hvdscale", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
         for path in PACKAGE.rglob("*.py")}


def imports(files):
    """(importing module, line of the import, imported module) of every import of the package's own, wherever it is."""
    for module, (path, text) in files.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for node in relative_imports(text):
            base = ".".join(filter(None, [*package.split(".")[:len(package.split(".")) - node.level + 1], node.module]))
            for name in node.names:
                inner = f"{base}.{name.name}"
                yield module, f"{path}:{node.lineno}", inner if inner in files else base


@lru_cache(maxsize=None)
def relative_imports(text):
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and node.level]


def room_of(module):
    return module.split(".")[1] if "." in module else None         # None: __init__, which has the version alone


def upward(files, rooms=ROOMS):
    """Imports of a room from one above it, each as file:line and what it imports."""
    return [f"{line} imports {imported}" for module, line, imported in imports(files)
            if None not in (room_of(module), room_of(imported))
            and rooms.index(room_of(module)) < rooms.index(room_of(imported))]


def interest_of(module):
    """The entry of SPECIAL that a module belongs to; "": it is of the core."""
    return next((part for part in SPECIAL if f"{module}.".startswith(f"hvdscale.{part}.")), "")


def reached(files):
    """(interest, importing module, line) of every import of what is of special interest from elsewhere."""
    for module, line, imported in imports(files):
        interest = interest_of(imported)
        if interest and interest != interest_of(module):
            yield interest, module.removeprefix("hvdscale."), line


def straying(files):
    """Imports of what is of special interest from another file than the one that reaches it."""
    return [f"{line} imports of {interest}, which only {SPECIAL[interest]} does"
            for interest, module, line in reached(files) if module != SPECIAL[interest]
            and interest_of(f"hvdscale.{module}").rpartition(".")[2] != interest.rpartition(".")[2]]


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


@pytest.mark.parametrize("module, line, look, said", [
    ("system.cores", "from ..report.table import as_text", upward, "imports hvdscale.report.table"),
    ("training.prepare", "from ..workloads.large import tokens", straying,
     "imports of workloads.large, which only workloads does")])
def test_an_import_that_leads_up_or_to_what_is_of_special_interest_is_named(module, line, look, said):
    files = read(FILES)
    path, text = files[f"hvdscale.{module}"]
    files[f"hvdscale.{module}"] = path, f"{text}\n\ndef late():\n    {line}\n"
    assert look(files) == [f"{path}:{text.count(chr(10)) + 4} {said}"]


def test_what_is_of_special_interest_is_reached_from_one_file():
    assert not straying(read(FILES))


def test_all_that_the_table_of_special_interests_names_is_there_and_reached():
    assert set(SPECIAL.items()) <= {(interest, module) for interest, module, _ in reached(read(FILES))}


def test_the_guide_to_the_code_lists_the_rooms_in_their_order():
    text = (PACKAGE / "README.rst").read_text()
    listed = re.findall(r"^    hvdscale/(\w+)(?:/|\.py)  ", text, re.M)
    assert sorted(listed) == sorted({*ROOMS})
