"""The JSON of reports and plans of small inputs of every kind, as tests/golden/json keeps it, numbers within 1 %.

A line has a finding, a row of a table or the like; trials, formulas, notes and captions are a digest alone. And the
text of the report of each schema version's golden log, as it was when that version was new.
"""
import json
import zlib

import numpy as np
import pytest

from hvdscale.report.pages import document_of_logs, make
from hvdscale.report.runs import read
from hvdscale.report.plan.make import make_plan
from hvdscale.report.subject import request_of, targets_of
from hvdscale.report.output import as_json
from tests.conftest import GOLDEN, ROOT
from tests.factories.kept_reports import PLANS, REPORTS, ranks_log, saved

LEFT_OUT = ("summary", "logs", "creator", "warnings", "draws")      # said elsewhere, of the machine, or long


def digest(value):
    """In letters, as digits are compared as numbers."""
    return f"{zlib.crc32(json.dumps(value).encode()):x}".translate(str.maketrans("0123456789", "ghijklmnop"))


def compact(value):
    if isinstance(value, list) and value and all(isinstance(one, dict) and {*one} == {"log", "trial"} for one in value):
        return f"{len(value)} trials {digest(value)}"
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.4g}")
    if isinstance(value, (list, tuple)):
        return [compact(one) for one in value]
    if not isinstance(value, dict):
        return value
    if {"key", "formula"} <= {*value}:
        return f"{value['key']} {digest(value)}"
    if "shown" in value:
        return [value["shown"], *(compact(one) for name, one in value.items() if name != "shown"
                                  and str(one) != value["shown"])]
    if "caption" in value:
        return f"{value['name']} {digest(value)}: {value['title']}"
    if isinstance(value.get("cells"), dict):
        return [*map(compact, value["cells"].values()), digest([*value.values()][1:])]
    return {name: digest(one) if name == "notes" else compact(one) for name, one in value.items()
            if name not in LEFT_OUT}


def depth(value):
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


def lines(value):
    """As JSON, a row of a table and a finding's values in a line each."""
    if depth(value) < 3:
        return json.dumps(value)
    if isinstance(value, list):
        return "[\n" + ",\n".join(map(lines, value)) + "]"
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {lines(one)}" for name, one in value.items()) + "}"


@pytest.fixture
def kept(golden):
    return lambda name, values: golden(f"json/{name}", lines(compact(values)) + "\n", within=0.01)


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_has_the_values_that_are_kept(name, kept):
    logs, targets, more = REPORTS[name]
    asked = request_of(**more)
    with np.errstate(over="ignore"):
        document = document_of_logs(logs(), targets_of(targets), asked=asked)
    kept(name, as_json(document))


def test_a_report_of_files_has_the_values_that_are_kept(tmp_path, kept, monkeypatch):
    ranks_log(tmp_path / "timed1.h5", {})
    ranks_log(tmp_path / "timed2.h5", dict(waiting=7, step=16), dict(waiting=5, step=16))
    for name, folder, path in (("timed", tmp_path, "."), ("mnist", ROOT / "tools/readme", "mnist.h5"),
                               ("v1", GOLDEN, "v1.h5")):
        monkeypatch.chdir(folder)               # paths are among the values
        with read(path) as runs:
            kept(name, runs.report().values())


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_has_the_values_that_are_kept(name, tmp_path, kept, monkeypatch):
    logs, request = PLANS[name]
    monkeypatch.chdir(saved(logs(), tmp_path / "logs"))
    make_plan(["."], (), request, out=tmp_path, formats=("json",), echo=lambda text: None)
    kept(name, json.loads((tmp_path / "plan.json").read_text()))


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.h5")))
def test_the_report_of_a_golden_log_is_as_expected(name, golden, monkeypatch):
    monkeypatch.chdir(GOLDEN)
    said = []
    make([f"{name}.h5"], whole=True, echo=said.append)
    golden(f"{name}.report", "\n".join(said))
