"""hvdscale-doctor script on pairs of scripts: the fault is seen, and its right twin raises no alarm."""
import re

import pytest

from tests.doctor import pairs

pytestmark = pytest.mark.slow
CHECK = re.compile(r"^  (\S.{13})  (passed|warned|FAILED|unseen|-)", re.M)


@pytest.fixture
def verdicts(doctor, tmp_path):
    """The exit code, the verdict of each check, and what was printed, in one line."""
    def examine(name, faulty):
        workers = pairs.workers_of(name)
        (tmp_path / "train.py").write_text(pairs.text(name, faulty))
        said = doctor.run(tmp_path, "train.py", "--batch", str(8 * workers), "--workers", str(workers), "--", "--batch",
                          "{local}")
        found = {check.strip(): verdict.lower() for check, verdict in CHECK.findall(said.out)}
        return said.code, found, " ".join((said.out + said.err).split())
    return examine


@pytest.mark.parametrize("name", pairs.PAIRS)
def test_the_fault_of_a_pair_is_seen(verdicts, name):
    expected, words, _ = pairs.PAIRS[name]
    code, found, said = verdicts(name, True)
    check = next(one for one in found if expected.startswith(one))
    assert found[check] in expected.removeprefix(check).split() and words in said, said


@pytest.mark.parametrize("name", [*pairs.PAIRS, *pairs.RIGHT])
def test_the_right_twin_of_a_pair_raises_no_alarm(verdicts, name):
    code, found, said = verdicts(name, False)
    assert code == (4 if name.startswith("zero_") else 0) and not {"failed", "warned"} & {*found.values()}, said
