"""A process of a launch that is split into groups. It does as given.json says, and tells in rankN.json what it saw.

    mpirun -np 4 python -m tests.parallel.grouped FOLDER
"""
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

from hvdscale.errors import WorkerLostError
from hvdscale.sweep.groups import form_group, leave
from hvdscale.workers.launch import cores_of_launch, place
from tests.parallel.launched_job import until


class Member:
    """This process in its group, and the folder by which it knows of the others."""

    def __init__(self, folder, given):
        self.folder, self.process = folder, place()
        self.note(f"pid{self.process.rank}", os.getpid())
        cores = cores_of_launch(self.process)
        self.number = self.process.rank // given["workers_per_trial"]
        self.group = form_group(given["workers_per_trial"], given["stall_seconds"], cores)

    def note(self, name, value):
        (self.folder / f"{name}.new").write_text(json.dumps(value))
        (self.folder / f"{name}.new").rename(self.folder / name)

    def sum(self, name):
        """The sum over the group of 1, 10, 100, ... for ranks 0, 1, 2, ... of the launch."""
        return self.group.sum_(torch.tensor([10 ** self.process.rank]), name).item()

    def await_end(self, ranks):
        """Wait until the processes of these ranks of the launch are gone."""
        for rank in ranks:
            until((self.folder / f"pid{rank}").exists)
            pid = json.loads((self.folder / f"pid{rank}").read_text())
            until(lambda: not Path(f"/proc/{pid}").exists())


def apart(member):
    """Group 1 makes its sums and leaves; then group 0 makes its own, broken off by an error of one rank in between."""
    if member.number == 1:
        return {"sums": [member.sum(f"sum{n % 3}") for n in range(30)]}
    until((member.folder / "rank2.json").exists)
    sums = [member.sum("first")]
    member.await_end([2, 3])
    sums.append(member.sum("second"))
    fail(member)
    member.group.reform()
    return {"sums": sums + [member.sum("third")]}


def fail(member):
    """Rank 1 of the group leaves its work, and rank 0 waits for it."""
    if member.group.rank == 1:
        return member.group.abandon()
    try:
        member.sum("broken off")
    except WorkerLostError:
        return
    raise AssertionError("a sum without rank 1")


def lost(member):
    """Rank 1 of group 0 dies; group 1 goes on after group 0 is gone."""
    sums = [member.sum("first")]
    if member.process.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if member.number == 1:
        member.await_end(range(2))
    return {"sums": sums + [member.sum("second")]}


def alone(member):
    """Rank 0 is done at once, the others later."""
    time.sleep(0.5 if member.process.rank else 0)
    return {"loaded": sorted({"mpi4py", "horovod"} & sys.modules.keys()), "sums": [member.sum("own")]}


def main(folder):
    given = json.loads((folder / "given.json").read_text())
    member = Member(folder, given)
    group, process = member.group, member.process
    saw = {"number": member.number, "rank": group.rank, "size": group.size, "local_rank": group.local_rank,
           "local_size": group.local_size, "cores": sorted(group.cores()), "job": process.job,
           **globals()[given["act"]](member)}
    member.note(f"rank{process.rank}.json", saw)
    others = [rank for rank in range(process.size) if rank != process.rank]
    os._exit(leave(group, given["code"], lambda: member.await_end(others) or True))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
