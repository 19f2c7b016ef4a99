"""The report of each schema version's golden log, as it was when that version was new.

To write the expected text anew after a change of wording: python -m tests.report.test_golden
"""
import glob
import os

import pytest

from hvdscale.report.make import make

GOLDEN = os.path.join(os.path.dirname(__file__), os.pardir, "golden")
LOGS = sorted(os.path.basename(path) for path in glob.glob(os.path.join(GOLDEN, "*.h5")))


def report_of(name):
    """The text of the report, with the log named by its path from tests/golden."""
    said, before = [], os.getcwd()
    os.chdir(GOLDEN)
    try:
        make([name], echo=said.append)
    finally:
        os.chdir(before)
    return "\n".join(said)


def expected_path(name):
    return os.path.join(GOLDEN, name.replace(".h5", ".report.txt"))


@pytest.mark.parametrize("name", LOGS)
def test_the_report_of_a_golden_log_is_as_expected(name):
    with open(expected_path(name), encoding="utf-8") as file:
        assert report_of(name) == file.read()


if __name__ == "__main__":
    for log in LOGS:
        with open(expected_path(log), "w", encoding="utf-8") as file:
            file.write(report_of(log))
