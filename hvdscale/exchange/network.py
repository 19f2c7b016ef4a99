"""The network between nodes, from the output of benchmarks: nccl-tests and OSU's.

    network_of(["all_reduce.txt", "osu_allreduce.txt@4"])       @4: on four nodes, where the file does not say

The ring of analysis.step_time and messages of h + V / bandwidth are fitted to all times, by the least relative squares.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from ..analysis.step_time import RING
from ..errors import UsageError
from .files import file_bytes, number_of

LEAST, MOST = 1e-9, 1e18    # bytes, microseconds and MB/s beyond which none is one
NUMBER = r"\d+(?:\.\d*)?(?:e[+-]?\d+)?"
NCCL, ALLREDUCE, MESSAGE, ONE_WAY = "nccl-tests", "Allreduce Latency Test", "Latency Test", "Bandwidth Test"
TAKEN = ("all_reduce_perf of nccl-tests, and osu_allreduce, osu_latency and osu_bw of OSU's micro-benchmarks")
OSU = re.compile(r"#\s*OSU MPI\S* (.*?) v[\d.]+")
RANK = re.compile(r"#\s+Rank\s+\d+(?:\s+Group\s+(?P<group>\d+))?(?:\s+Pid\s+\d+)? on\s+(?P<host>\S+) device")


@dataclass(frozen=True)
class Network:
    """Seconds of a hop and bytes a second between nodes, and what was fitted."""

    latency: float
    bandwidth: float
    nodes: int              # of the largest allreduce; 2 of messages
    misses: float           # root mean square of fitted / measured - 1


def network_of(files: Sequence[str]) -> Network:
    """The network of these files; raises UsageError naming the file that says nothing of it, and LogError."""
    nodes, hops_of, volumes_of, sizes_of, seconds_of = zip(*map(_transfers_of, files))
    hops = np.repeat(hops_of, list(map(len, sizes_of)))
    volumes = np.concatenate([volume * sizes for volume, sizes in zip(volumes_of, sizes_of)])
    sizes, seconds = np.concatenate(sizes_of), np.concatenate(seconds_of)
    (latency, per_byte), _ = scipy.optimize.nnls(np.column_stack([hops, volumes]) / seconds[:, None],
                                                 np.ones(len(seconds)))
    ends = f"{' and '.join(files)}: sizes of {sizes.min():,.0f} to {sizes.max():,.0f} bytes"
    if not latency:
        raise UsageError(f"{ends} say nothing of the latency; measure from 8 bytes on (nccl-tests -b 8), or add "
                         "osu_latency's output")
    if not per_byte:
        raise UsageError(f"{ends} say nothing of the bandwidth; measure up to the size of the gradient, such as 1G "
                         "(-e 1G)")
    misses = (hops * latency + volumes * per_byte) / seconds - 1
    return Network(float(latency), float(1 / per_byte), max(nodes), float(np.sqrt(np.mean(misses ** 2))))


def _transfers_of(file: str) -> tuple[int, float, float, np.ndarray, np.ndarray]:
    """(nodes, links of a message, how often they have the whole of its bytes, bytes, seconds), the last two of each
    message of a file; raises UsageError where it has none, or is not of two nodes or more."""
    given = re.fullmatch(r"(?P<path>.*)@(?P<nodes>\d{1,9})", file, re.S | re.A)
    path, nodes = (given["path"], int(given["nodes"])) if given else (file, None)
    text = file_bytes(path, path, 64 << 20).decode("utf-8", "replace")
    if title := OSU.search(text):
        lines = OSU.split(text[title.end():])[0].splitlines()
        pairs = filter(None, (re.match(rf"\s*(\d+)\s+({NUMBER})(\s|$)", line, re.A) for line in lines))
        kind, rows = title[1], [(float(pair[1]), float(pair[2])) for pair in pairs]
    else:
        kind, (hosts, rows) = NCCL, _of_text(path, text)
        nodes = len(hosts) or nodes
    found = sorted((size, value) for size, value in rows if LEAST < size < MOST and LEAST < value < MOST)
    if len({size for size, _ in found}) < 2:
        raise UsageError(f"{path}: has no table of sizes and times; taken are {TAKEN}")
    sizes, values = np.array(found).T
    if kind == ONE_WAY:                         # MB/s of messages sent one upon the other
        return 2, 0.0, 1.0, sizes[-1:], sizes[-1:] / (1e6 * values[-1:])
    if kind == MESSAGE:
        return 2, 1.0, 1.0, sizes, values / 1e6
    if kind not in (NCCL, ALLREDUCE):
        raise UsageError(f"{path}: is of '{kind}'; taken are {TAKEN}")
    if not nodes:
        raise UsageError(f"{path}: does not say on how many nodes it ran; --network {path}@4: on four")
    if nodes < 2:
        raise UsageError(f"{path}: all ranks are on one node, so it says nothing of the network between nodes; run it "
                         "on two nodes or more")
    return nodes, RING.hops(nodes), RING.volumes(nodes), sizes, values / 1e6


def _of_text(path: str, text: str) -> tuple[set[str], list[tuple[float, float]]]:
    """(hosts, (bytes, microseconds)) of what nccl-tests printed."""
    ranks = [(found["group"], found["host"]) for found in map(RANK.match, text.splitlines()) if found]
    of_group = [host for group, host in ranks if group == ranks[0][0]]         # groups measure at the same time
    heading = next((line.lstrip("# ").split() for line in text.splitlines() if re.match(
        r"#\s+(size|bytes)\s+(count|N)\s", line)), [])
    if not {"algbw", "busbw"} <= {*heading}:
        return set(), []
    at, bus, rows = heading.index("algbw") - 1, heading.index("busbw"), []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) > max(at + 1, bus) and fields[0].isdecimal() and number_of(fields[at]):
            ranks, algorithm = len(of_group), number_of(fields[at + 1]) or 0.0
            ratio = (number_of(fields[bus]) or 0.0) / algorithm if algorithm >= 1 and ranks > 1 else None
            if ratio is not None and abs(ratio / (2 * (ranks - 1) / ranks) - 1) > 0.03:         # as rounded
                raise UsageError(f"{path}: is not of an allreduce: its bus bandwidth is {ratio:.2f} times the "
                                 f"algorithm's, on {ranks} ranks; taken are {TAKEN}")
            rows.append((float(fields[0]), number_of(fields[at])))
    if rows and "(us)" not in text:
        raise UsageError(f"{path}: does not say that its times are in microseconds; a newer nccl-tests does")
    return set(of_group), rows
