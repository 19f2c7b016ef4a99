"""Four processes of one launch in groups of two and of one, each group as if it were alone."""
import json
import sys

import pytest

from tests.conftest import launcher_command

STALL = 4


@pytest.fixture
def grouped(run, tmp_path):
    """Do an act of tests.parallel.grouped on np processes; gives exit code, what each saw (None: nothing), stderr."""
    def grouped(act, workers_per_trial=2, code=0, launcher="mpirun", np=4, **environment):
        given = {"act": act, "workers_per_trial": workers_per_trial, "stall_seconds": STALL, "code": code}
        (tmp_path / "given.json").write_text(json.dumps(given))
        command = [*launcher_command(launcher, np), sys.executable, "-m", "tests.parallel.grouped", tmp_path]
        done = run(*command, check=False, **environment)
        told = [tmp_path / f"rank{rank}.json" for rank in range(np)]
        return done.returncode, [json.loads(path.read_text()) if path.exists() else None for path in told], done.stderr
    return grouped


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_groups_of_two_sum_separately_and_can_be_formed_again(grouped, launcher):
    code, saw, said = grouped("apart", launcher=launcher)
    assert code == 0, said
    assert [(rank["number"], rank["rank"], rank["size"]) for rank in saw] == [(n // 2, n % 2, 2) for n in range(4)]
    assert [(rank["local_rank"], rank["local_size"]) for rank in saw] == [(rank, 4) for rank in range(4)]
    assert [rank["sums"] for rank in saw] == [[11] * 3] * 2 + [[1100] * 30] * 2
    assert len({rank["job"] for rank in saw}) == 1


def test_a_lost_rank_ends_its_group_and_no_other_where_mpirun_lets_them_be(grouped):
    code, saw, said = grouped("lost", OMPI_MCA_orte_enable_recovery="1")
    assert (code, saw[:2]) == (0, [None, None]), said
    assert [rank["sums"] for rank in saw[2:]] == [[1100] * 2] * 2
    assert "rank 0 of 2 on" in said and f"has waited {STALL} s for the other workers in 'second'" in said


@pytest.mark.parametrize("launcher", ["mpirun", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_groups_of_one_need_no_mpi_and_the_first_exits_last(grouped, launcher):
    code, saw, said = grouped("alone", workers_per_trial=1, code=75, launcher=launcher, np=2)
    assert code == (75 if launcher == "mpirun" else 1), said
    assert [(rank["number"], rank["rank"], rank["size"]) for rank in saw] == [(rank, 0, 1) for rank in range(2)]
    assert [(rank["local_rank"], rank["local_size"]) for rank in saw] == [(rank, 2) for rank in range(2)]
    assert [(rank["loaded"], rank["sums"]) for rank in saw] == [([], [10 ** rank]) for rank in range(2)]
