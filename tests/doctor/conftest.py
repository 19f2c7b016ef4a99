"""One process that examines the scripts of all tests, each once."""
import functools
import re

import pytest

from tests.factories import ddp_scripts, resume_scripts
from tests.factories.examinations import Doctor


@pytest.fixture(scope="session")
def doctor():
    with Doctor() as doctor:
        yield doctor


@pytest.fixture(scope="session")
def examined(doctor, tmp_path_factory):
    """Examine a script by its name or text; gives the exit code, both outputs and the verdicts by check."""
    @functools.cache
    def examined(script, *words, command="script"):
        made = ddp_scripts if command == "script" else resume_scripts
        text, folder = made.script(script) if "\n" not in script else script, tmp_path_factory.mktemp("script")
        (folder / "train.py").write_text(text)
        said = doctor.run(folder, "train.py", *words, command=command)
        assert (folder / "train.py").read_text() == text
        assert {path.name for path in folder.iterdir()} == {"train.py", ".out", ".err"}
        verdicts = dict(re.findall(r"^  (\S.{13})  (passed|warned|FAILED|unseen|-)", said.out, re.M))
        return said.code, said.out, said.err, {check.strip(): verdict for check, verdict in verdicts.items()}
    return examined
