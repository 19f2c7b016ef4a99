"""Whether every rank has the same job (data, model, gradient, metrics) and, if not, what the difference depends on.

A single worker compares processes that simulate other ranks: the job as these see it, loaded in the background while
other checks run. No check can run collectives of the job's own code, as it calls the job on one rank at a time.

This module is also their main program; its argument is a rank, the number of ranks and a job as it was typed, and it
prints its digest, both as JSON. Environment, Horovod, torch and host name answer as under a launcher, but for a group.
"""

import contextlib
import json
import os
import platform
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives, distributed_c10d

from ..data.splits import tensors_of
from ..errors import CommunicationError, HvdscaleError, WorkersError
from ..plan.shards import Visits
from ..system.cores import describe_load
from ..system.forked import ending_with_this_process
from ..system.run_module import module_command
from ..training.evaluate import Evaluator
from ..watch import collectives
from ..watch.lines import OURS, TORCH, relative
from ..watch.patches import Patches
from ..watch.runner import end
from ..workers.group import SingleWorker
from ..workers.launch import without_launcher
from .checks import random_numbers
from .finding import JOB, Finding, Verdict
from .probe_step import Sample, distance, make_sample, mean_gradient
from .script.listen import tensors

NAME, WHOLE = "ranks", "the job, loaded and built,"
DIGESTED = 8                # examples of a split whose values and metrics the ranks compare
NUMBERS = 1000              # of a gradient, at most
MODULE = "hvdscale.doctor.ranks"
PATIENCE = 60.0             # seconds that a child may take once it is asked for its digest
# variables in which launchers, and programs made for them, give a process its rank and the number of processes
RANKS = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "PMI_RANK",
         "RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID")
SIZES = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE", "PMI_SIZE",
         "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS")
MEETING = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}      # of torch.distributed
OF_TORCH = (*collectives.COMBINE, "broadcast", "broadcast_object_list", "scatter", "barrier", "recv", "irecv",
            "all_gather_tensor", "reduce_scatter_tensor", "all_to_all_single")
OF_HOROVOD = (*collectives.OF_HOROVOD, "broadcast", "broadcast_", "broadcast_async", "broadcast_async_",
              "broadcast_object", "barrier")
TRANSPORTS = (os.path.join(TORCH, "distributed", ""), f"{os.sep}horovod{os.sep}", __file__)    # not the job's own
CANNOT = ("the doctor calls it on one rank at a time, so the others would never answer; for how to write and test it, "
          "see 'Losses over the global batch' in the guide to workloads")


class Entry(NamedTuple):
    """One thing that must be the same on all ranks: its part of the job, and a hash, numbers or an error."""

    part: str
    value: str | list[float]
    error: str = ""


def digest(sample: Sample) -> dict[str, Entry]:
    """Fingerprints of what must not depend on the rank, by name."""
    job, found = sample.job, {}
    for name in ("train", "val", "test"):
        found[f"the number of {name} examples"] = Entry("load", str(len(getattr(job.data, name))))
    for name, values in job.model.state_dict().items():
        found[f"the model's {name}, as built,"] = Entry("build", tensors.digest([values]))
    for name in ("train", "val"):
        data = getattr(job.data, name)
        for index in range(min(len(data), DIGESTED)):
            visits = Visits(np.array([index]), np.zeros(1, np.int64), job.plan.seed)
            found[f"example {index} of {name}"] = _try(
                "read", lambda: tensors.digest([values for _, values in tensors_of(data.take(visits))]))
    what = f"the gradient of the loss of the same {sample.plan.global_batch} examples under the same seed"
    found[what] = _try("loss", lambda: _some_of(mean_gradient(sample, sample.model())))
    splits = {at: one.first(min(len(one), DIGESTED)) for at, one in job.data.evaluated(DIGESTED).items() if len(one)}
    measured = _try("measure", lambda: Evaluator(job.workload, splits, DIGESTED, SingleWorker(), job.device,
                                                 sample.plan.precision)(sample.model(), tuple(splits)))
    for column in (f"{split}/{metric}" for split in splits for metric in job.workload.metrics):
        found[f"{column} of the same examples by the same model"] = measured if measured.error else Entry(
            "measure", [measured.value[column]])
    return found


def _try(part: str, compute: Callable) -> Entry:
    try:
        return Entry(part, compute())
    except WorkersError:
        raise
    except (Exception, SystemExit) as error:
        return Entry(part, "", f"{type(error).__name__}: {error}")


def _some_of(gradient: torch.Tensor) -> list[float]:
    """The gradient's norm and some of its numbers; an exact hash would depend on the kind of processor."""
    return [gradient.norm().item(), *gradient[::len(gradient) // NUMBERS + 1].tolist()]


def broken(error: str) -> dict[str, Entry]:
    """The digest of a job that a rank cannot load or build."""
    return {WHOLE: Entry("load", "", error)}


def same_on_ranks(sample: Sample, by_rank: Sequence[dict[str, Entry]], seen: str,
                  alone: Mapping[str, Entry] | None = None) -> Finding:
    """Whether all ranks' digests equal rank 0's, and that of one worker, ``alone``; ``seen``: what was compared."""
    if all(WHOLE in found for found in by_rank):
        return JOB.finding(NAME, "unchecked", error=by_rank[0][WHOLE].error)
    known = {what: entry for what, entry in (alone or {}).items() if what in by_rank[0] and not by_rank[0][what].error}
    compared = [("apart", "rank", by_rank[0], found, rank) for rank, found in enumerate(by_rank)]
    compared.append(("apart_from_one", "workers", known, {what: by_rank[0][what] for what in known}, 0))
    for kind, cause, one, other, rank in compared:
        for what in differing(one, other, sample.limit):
            entries = [found[what] for found in (one, other) if what in found]
            error = next((f": {entry.error}" for entry in entries if entry.error), "")
            return JOB.finding(NAME, kind, what=what, error=error, seen=seen, rank=rank,
                               **explain(sample, entries[0].part, cause))
    return JOB.finding(NAME, "same", seen=seen)


def differing(digest: dict[str, Entry], other: dict[str, Entry], limit: float) -> Iterator[str]:
    """The names of entries that differ: numbers by more than the relative limit; two errors count as equal."""
    for what in sorted({**digest, **other}, key=lambda what: what != WHOLE):
        a, b = digest.get(what), other.get(what)
        if not (a and b and bool(a.error) == bool(b.error) and (a.error or _same(a.value, b.value, limit))):
            yield what


def _same(value: str | list[float], other: str | list[float], limit: float) -> bool:
    if isinstance(value, str) or len(value) != len(other):
        return value == other
    return np.array_equal(value, other, equal_nan=True) or distance(
        torch.tensor(other, dtype=torch.float64), torch.tensor(value, dtype=torch.float64)) <= limit


def explain(sample: Sample, part: str, cause: str) -> dict[str, str]:
    """Values of the finding that an entry of that part of the job differs: its cause and the next move."""
    for check, found in (("random numbers", random_numbers(sample) if part == "loss" else None),
                         ("examples", sample.data if part == "read" else None)):
        if found and found.verdict == Verdict.FAILED:
            return {"why": found.cause, "next": f"see the check {check!r} first"}
    return {"cause": cause, "next": JOB.sentence("next for ranks", part)}


@contextlib.contextmanager
def simulated(name: str, layers: list[dict], wanted: int) -> Iterator[list[subprocess.Popen]]:
    """Processes that simulate both ranks of two, for the job as the user typed it and a step of ``wanted`` examples;
    ended if they are running in the end."""
    started = [subprocess.Popen(
        module_command(MODULE, json.dumps([rank, 2, name, layers, wanted])), stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment(rank, 2), start_new_session=True,
        preexec_fn=ending_with_this_process(signal.SIGTERM)) for rank in (0, 1)]
    try:
        yield started
    finally:
        end(started, signal.SIGKILL, 0.0)
        for child in started:
            child.stdout.close()


def same_when_played(played: list[subprocess.Popen], sample: Sample, mine: dict[str, Entry]) -> Finding:
    """Whether two ranks that are played agree, and agree with this process, a single worker."""
    ranks, seen = [*map(_digest_of, played)], JOB.sentence("ranks compared", "played")
    if None in ranks:
        return JOB.finding(NAME, "late", seconds=PATIENCE, load=describe_load() or None)
    return same_on_ranks(sample, ranks, seen, alone=mine)


def _digest_of(child: subprocess.Popen) -> dict[str, Entry] | None:
    """What it found of the job; None where that takes too long."""
    last = "no output"
    try:
        last = (child.communicate(timeout=PATIENCE)[0].strip().splitlines() or [last])[-1]
        return {what: Entry(*entry) for what, entry in json.loads(last).items()}
    except subprocess.TimeoutExpired:
        return None
    except (ValueError, AttributeError, TypeError):
        return broken(last)


@contextlib.contextmanager
def refusing_collectives() -> Iterator[None]:
    """Have a collective that the job calls raise a CommunicationError, which names it and the job's function."""
    patches = Patches()

    def follow(module, names: tuple[str, ...] = OF_HOROVOD) -> None:
        for name in filter(vars(module).__contains__, names):
            patches.replace(module, name, _refusing)
    try:
        for owner in (dist, distributed_c10d, _functional_collectives):
            follow(owner, OF_TORCH)
        patches.when_imported("horovod.torch", follow)
        yield
    finally:
        patches.undo()


def _refusing(original):
    def communicate(*args: Any, **options: Any) -> Any:
        frame = sys._getframe(1)
        while frame.f_back and any(room in frame.f_code.co_filename for room in TRANSPORTS):
            frame = frame.f_back
        if frame.f_code.co_filename.startswith(OURS):
            return original(*args, **options)
        raise CommunicationError(f"{relative(frame.f_code.co_filename)}:{frame.f_lineno}: "
                                 f"{frame.f_code.co_qualname} calls {original.__name__}; {CANNOT}")
    return communicate


@refusing_collectives()
def _digest(rank: int, size: int, name: str, layers: list[dict], wanted: int) -> dict[str, Entry]:
    play(rank, size)                        # before the job's modules are imported
    from ..training.prepare import prepare
    from ..update.model import make_model
    try:
        job = prepare(name, layers, SingleWorker())
        if rank:                            # only after load, which may find its files by the host name
            on_host(f"{socket.gethostname()}-{rank}")
            if not job.settings.init_from:
                job = replace(job, model=make_model(job.workload, job.plan, job.device))
        return digest(make_sample(job, wanted))
    except HvdscaleError as error:
        return broken(str(error))


def environment(rank: int, size: int) -> dict[str, str]:
    """The environment of a process that a launcher started with this rank and size."""
    return {**MEETING, **without_launcher(), **dict.fromkeys(RANKS, str(rank)), **dict.fromkeys(SIZES, str(size))}


def play(rank: int, size: int) -> None:
    """Make Horovod and torch.distributed report this rank and size, before the job's code is imported. As in a run,
    Horovod is already initialized if there are several workers, and torch.distributed once the job asks."""
    ranks = {"rank": rank, "local_rank": rank, "cross_rank": 0, "size": size, "local_size": size, "cross_size": 1}
    with contextlib.suppress(ImportError):
        from horovod.common.basics import HorovodBasics
        for name, value in {**ranks, "is_initialized": size > 1, "init": None, "shutdown": None}.items():
            setattr(HorovodBasics, name, _answer(value))
    begun = []
    for name, value in {"get_rank": rank, "get_world_size": size, "get_node_local_rank": rank}.items():
        setattr(torch.distributed, name, _answer(value))
    torch.distributed.init_process_group = lambda *_, **__: begun.append(True)
    torch.distributed.is_initialized = lambda: bool(begun)


def on_host(name: str) -> None:
    system = os.uname()
    os.uname = _answer(os.uname_result((system.sysname, name, *system[2:])))
    socket.gethostname = platform.node = _answer(name)


def _answer(value):
    return lambda *_, **__: value


if __name__ == "__main__":
    print(json.dumps(_digest(*json.loads(sys.argv[1]))))
