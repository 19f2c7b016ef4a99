"""What a report says of steps that every rank timed."""
import re

import pytest
from click.testing import CliRunner

from hvdscale.cli.report import main
from hvdscale.log.merge import merge
from hvdscale.log.schema import RANK_PARTS
from hvdscale.scaling.runs import write_log

FAST = dict(data=0.5, forward=2, backward=4, waiting=1, optimizer=1)            # ms; 1.5 are spent elsewhere
STEP = 10


def record(rank, workers, without_core=0.02, profile=None, **parts):
    """What a rank of a timed run leaves: ten equal updates of 8 examples."""
    times = {"step": STEP, **FAST, **parts}
    updates = {name: [times[name] / 1000] * 10 for name in RANK_PARTS}
    return {"rank": rank, "workers": workers, "optimizer": "sgd", "rate": 0.1, "torch": "2", "device": "cpu",
            "memory": 1, "parameters": 10, "watts": None, "without_core": without_core, "remarks": [],
            "profile": profile,
            "updates": {**updates, "examples": [8] * 10, "tokens": [0] * 10, "batches": [1] * 10,
                        "passes": [1] * 10, "apart": [True] + [False] * 9}}


@pytest.fixture
def report(tmp_path):
    """What the report says, unwrapped, of one worker and of ranks with these parts, and the files that it writes."""
    def report(*ranks, **alone):
        for records in ([record(0, 1, **alone)], [record(at, len(ranks), **each) for at, each in enumerate(ranks)]):
            write_log(str(tmp_path / f"w{len(records)}.h5"), "train.py", records, None,
                      {"local_workers": len(records), "untimed_passes": 10}, {}, [])
        done = CliRunner().invoke(main, [str(tmp_path), "--out", str(tmp_path / "report"), "--figures", "all"])
        assert done.exit_code == 0, done.output
        return " ".join(done.output.split()), sorted(path.name for path in (tmp_path / "report").rglob("*.svg"))
    return report


def test_the_parts_that_grew_are_named_and_the_first_of_the_warm_up_is_left_out(report):
    said, figures = report(dict(step=16, waiting=7), dict(step=16, waiting=5, backward=6))
    assert "A step takes 6.00 ms more at 2 workers than at 1: waiting +5.00, backward +1.00" in said
    assert "Of the waiting at 2 workers, at most 5.00 ms a step is transfer; ranks arrive 2.00 ms apart." in said
    assert re.search(r" 2 16 1\* 9 ", said)                    # workers, batch, runs, steps
    assert any("step-time-by-rank" in name for name in figures)


@pytest.mark.parametrize("slow, says", [
    (dict(forward=6), "Rank 1 is slow at 2 workers: 11.0 ms of computing a step, the others 7.00; they wait for it."),
    (dict(step=14), "Rank 1 alone spends 5.50 ms a step outside of data, passes and optimizer at 2 workers, the other"),
    (dict(data=4), "Rank 1 waits longer for data at 2 workers: 4.00 ms a step, the others 0.500.")])
def test_a_rank_that_the_others_wait_for_is_named(report, slow, says):
    said, _ = report({}, slow)
    assert says in said


def test_on_a_busy_host_speeds_and_causes_are_marked(report):
    said, _ = report({}, dict(forward=6, without_core=0.31))
    assert "1 to 2# workers:" in said and "Rank 1 is slow at 2 workers#:" in said and " 2# 16 " in said
    assert "# the host was busy with other processes: at 2 workers a rank waited for a core for 31% of its" in said


def test_what_a_trace_says_of_rank_0_is_said(report):
    told = {"operators": [["aten::mm", 0.003], ["aten::mul", 0.0015]], "communication": 0.002, "exposed": 0.0005}
    said, _ = report(dict(profile=told), dict(profile={**told, "operators": []}), profile=told)
    assert "Traced at 1 worker, rank 0 took longest in aten::mm (3.00 ms) and aten::mul (1.50 ms) a step." in said
    assert "aten::mul (1.50 ms) a step; 0.500 of 2.00 ms of communication had no computing beside them." in said


def test_a_merged_log_says_what_its_logs_say(report, tmp_path):
    said, _ = report(dict(step=16, waiting=7), dict(step=16, waiting=5, backward=6))
    merge([str(tmp_path / "w1.h5"), str(tmp_path / "w2.h5")], str(tmp_path / "both.h5"))
    done = " ".join(CliRunner().invoke(main, [str(tmp_path / "both.h5")]).output.split())
    assert "A step takes 6.00 ms more at 2 workers than at 1" in done and done[:done.index("more tables")] in said


def test_a_loader_that_does_not_keep_up_is_named(report):
    said, _ = report(dict(data=3, waiting=0), dict(data=3, waiting=0))
    assert "The loader is short at 2 workers: 30% of a step (3.00 ms) waits for data" in said
    assert "Rank" not in said.split("By rank")[0].split("Where a step")[0]
