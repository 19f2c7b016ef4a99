"""How workers without torchrun and MPI find rank 0: by a file that only this user can have left."""
import os

import pytest

from hvdscale.errors import WorkersError
from hvdscale.workers.launch import Process
from hvdscale.workers.torch_distributed import _address_file, _pass_by_file

RANKS = [Process("mpirun", rank, 2, rank, 2, "mpirun:of this launch") for rank in range(2)]


@pytest.fixture
def shared(tmp_path, monkeypatch):
    monkeypatch.setenv("HVDSCALE_SHARED", str(tmp_path))
    return tmp_path


def test_rank_0_leaves_its_address_for_the_others(shared):
    _address_file(RANKS[0]).symlink_to(shared / "elsewhere")            # a link goes, and is not written through
    assert _pass_by_file(RANKS[0], "127.0.0.1:7", 1) == "127.0.0.1:7"
    assert _pass_by_file(RANKS[1], "", 1) == "127.0.0.1:7" and not (shared / "elsewhere").exists()


@pytest.mark.parametrize("planted, said", [("owned", "belongs to user "), ("link", "symbolic link")])
def test_an_address_that_another_user_may_have_left_is_an_error(shared, monkeypatch, planted, said):
    path = _address_file(RANKS[0])
    (path if planted == "owned" else shared / "theirs").write_text("192.0.2.1:7")
    if planted == "link":
        path.symlink_to(shared / "theirs")
    elif os.getuid() == 0:
        os.chown(path, 65534, 65534)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 65534)
    with pytest.raises(WorkersError, match=f"rank 1 of 2 .* {said}.*HVDSCALE_SHARED=FOLDER names another"):
        _pass_by_file(RANKS[1], "", 1)
