"""The templates of what a report says: how values are written in them, and that every one is used."""
import re

import pytest

from hvdscale.analysis.intervals import Estimate
from hvdscale.report import texts
from hvdscale.report.texts import Texts, fill
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


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_text_is_used_and_its_brackets_are_closed(subject):
    code = "".join(path.read_text() for path in (PACKAGE / "report").rglob("*.py"))
    for section, found in Texts(subject).sections.items():
        for kind, text in found.items():
            parts = text.values() if isinstance(text, dict) else [text] if isinstance(text, str) else text
            for part in parts:
                while texts.OPTIONAL.search(part):
                    part = texts.OPTIONAL.sub("", part)
                assert not re.search(r"[][{}]", texts.FIELD.sub("", part)), f"{subject}: {kind}: {part}"
            begins = re.split("[_-]", kind)[0]
            used = f'"{kind}"' in code or re.search(f'f"{begins}[_-]{{', code)
            assert used, f"{subject}: {section}.{kind} is used nowhere"
