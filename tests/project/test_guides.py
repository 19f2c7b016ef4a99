"""README.rst and the guides: they are valid, their links lead somewhere, and what they list is what there is."""
import re
from importlib import import_module

import pytest

from hvdscale.log.schema import KNOWN
from tests import guides
from tests.conftest import ROOT

LINKED = (*guides.PATHS, "tools/port/README.rst", "tools/examples/README.rst", "tools/CHANGELOG.rst")
TIME = r"\d+ (s|min|h)\b|minutes \("


@pytest.mark.parametrize("path", LINKED)
def test_a_document_is_valid_restructured_text(path):
    docutils = pytest.importorskip("docutils.core")
    from docutils.writers import get_writer_class
    shown = docutils.publish_string(guides.read(path), writer=get_writer_class("html")(), settings_overrides={
        "report_level": 2, "halt_level": 2, "embed_stylesheet": False, "syntax_highlight": "none"})
    assert b"<h1" in shown


@pytest.mark.parametrize("path", LINKED)
def test_links_and_pictures_lead_to_files_that_are_there(path):
    text = guides.read(path)
    targets = re.findall(r"<([^<>\s]+)>`_", text) + re.findall(r"\.\. image:: (\S+)", text)
    lost = [to for to in targets if "://" not in to and not ((ROOT / path).parent / to).exists()]
    assert not lost


def test_the_readme_leads_to_every_guide_and_is_short():
    text = guides.read("README.rst")
    linked = set(re.findall(r"<([^<>\s]+\.rst)>`_", text))
    assert linked >= set(LINKED) - {"README.rst"}
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "hvdscale").rglob("*.rst")} < linked
    assert len(text.splitlines()) <= 190 and re.search(r"\.\. image:: ", text)


@pytest.mark.parametrize("path", LINKED)
def test_every_command_says_how_long_it_takes(path):
    assert not [each.command for each in guides.typed(path)
                if not re.match(TIME, each.time) and not each.command.startswith("export ")]


def options_of(name, *words):
    """The options that hvdscale-NAME has before these words."""
    module = {("compare",): "compare"}.get(words[:1], name)
    module = f"{name}_script" if words[:1] in (("script",), ("resume",)) else module
    module = import_module(f"hvdscale.cli.{module}")
    command = getattr(module, words[0] if module.__name__.endswith("_script") else "command", None) or module.main
    command = words and hasattr(command, "get_command") and command.get_command(None, words[0]) or command
    return {option for each in command.params for option in (*each.opts, *each.secondary_opts, "--help")}


@pytest.mark.parametrize("path", LINKED)
def test_every_option_of_a_command_is_one_that_it_has(path):
    """tests/parallel/test_readme.py runs the commands, those that take long by -m slow."""
    for command in [*(each.command for each in guides.typed(path)), *guides.named(path)]:
        for name, words in re.findall(r"\bhvdscale-(\w+)((?: [^|;&>]+)?)", command):
            words = words.partition(" -- ")[0].split()
            assert {word for word in words if word.startswith("--")} <= options_of(name, *words), command


@pytest.mark.parametrize("path", ["README.rst", "hvdscale/workloads/README.rst"])
def test_the_example_of_an_own_job_is_short(path):
    assert len(guides.block(path, "python").splitlines()) <= 40


def test_the_guide_to_the_log_lists_the_columns_of_the_schema():
    sections = re.split(r"^``/(\w+)``\n~+\n", guides.read("hvdscale/log/README.rst"), flags=re.M)[1:]
    listed = {table: re.findall(r"^``([^`]+)`` +(int|float|text|status) (?: *(\w+))?  +(.+(?:\n {30,}.+)*)", text, re.M)
              for table, text in zip(sections[::2], sections[1::2])}
    assert set(listed) == set(KNOWN)
    for table, columns in KNOWN.items():
        found = {name: (kind, unit or "1", " ".join(meaning.split())) for name, kind, unit, meaning in listed[table]
                 if "<" not in name}
        assert found == {name: (column.type, column.unit, column.meaning) for name, column in columns.items()}
