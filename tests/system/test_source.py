"""What of a module's source a digest is of, and which files beside it are its own."""
import importlib
import linecache
import sys
from types import ModuleType

import pytest

from hvdscale.system.source import digest_source
from tests.factories.edited_jobs import forget

SOURCE = '"""A job."""\nimport math\n\n\ndef area(r):\n    """Of a circle."""\n    return math.pi * r ** 2\n'


@pytest.fixture
def digests(monkeypatch, request):
    """The digests of a module of a folder with these files, imported anew."""
    before = set(sys.modules)

    def digests(folder, files, name="job"):
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(folder))
            forget(*set(sys.modules) - before)
            return digest_source(importlib.import_module(name))
    yield digests
    forget(*set(sys.modules) - before)


@pytest.mark.parametrize("text", [
    "# a comment\n" + SOURCE, SOURCE.replace("    return", "    # by hand\n\n    return"),
    SOURCE.replace("Of a circle.", "Its area."), SOURCE.replace("r ** 2", "(r**2)"),
    SOURCE.replace('"""A job."""\n', "")])
def test_layout_comments_and_docstrings_change_no_digest(digests, tmp_path, text):
    assert digests(tmp_path / "one", {"job.py": SOURCE}) == digests(tmp_path / "two", {"job.py": text})


@pytest.mark.parametrize("old, new", [("** 2", "** 3"), ("def area(r)", "def area(r=1)"), ("math.pi", "3.14"),
                                      ("import math", "import math, cmath"), ("return", "x =")])
def test_an_edit_changes_the_digest_of_its_file_alone(digests, tmp_path, old, new):
    files = {"job.py": "from shapes import area\n", "shapes.py": SOURCE}
    before = digests(tmp_path, files)
    after = digests(tmp_path, {**files, "shapes.py": SOURCE.replace(old, new)})
    assert [file for file in before if before[file] != after[file]] == ["shapes.py"]


def test_a_digest_is_the_same_in_every_version_of_python(digests, tmp_path):
    text = "def f(x, *, y: int = 1) -> str:\n    return f'{x!r:>{y}}' if x else (lambda: None)()\n"
    assert digests(tmp_path, {"job.py": text}) == {"job.py": "473fa82ea67b"}


@pytest.mark.parametrize("job, beside", [
    ("import a.b.c\n", ["a/__init__.py", "a/b/c.py"]), ("from a import b, x\n", ["a/__init__.py", "a/x.py"]),
    ("def f():\n    from a.b import c\n", ["a/__init__.py", "a/b/c.py"]),
    ("from up import *\n", ["a/__init__.py", "up.py"]),
    ("import importlib\nimportlib.import_module('a.x')\n", ["a/__init__.py", "a/x.py"]),
    ("try:\n    import none_such\nexcept ImportError:\n    pass\n", []), ("import json, numpy\n", [])])
def test_files_beside_count_wherever_they_are_imported(digests, tmp_path, job, beside):
    files = {"job.py": job, "a/__init__.py": "", "a/b/c.py": "from .. import __name__\n", "a/x.py": "",
             "up.py": "import a", "idle.py": ""}
    assert list(digests(tmp_path, files)) == sorted([*beside, "job.py"])


def test_a_module_of_a_package_counts_with_what_lies_around_the_package(digests, tmp_path):
    files = {"pkg/__init__.py": "", "pkg/sub/__init__.py": "",
             "pkg/sub/job.py": "from ..net import Net\nimport common\n",
             "pkg/net.py": "from . import layers\nNet = 1\n", "pkg/layers.py": "", "common.py": ""}
    assert set(digests(tmp_path, files, "pkg.sub.job")) == {*files}


def test_what_is_installed_does_not_count_even_below_the_folder(digests, tmp_path, monkeypatch):
    packages = tmp_path / ".venv/lib/python3/site-packages"
    packages.mkdir(parents=True)
    (packages / "wheel_of_fortune.py").write_text("")
    monkeypatch.syspath_prepend(str(packages))
    job = "import wheel_of_fortune, hvdscale.errors, pytest\n"
    assert list(digests(tmp_path, {"job.py": job})) == ["job.py"]
    assert set(digests(packages, {"mine/__init__.py": "import wheel_of_fortune\n", "mine/job.py": ""}, "mine.job")) == {
        "mine/__init__.py", "mine/job.py"}


def test_of_a_notebook_the_cells_count_that_define_something():
    def notebook(text):
        module = ModuleType("__main__")
        linecache.cache["<cell>"] = len(text), None, text.splitlines(True), "<cell>"
        exec(compile(text, "<cell>", "exec"), vars(module))
        digest_source.cache_clear()
        return digest_source(module)
    assert notebook("def f():\n    return 1\n") == notebook("def f():\n    return 1  # one\n")
    assert notebook("def f():\n    return 1\n") != notebook("def f():\n    return 2\n")
    assert notebook("x = 1\n") == {}
