"""How far MLPerf's logs say that a run was, in which unit, and when: by benchmark."""
import math

import numpy as np
import pytest

from hvdscale.analysis.timings import timings_of
from hvdscale.analysis.steps import RunToTarget
from hvdscale.exchange.benchmarks.mlperf_rcp import TARGET
from hvdscale.log.reader import read_log
from hvdscale.target import Target
from tests.exchange.benchmarks.test_mllog import line, read_runs, submission, write
from tests.exchange.test_tables_and_rcp import call


@pytest.mark.parametrize("benchmark, batch, train_samples, where, at, examples", [
    ("retinanet", 256, 4572, "epoch_num", (1, 4), (1_170_301, 4_681_204)),          # the steps of an epoch
    ("ssd", 256, 4572, "epoch_num", (1, 4), (1_170_301, 4_681_204)),
    ("ssd", 1024, 117_266, "epoch_num", (1, 40), (117_266, 4_690_640)),
    ("ssd", 1024, None, "epoch_num", (5, 50), (586_330, 5_863_300)),
    ("bert", 448, 2_850_176, "epoch_num", (150_080, 2_850_176), (150_080, 2_850_176)),
    ("openfold", 128, 594_595, "epoch_num", (5120, 10_240), (5120, 10_240)),
    ("gpt3", 2048, 1_157_627_904, "epoch_num", (50_331_648, 1_157_627_904), (24_576, 565_248)),     # tokens
    ("dlrm", 55_296, 3_775_334_400, "epoch_num", (1.05, 1.9), (209_759_885, 3_775_677_923)),        # from epoch 1 on
    ("dlrm_dcnv2", 55_296, 4_195_197_692, "epoch_num", (0.05, 0.9), (209_759_885, 3_775_677_923)),
    ("unet3d", 56, 168, "epoch_num", (1000, 2000), (168_000, 336_000)),
    ("unet3d", 56, 168, "epoch_num", (168_000, 336_000), (168_000, 336_000)),
    ("rnnt", 2048, 278_528, "epoch_num", (1, 56), (278_528, 15_597_568)),           # whole batches: close to the table
    ("gnn", 16_384, 94_605_581, "epoch_num", (0.05, 0.8), (4_730_279, 75_684_465)),
    ("maskrcnn", 96, 40_000, "epoch_num", (1, 14), (117_266, 1_641_724)),
    ("stable_diffusion", 512, 1, "step_num", (1000, 5000), (512_000, 2_560_000))])
def test_a_counter_is_read_as_its_benchmark_counts(tmp_path, benchmark, batch, train_samples, where, at, examples):
    rows, _, _ = read_runs(tmp_path, submission(batch=batch, at=at, where=where, benchmark=benchmark,
                                                train_samples=train_samples))
    assert rows["examples"] == list(examples) and rows["step"] == [-(-seen // batch) for seen in examples]


def test_epochs_counted_from_0_are_one_more_than_their_number(tmp_path, worded):
    blocks = [line("block_start", ms=1, first_epoch_num=first, epoch_count=4) for first in (0, 4)]
    text = submission(benchmark="resnet", where="epoch_num", at=(3, 7), train_samples=1_281_167, batch=1000)
    rows, _, said = read_runs(tmp_path, text.replace(line("eval_start", ms=10_000, epoch_num=3),
                                                     "\n".join([*blocks, line("eval_start", ms=10_000, epoch_num=3)])))
    worded(said)
    assert rows["examples"] == [4 * 1_281_167, 8 * 1_281_167]


# what a file has, the columns of its evaluations, and what is said of it
ASSUMED = {
    "epochs from 0": (dict(benchmark="dlrm", at=(0.05, 0.9), batch=55_296, train_samples=4_195_197_692),
                      {"examples": [209_759_885, 3_775_677_923]}, "epoch_num begins at 0.05; assumed"),
    "one epoch": (dict(at=(1, 1, 1), values=(0.5, 0.6, 0.73), batch=448, train_samples=2_850_176),
                  {"examples": [2_850_176], "val/eval_accuracy": [0.73], "train_seconds": [30]},
                  "epoch_num stays at 1"),
    "two values at one place": (dict(where="samples_count", at=(2560, 2560, 5120), values=(0.1, 0.2, 0.8)),
                                {"val/eval_accuracy": [0.2, 0.8], "train_seconds": [20, 30]},
                                "1 evaluation at a place that had one before"),
    "steps": (dict(at=(163, 978), batch=3072, train_samples=3_505_152), {"step": [163, 978]}, "it counts steps"),
    "another training set": (dict(benchmark="rgat", at=(0.1, 0.2), train_samples=5120), {},
                             "train_samples is 5,120; assumed: a training set of 94,605,581 examples")}


@pytest.mark.parametrize("file, columns, message", ASSUMED.values(), ids=ASSUMED)
def test_what_is_assumed_of_a_counter_is_said(file, columns, message, tmp_path):
    rows, _, said = read_runs(tmp_path, submission(**{"where": "epoch_num", **file}), words=("--workers", "8"))
    assert {name: rows[name] for name in columns} == columns and message in said


def test_checkpoints_evaluated_after_the_run_count_at_their_time(tmp_path, worded):
    """FID and CLIP come long after training; run_stop is when the first checkpoint that passes both was made."""
    def values(samples, fid, clip, ms):
        return [line("eval_start", ms=ms, samples_count=samples), line("eval_stop", ms=ms + 1, samples_count=samples),
                line("eval_accuracy", clip, ms + 5, samples_count=samples, metric="CLIP"),
                line("eval_accuracy", fid, ms + 9, samples_count=samples, metric="FID")]

    lines = [*values(2560, 95.0, 0.2, 500_000), *values(5120, 80.0, 0.1, 600_000), *values(7680, 85.0, 0.16, 700_000),
             *values(10_240, 70.0, 0.2, 800_000), line("block_start", ms=9000, samples_count=2560),
             line("eval_accuracy", 85.00001, 30_000, samples_count=7680, metric="FID"),
             line("run_stop", ms=30_000, status="success", samples_count=7680)]
    text = submission(at=(), status="", benchmark="stable_diffusion") + "\n".join(lines)
    rows, [trial], said = read_runs(tmp_path, text, words=("--workers", "8"))
    assert rows["val/converged"] == [0, 0, 1, 1] and RunToTarget(trial, Target.parse(TARGET)).steps == 30
    np.testing.assert_array_equal(rows["train_seconds"], [9, math.nan, 30, math.nan])
    worded(said)
    with read_log(tmp_path / "log.h5") as read:
        assert [read.evaluations.specs[f"val/{name}"].better for name in ("FID", "CLIP")] == ["smaller", "larger"]


def test_training_that_went_on_beside_an_evaluation_keeps_its_seconds(tmp_path):
    lines = [line("block_start", ms=0), line("eval_start", ms=10_000, samples_count=2560),
             line("block_stop", ms=14_000), line("block_start", ms=14_000),
             line("eval_accuracy", 0.1, 18_000, samples_count=2560),
             line("eval_stop", ms=18_000), line("eval_start", ms=20_000, samples_count=5120),
             line("epoch_start", ms=21_000), line("eval_accuracy", 0.8, 26_000, samples_count=5120),
             line("eval_start", ms=31_000, samples_count=7680), line("eval_accuracy", 0.8, 36_000, samples_count=7680)]
    rows, _, _ = read_runs(tmp_path, submission(at=(), status="") + "\n".join(lines), words=("--workers", "8"))
    assert rows["train_seconds"] == [10, 20, 30]


@pytest.mark.parametrize("benchmark, at, batch, train_samples, message", [
    ("bert", (6,), 440, 3_565_320, "epoch_num ends at 6, less than a batch of 440"),
    ("dlrm", (1, 15), 32_768, 4_195_197_692, "epoch_num ends at 15, and dlrm takes at most 2.1 epochs"),
    ("transformer", (1, 5), 737_280, 4_590_101, "global_batch_size 737,280 of transformer counts tokens")])
def test_a_file_that_contradicts_the_table_is_refused(tmp_path, benchmark, at, batch, train_samples, message):
    write(tmp_path / "runs", submission(batch=batch, at=at, values=(0.3,) * len(at), where="epoch_num",
                                        benchmark=benchmark, train_samples=train_samples))
    code, said = call("import", tmp_path / "runs", tmp_path / "log.h5")
    assert code == 1 and message in said and ("--unit" in said or "--set-size" in said)
    words = ("--unit", "steps", "--set-size", "130000000")
    rows, _, _ = read_runs(tmp_path, (tmp_path / "runs/result_0.txt").read_text(), words=words)
    assert rows["step"] == list(at)


def test_what_is_assumed_of_an_unknown_benchmark_is_said_once(tmp_path):
    texts = [submission(where="epoch_num", at=(1, 2), benchmark="new", train_samples=2560, seed=seed)
             for seed in (1, 2)]
    rows, _, said = read_runs(tmp_path, *texts)
    assert rows["step"] == [10, 20, 10, 20]
    assert said.count("new is not in the table of benchmarks; assumed: epoch_num counts epochs of 2,560 examples") == 1
    assert "result_0.txt and 1 more: " in said
    rows, trials, said = read_runs(tmp_path, *texts, words=("--set-size", "5120"))
    assert rows["step"] == [20, 40, 20, 40] and trials[0].workload.train_examples == 5120


def test_nodes_of_workers_reach_the_step_times(tmp_path):
    _, [trial], _ = read_runs(tmp_path, submission(), words=("--workers", "16x8"))
    assert trial.workers == 128
    assert [(one.workers, one.per_node, one.nodes) for one in timings_of([trial]).found] == [(128, 8, 16)]


@pytest.mark.parametrize("workers", ["0", "16x", "x8", "2x3x4", "many", "0x8", "1.5"])
def test_a_worker_count_that_is_none_is_refused_with_what_would_be_one(workers, tmp_path):
    write(tmp_path / "runs", submission())
    code, said = call("import", tmp_path / "runs", tmp_path / "log.h5", "--workers", workers)
    assert code == 2 and repr(workers) in said and "16x8" in said
