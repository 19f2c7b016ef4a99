"""Digests of a module's source: its own file, and the files beside it that it imports, however deep.

Beside it are the files in the module's folder, or in the folder of its package; not what is installed, nor hvdscale. A
digest is of the syntax tree without docstrings: layout, comments, the folder's place and Python's version do not count.
"""

import ast
import hashlib
import linecache
import os
import sys
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

DIGITS = 12                                                     # of a digest
INSTALLED = {"site-packages", "dist-packages"}
NOT_BESIDE = (Path(__file__).parents[1], Path(sysconfig.get_paths()["stdlib"]))
WITHOUT_MEANING = {"ctx", "kind", "type_comment", "type_ignores"}        # fields of the tree


def digest_of(value: object) -> str:
    """A digest of plain values, the same in every process."""
    return hashlib.sha256(repr(value).encode("utf-8", "backslashreplace")).hexdigest()[:DIGITS]


@lru_cache(maxsize=8)
def digest_source(module: ModuleType) -> dict[str, str]:
    """The digest of each source file: {"job.py": "5f1d0c9a7be2", "models/net.py": "0c4e1a2b9d37"}; of a notebook, of
    the cells that define functions and classes. Empty where there is no source."""
    file = _source(getattr(module, "__file__", None))
    if file is None:
        cells = sorted({text for text in _cells(module) if text})
        return {"notebook": digest_of([_digest_text(text) for text in cells])} if cells else {}
    root = file.parents[module.__name__.count(".") + (file.name == "__init__.py")]
    own = module.__name__.partition(".")[0] if root.name in INSTALLED else None
    found: dict[str, str] = {}
    waiting, seen = list(_with_packages(module.__name__)), set()
    while waiting:
        name = waiting.pop()
        path = None if name in seen else _locate(name)[0]
        seen.add(name)
        parts = path.relative_to(root).parts if path and path.is_relative_to(root) else ()
        if (not parts or any(map(path.is_relative_to, NOT_BESIDE)) or INSTALLED.intersection(parts)
                or own not in (None, parts[0].removesuffix(".py"))):            # of what is installed, one package
            continue
        try:
            text = path.read_bytes()
        except OSError:
            continue
        found[path.relative_to(root).as_posix()] = _digest_text(text)
        waiting += _imported(text, name, path.name == "__init__.py")
    return dict(sorted(found.items()))


def _source(file: str | None) -> Path | None:
    """A module's source file; None for what is compiled, or was typed."""
    return Path(os.path.abspath(file)) if isinstance(file, str) and file.endswith(".py") else None


def _locate(name: str) -> tuple[Path | None, list[str] | None]:
    """A module's file and, of a package, its folders, without importing anything; None where there is none."""
    module = sys.modules.get(name)
    if module is not None:
        folders = getattr(module, "__path__", None)
        return _source(getattr(module, "__file__", None)), None if folders is None else list(folders)
    parent, _, last = name.rpartition(".")
    folders = (_locate(parent)[1] if parent else sys.path) or []
    spec = PathFinder.find_spec(last, [*map(os.path.abspath, folders)])
    if spec is None:
        return None, None
    return _source(spec.origin), spec.submodule_search_locations and [*spec.submodule_search_locations]


def _imported(text: bytes, name: str, is_package: bool) -> Iterator[str]:
    """The names of modules that a module may import, wherever it does, with the packages that they are in."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError):
        return
    package = name.split(".") if is_package else name.split(".")[:-1]
    for node in nodes:
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[:len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *filter(None, [node.module])])
            names = [f"{base}.{alias.name}".lstrip(".") for alias in node.names]
        elif isinstance(node, ast.Call) and node.args and getattr(node.func, "attr", getattr(node.func, "id", "")) in (
                "import_module", "__import__"):
            first = getattr(node.args[0], "value", None)
            names = [first] if isinstance(first, str) and not first.startswith(".") else []
        for full in names:
            yield from _with_packages(full)


def _with_packages(name: str) -> Iterator[str]:
    """a, a.b and a.b.c of a.b.c."""
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _cells(module: ModuleType) -> Iterator[str]:
    """The text of each cell that defines a function or class of a module without a file."""
    for value in list(vars(module).values()):
        if getattr(value, "__module__", None) == module.__name__:
            for part in (value, *(vars(value).values() if isinstance(value, type) else ())):
                code = getattr(part, "__code__", None)
                yield "".join(linecache.getlines(code.co_filename)) if code else ""


def _digest_text(text: bytes | str) -> str:
    try:
        return digest_of(_outline(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError):           # such as a cell with %magic
        return digest_of(text)


def _outline(node: object) -> object:
    """A syntax tree as plain values, without what has no meaning."""
    if isinstance(node, list):
        return [*map(_outline, node)]
    if not isinstance(node, ast.AST):
        return node
    fields = {name: value for name, value in ast.iter_fields(node) if name not in WITHOUT_MEANING}
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and (
            ast.get_docstring(node, clean=False) is not None):
        fields["body"] = node.body[1:]
    if isinstance(node, ast.JoinedStr):                         # Python 3.12 has empty parts in some
        fields["values"] = [part for part in node.values if getattr(part, "value", None) != ""]
    return (type(node).__name__,
            *((name, _outline(value)) for name, value in sorted(fields.items()) if value is not None and value != []))
