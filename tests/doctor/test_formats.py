"""hvdscale-doctor for machines: what a report says is in its JSON and in its JUnit XML, and only asked checks run."""
import json
import sys
import math
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from hvdscale.doctor.examine import ORDER, in_this_process
from hvdscale.doctor.finding import Finding, Verdict
from hvdscale.doctor.formats import checks_of, render_for_machines
from hvdscale.doctor.probe_step import make_sample
from hvdscale.errors import UsageError
from hvdscale.training.prepare import prepare
from hvdscale.workers.group import SingleWorker

FAILED = Finding("gradient", Verdict.FAILED, "4 updates", "twice <the> mean", 1.0, 0.02, "a sum", "divide",
                 where="src/train.py:34")
FOUND = [FAILED, Finding("epochs", Verdict.WARNED, "2 epochs", "one order", cause="no set_epoch", where="train.py:9"),
         Finding("examples", Verdict.UNSEEN, "no loader"), Finding("schedule", Verdict.UNSEEN, "one update"),
         Finding("batch-norm", Verdict.NOT_APPLICABLE, "none in the model"),
         Finding("parameters", Verdict.PASSED, "4 tensors", by=0.0, limit=0.0)]
ABOUT = {"script": "train.py", "workers": 2, "notes": ("one", "two")}


def cases(findings, blind=()):
    suite = ElementTree.fromstring(render_for_machines("junit", ABOUT, findings, 1, blind)).find("testsuite")
    return suite, {case.get("name"): case for case in suite.iter("testcase")}


def test_json_has_verdicts_numbers_causes_places_and_the_exit_code():
    said = json.loads(render_for_machines("json", ABOUT, FOUND, 1))
    assert (said["exit_code"], said["workers"], said["notes"]) == (1, 2, ["one", "two"])
    assert said["checks"][0] == {
        "check": "gradient", "verdict": "failed", "looked_at": "4 updates", "differs": "twice <the> mean", "by": 1.0,
        "limit": 0.02, "cause": "a sum", "remedy": "divide", "where": "src/train.py:34"}
    assert [check["verdict"] for check in said["checks"]] == [
        "failed", "warned", "unseen", "unseen", "not applicable", "passed"]


@pytest.mark.parametrize("by", [math.inf, math.nan])
def test_json_has_null_for_a_number_that_json_lacks(by):
    [check] = json.loads(render_for_machines("json", {}, [replace(FAILED, by=by)], 1))["checks"]
    assert (check["by"], check["limit"]) == (None, 0.02)


def test_junit_has_failures_errors_skipped_tests_and_warnings_as_output():
    suite, case = cases(FOUND, blind=("examples",))
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["6", "1", "1", "2"]
    failure = case["gradient"].find("failure")
    assert (case["gradient"].get("file"), case["gradient"].get("line")) == ("src/train.py", "34")
    assert failure.get("message") == "twice <the> mean"
    assert failure.text.splitlines()[1:] == ["what differs: twice <the> mean", "where: src/train.py:34",
                                             "by how much: 1.0", "allowed: 0.02", "usual cause: a sum",
                                             "next move: divide"]
    assert [[part.tag for part in case[name]] for name in ("epochs", "examples", "schedule", "batch-norm", "parameters")
            ] == [["system-out"], ["error"], ["skipped"], ["skipped"], []]
    assert case["examples"].find("error").get("message") == "unseen: no loader"
    assert "one order" in case["epochs"].find("system-out").text
    assert [(one.get("name"), one.get("value")) for one in suite.iter("property")] == [
        ("script", "train.py"), ("workers", "2"), ("notes", "one"), ("notes", "two"), ("exit_code", "1")]


def test_junit_stays_xml_whatever_an_error_message_holds():
    _, case = cases([replace(FAILED, differs="\x1b[31m & \x00 \udc80")])
    assert case["gradient"].find("failure").get("message") == r"\x1b[31m & \x00 \udc80"


def test_asked_checks_come_in_the_order_of_the_report():
    assert checks_of("padding, gradients", ORDER) == ("gradients", "padding") and checks_of(None, ORDER) == ORDER


@pytest.mark.parametrize("text", ["gradient", "gradients,", "gradients,Losses", ""])
def test_an_unknown_check_is_an_error_that_lists_the_names(text, worded):
    with worded.error(UsageError):
        checks_of(text, ORDER)


def test_of_a_workload_only_the_asked_checks_are_run():
    begun, job = [], prepare("digits/fc", [dict(threads=1)], SingleWorker())
    found = in_this_process(make_sample(job, 46), SingleWorker(), begun.append, checks=("losses", "weight decay"))
    assert begun == [finding.check for finding in found] == ["losses", "weight decay"]


PRINTS = """
import os
from hvdscale.doctor.formats import stdout_alone
with stdout_alone("json") as out:
    print("by Python")
    os.write(1, b"by C\\n")
    print("{}", file=out)
print("later")
"""


def test_what_a_job_prints_is_not_among_what_machines_read(run):
    done = run(sys.executable, "-c", PRINTS)
    assert done.stdout == "{}\nlater\n" and sorted(done.stderr.splitlines()) == ["by C", "by Python"]
