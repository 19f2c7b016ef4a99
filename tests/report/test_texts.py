"""The templates of what a report says: how values are written in them, and that every one is used."""
import ast
import re

import pytest

from hvdscale.analysis.intervals import Estimate
from hvdscale.report import texts
from hvdscale.formatting import numbers
from hvdscale.formatting.numbers import fill
from hvdscale.report.texts import Texts
from tests.project.test_rooms import PACKAGE

SUBJECTS = sorted(path.stem for path in (PACKAGE / "report/texts").glob("*.toml"))
SPEEDUP = Estimate(1.5, 1.25, 2.0, 3)


@pytest.mark.parametrize("template, text", [
    ("batch {batch}", "batch 1,024"), ("{share:percent}", "25%"), ("{speedup}", "1.50 (1.25-2.00)"),
    ("{speedup:ratio value}x{speedup:ratio ends}", "1.50x (1.25-2.00)"), ("{batch:n trial}", "1,024 trials"),
    ("{all}", "1, 2 and 4"), ("{all:or}", "1, 2 or 4"), ("{all:batch/batches}", "batches"), ("{name:capital}", "Weak"),
    ("a[ b {none}]c", "ac"), ("a[ b {no?}]c", "ac"), ("a[ {yes?}b]c", "a bc"), ("[{none}|{batch}]", "1,024"),
    ("[{yes?}a[ b {none}| d]]", "a d"), ("{brackets}", "[{a}]")])
def test_a_value_is_written_as_its_template_asks(template, text):
    values = {"batch": 1024, "share": 0.25, "speedup": SPEEDUP, "all": (1, 2, 4), "name": "weak", "none": None,
              "no": False, "yes": True, "brackets": "[{a}]"}
    assert fill(template, values) == text


def without_options(template):
    """A template without its parts in brackets."""
    while numbers.OPTIONAL.search(template):
        template = numbers.OPTIONAL.sub("", template)
    return template


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_text_is_used_and_its_brackets_are_closed(subject):
    code = "".join(path.read_text() for path in (PACKAGE / "report").rglob("*.py"))
    for section, found in Texts(subject).sections.items():
        for kind, text in found.items():
            parts = text.values() if isinstance(text, dict) else [text] if isinstance(text, str) else text
            for part in parts:
                left = numbers.FIELD.sub("", without_options(part))
                assert not re.search(r"[][{}]", left), f"{subject}: {kind}: {left}"
            begins = re.split("[_-]", kind)[0]
            used = f'"{kind}"' in code or re.search(f'f"{begins}[_-]{{', code)
            assert used, f"{subject}: {section}.{kind} is used nowhere"


def calls_of_texts():
    """(file:line, subject, method, kind, names of the values) of every call of a text by its kind alone."""
    trees = {path: ast.parse(path.read_text()) for path in (PACKAGE / "report").rglob("*.py")}
    subjects = {node.targets[0].id: node.value.args[0].value for tree in trees.values() for node in ast.walk(tree)
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
                and getattr(node.value.func, "id", "") == "Texts"}
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args
                    and getattr(node.func.value, "id", "") in subjects and isinstance(node.args[0], ast.Constant)):
                yield (f"{path}:{node.lineno}", subjects[node.func.value.id], node.func.attr, node.args[0].value,
                       {keyword.arg for keyword in node.keywords})


def test_every_text_is_given_the_values_that_it_names():
    sections = {**dict.fromkeys(("say", "say_if", "find"), ("finding", "warning", "note")), "figure": ("figure",)}
    found = [call for call in calls_of_texts() if call[2] in sections]
    assert len(found) > 200
    for place, subject, method, kind, given in found:
        text = next(section[kind] for name in sections[method]
                    for section in [Texts(subject).sections.get(name, {})] if kind in section)
        parts = text.values() if isinstance(text, dict) else [text]
        named = {name for part in parts for name, *_ in numbers.FIELD.findall(without_options(part))}
        assert None in given or given >= named - set(texts.SOURCES), f"{place}: {kind}: {named - given}"
