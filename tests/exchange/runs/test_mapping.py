"""The mapping from runs to trials: what is guessed, and what a file says instead."""
import pytest

from hvdscale.errors import UsageError
from hvdscale.exchange.runs.guessing import guess
from hvdscale.exchange.runs.mapping import _KEYS, Metric, Source, read_mapping
from hvdscale.exchange.runs.run import FoundRun, series_of
from hvdscale.plan.settings import read_toml
from tests import guides


def found(path="runs/w4-b32-s1", rows=({"step": 1.0, "val/error": 0.5},), **parameters):
    return FoundRun(path, "CSV", parameters, series_of(rows))


def test_a_setting_is_a_parameter_that_all_runs_have_else_a_pattern_of_their_paths():
    runs = [found("made/b32/s1", batch_size=16, seed=7), found("made/b64/s2", batch_size=32)]
    settings = guess(runs).settings
    assert [[settings[name].of(run) for run in runs] for name in ("batch", "seed")] == [[16, 32], [1, 2]]
    assert "workers" not in settings and settings["dataset"].value == "made" and settings["model"].value == "unknown"
    assert guess([found("fpn_r50"), found("fpn_r101")]).settings["seed"].value == "unknown"


@pytest.mark.parametrize("path, batch, workers, seed", [
    ("runs/w4-b32-s1", 32, 4, 1), ("bs_128_seed_3", 128, None, 3), ("gpus8/batch-size=256/rep2", 256, 8, 2),
    ("global_batch512", 512, None, None), ("bs64_4gpus/seed1", 64, 4, 1), ("b16-8_workers", 16, 8, None),
    ("web3/subs4", None, None, None), ("mask_rcnn_r50_fpn", None, None, None), ("hrnet_w32-b16", 16, None, None)])
def test_names_of_runs_are_read_as_people_write_them(path, batch, workers, seed):
    settings = guess([found(path)]).settings
    given = {name: settings[name].of(found(path)) for name in ("batch", "workers", "seed") if name in settings}
    assert (given.get("batch"), given.get("workers")) == (batch, workers)
    assert given["seed"] == (seed if seed is not None else "unknown")


@pytest.mark.parametrize("tag, column, way", [
    ("val_loss", "val/loss", "min"), ("eval_accuracy", "val/accuracy", "max"), ("test/BLEU", "test/BLEU", "max"),
    ("validation/error_rate", "val/error_rate", "min"), ("Valid acc", "val/acc", "max"), ("val/x", "val/x", ""),
    ("train_loss_epoch", "train/loss", "min"), ("dev.f1", "val/f1", "max"), ("bbox/AP", "val/bbox/AP", "max"),
    ("accuracy/top1", "val/accuracy/top1", "max"), ("mIoU", "val/mIoU", "max"), ("val_loss_step", "", ""),
    ("evaluate/loss", "", ""), ("lr", "", ""), ("eval", "", ""), ("trainer/global_step", "", "")])
def test_a_tag_that_names_a_split_is_a_metric_with_its_better_way_and_no_other_is_one(tag, column, way):
    assert guess([found(rows=[{"step": 1.0, tag: 0.5}])]).tags == ({tag: Metric(column, way)} if column else {})


def test_the_loss_of_a_step_is_a_metric_where_there_is_no_other():
    assert guess([found(rows=[{"step": 1.0, "loss": 0.5}])]).tags == {"loss": Metric("train/loss", "min")}
    assert [*guess([found(rows=[{"step": 1.0, "loss": 0.5, "val_loss": 1.0}])]).tags] == ["val_loss"]


def test_steps_count_from_zero_where_a_loss_was_logged_at_step_zero():
    assert guess([found(rows=[{"step": 0.0, "train/loss": 0.5}])]).step_offset == 1
    assert guess([found(rows=[{"step": 0.0, "val/error": 0.5}, {"step": 1.0, "train/loss": 1}])]).step_offset == 0


@pytest.mark.parametrize("steps, offset", [
    ((49, 99, 149), 1), ((50, 100, 150), 0), ((3, 7), 1), ((0, 50), 0), ((7,), 0)])
def test_steps_count_from_zero_where_evaluations_lie_before_round_numbers(steps, offset):
    assert guess([found(rows=[{"step": float(step), "val/error": 0.5} for step in steps])]).step_offset == offset


def test_a_constant_for_each_part_of_a_path_is_that_of_the_longest(tmp_path):
    runs = [found(path) for path in ("chart.csv:run-1", "chart.csv:run-10", "chart.csv:run-2")]
    (tmp_path / "map.toml").write_text('batch = {"run-1" = 8, "run-10" = 16}')
    mapping = read_mapping(str(tmp_path / "map.toml"), guess(runs), runs)
    assert [mapping.settings["batch"].of(run) for run in runs] == [8, 16, None]
    assert 'batch = {run-1 = 8, run-10 = 16}' in mapping.as_toml()


def test_a_guess_written_as_a_file_says_the_same(tmp_path):
    runs = [found(rows=[{"step": 0.0, "it's \"x\"": 1.0, "val/a b": 2.0, "loss": 1.0, "seconds": 1.0}], lr=0.1, lr2=3)]
    guessed = guess(runs)
    (tmp_path / "runs.toml").write_text(guessed.as_toml())
    assert read_mapping(tmp_path / "runs.toml", guess([found("x/y")]), runs) == guessed


def test_a_file_replaces_what_was_guessed_and_keeps_the_rest(tmp_path):
    (tmp_path / "runs.toml").write_text("batch = {parameter = \"n\"}\nseed = 3\nmodel = {pattern = 'runs/(\\w+)'}\n"
                                        "[tags]\n\"val/error\" = \"test/error min\"\n")
    runs = [found("runs/cnn/b8", n=64)]
    mapping = read_mapping(tmp_path / "runs.toml", guess(runs), runs)
    assert [mapping.settings[name].of(runs[0]) for name in ("batch", "seed", "model")] == [64, 3, "cnn"]
    assert mapping.tags == {"val/error": Metric("test/error", "min")} and mapping.step == "step"
    assert mapping.settings["dataset"] == Source("cnn")


def test_every_wrong_key_of_a_file_is_named_at_once_with_the_nearest(tmp_path):
    (tmp_path / "runs.toml").write_text("bach = 3\nstep_unit = \"hours\"\nstep = \"stp\"\nseed = {pattern = '('}\n"
                                        "keep = 'both'\n[tags]\n\"val/eror\" = \"error\"\n")
    with pytest.raises(UsageError) as raised:
        read_mapping(tmp_path / "runs.toml", guess([found()]), [found()])
    said = str(raised.value)
    for message in ("no key 'bach': did you mean batch", "step_unit is 'hours', not one of", "did you mean step?",
                    "seed: the pattern '('", "keep is 'both'", "tags.val/eror is 'error', not split/metric"):
        assert message in said


def test_the_guide_shows_every_key(tmp_path):
    path, tags = tmp_path / "runs.toml", ("global_step", "iter", "_runtime", "train/step_time", "train/loss",
                                          "train/lr", "eval/loss", "eval/acc")
    path.write_text(guides.block("hvdscale/exchange/runs/README.rst", "toml"))
    runs = [found(rows=[dict.fromkeys(tags, 1.0)])]
    assert read_toml(path).keys() == set(_KEYS)
    assert read_mapping(path, guess(runs), runs).tags["eval/acc"] == Metric("val/accuracy", "max")
