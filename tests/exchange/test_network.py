"""The network between nodes is read back from the output of nccl-tests and OSU's benchmarks, or the file is named."""
import pytest

from hvdscale.errors import LogError, UsageError
from hvdscale.exchange.network import network_of
from tests.wording import answered

LATENCY, BANDWIDTH = 4e-6, 12.5e9
SIZES = tuple(8 * 4 ** power for power in range(14))            # 8 bytes to 512 MiB


def seconds(size, nodes):
    """A ring over so many nodes."""
    return 2 * (nodes - 1) * LATENCY + 2 * (nodes - 1) / nodes * size / BANDWIDTH


def nccl(nodes, per_node=1, bus=None, heading="time", unit="(us)", groups=1):
    """What all_reduce_perf prints."""
    ranks = nodes * per_node
    lines = ["# nccl-tests version 2.19.6", "# Using devices", *(
        f"#  Rank {rank:2} Group {rank % groups:2} Pid {rank + 9} on node{rank // per_node} device  0 [0000:01:00] GPU"
        for rank in range(ranks)),
        f"#     size      count     type   redop    root  {heading}   algbw   busbw #wrong  {heading} algbw busbw",
        f"#        (B)    (elements)                            {unit}  (GB/s)  (GB/s)"]
    for size in SIZES:
        took = seconds(size, nodes) or 1e-5
        algorithm = size / took / 1e9
        factor = 2 * (ranks - 1) / ranks if bus is None else bus
        lines.append(f"{size} {size // 4} float sum -1 {1e6 * took:.3f} {algorithm:.2f} {factor * algorithm:.2f} 0 "
                     f"9999 0.01 0.01 N/A")
    return "\n".join([*lines, "# Avg bus bandwidth    : 3.1 OK"])


def osu(title, values):
    return "\n".join(["mpirun -np 4 osu", "", f"# OSU MPI-CUDA {title} v7.5", "# Datatype: MPI_CHAR.",
                      "# Size       Avg Latency(us)  Min", *(f"{size}    {value:.4f}  1.0" for size, value in values)])


def written(folder, *texts):
    for at, text in enumerate(texts):
        (folder / f"{at}.txt").write_text(text)
    return [str(folder / f"{at}.txt") for at in range(len(texts))]


ALLREDUCE = osu("Allreduce Latency Test", [(size, 1e6 * seconds(size, 4)) for size in SIZES])
PING_PONG = osu("Latency Test", [(0, 1.0), *((size, 1e6 * (LATENCY + size / BANDWIDTH)) for size in SIZES)])
ONE_WAY = osu("Bandwidth Test", [(size, BANDWIDTH / 1e6) for size in SIZES])


@pytest.mark.parametrize("texts, nodes, of", [
    ([nccl(4)], "", 4), ([nccl(2), nccl(8)], "", 8), ([nccl(4, groups=1)], "", 4),
    ([ALLREDUCE], "@4", 4), ([PING_PONG], "", 2), ([PING_PONG, ONE_WAY], "", 2)])
def test_bandwidth_and_latency_are_those_of_the_ring(tmp_path, texts, nodes, of):
    found = network_of([path + nodes for path in written(tmp_path, *texts)])
    assert (found.latency, found.bandwidth) == (pytest.approx(LATENCY, rel=0.01), pytest.approx(BANDWIDTH, rel=0.01))
    assert found.nodes == of and found.misses < 0.01


def test_a_time_with_many_ranks_a_node_is_right_at_the_nodes_it_was_measured_on(tmp_path):
    found = network_of(written(tmp_path, nccl(4, per_node=8)))
    assert 6 * found.latency + 1.5 * 1e8 / found.bandwidth == pytest.approx(seconds(1e8, 4), rel=0.01)


def test_a_file_that_says_nothing_of_the_network_is_named(golden, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LogError, match="^0.txt: is missing"):
        network_of(["0.txt"])

    def said(text):
        (tmp_path / "0.txt").write_text(eval(text, globals()))
        with pytest.raises(UsageError, match="0.txt") as raised:
            network_of(["0.txt"])
        return str(raised.value)
    golden("network", answered("network", said))
