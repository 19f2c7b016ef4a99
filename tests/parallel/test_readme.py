"""Every command of README.rst runs, in its order, as it is written."""
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, SHARED_DATA, command_environment, launcher_command

README = (ROOT / "README.rst").read_text()
# commands that need more than a folder to run in, and the test that runs each
ELSEWHERE = {
    "tools/quickstart": "test_the_quickstart_ends_with_a_report",
    ".venv/bin/hvdscale-report runs/quickstart": "test_the_quickstart_ends_with_a_report",
    "pip install .": "tests/single/test_base_install.py",
}
SBATCH = "sbatch "          # tests/parallel/test_slurm.py


def commands():
    return re.findall(r"^    \$ (.*)$", README, re.M)


def own_job():
    """The README's job.py: its Python block, without the indentation."""
    block = re.search(r"\.\. code-block:: python\n\n((?:    .*\n|\n)+)", README).group(1)
    return re.sub(r"^    ", "", block, flags=re.M)


def bash(command, folder):
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, timeout=300,
                          stdin=subprocess.DEVNULL, env=command_environment())
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_command_but_those_of_other_tests_runs_as_written(tmp_path):
    launcher_command("horovodrun", 1)
    (tmp_path / "job.py").write_text(own_job())
    (tmp_path / "tools").symlink_to(ROOT / "tools")
    if SHARED_DATA.is_dir():
        (tmp_path / "mnist").symlink_to(SHARED_DATA / "mnist")
    ran = 0
    for command in commands():
        if command in ELSEWHERE or command.startswith((SBATCH, "export PATH")):
            continue
        if "mnist/simple_cnn" in command and not SHARED_DATA.is_dir():
            continue
        bash(command, tmp_path)
        ran += 1
    assert ran >= 10


def test_the_quickstart_ends_with_a_report():
    if Path(sys.prefix) != ROOT / ".venv":
        pytest.skip("needs the environment of tools/test")
    before = set((ROOT / "runs").glob("quickstart*"))
    printed = bash("tools/quickstart", ROOT)
    (made,) = set((ROOT / "runs").glob("quickstart*")) - before
    try:
        assert (made / "report" / "report.html").is_file()
        assert str(made / "report" / "report.html") in printed
        assert "By worker count" in bash(f".venv/bin/hvdscale-report {made}", ROOT)
    finally:
        shutil.rmtree(made)


def test_the_example_of_an_own_job_is_short_and_the_pictures_exist():
    assert len(own_job().splitlines()) <= 40
    pictures = re.findall(r"\.\. image:: (\S+)", README)
    assert pictures and all((ROOT / picture).is_file() for picture in pictures)


def test_the_readme_is_valid_restructured_text(tmp_path):
    docutils = pytest.importorskip("docutils.core")
    shown = docutils.publish_string(README, writer_name="html", settings_overrides={
        "report_level": 2, "halt_level": 2, "embed_stylesheet": False, "syntax_highlight": "none"})
    assert b"hvdscale" in shown


def test_the_table_is_what_the_report_prints_of_the_log_beside():
    table = re.search(r"^ +steps to  seconds to.*?\n\n", README, re.M | re.S).group().rstrip().splitlines()
    printed = bash("hvdscale-report tools/readme/mnist.h5", ROOT).splitlines()
    start = printed.index(table[0].removeprefix("    "))
    assert [line.removeprefix("    ") for line in table] == printed[start:start + len(table)]
