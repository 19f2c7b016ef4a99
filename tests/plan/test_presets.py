"""The presets: how a configuration is found, and that the published recipes come out of their plans."""
import pytest
from click.testing import CliRunner

from hvdscale.cli import doctor, scale, train
from hvdscale.errors import DataError, UsageError
from hvdscale.plan.presets import names, read_config, title
from hvdscale.plan.settings import Settings
from hvdscale.plan.settle import Place, settle
from hvdscale.training.prepare import sketch
from hvdscale.workers.group import SingleWorker
from hvdscale.workload import Card, build_model
from hvdscale.workloads import find


# Shallue et al. 2019, figure 1
GOALS = {"mnist-simple-cnn": "val/error<0.01", "fashion-simple-cnn": "val/error<0.1",
         "cifar10-resnet8": "val/error<0.3",
         "imagenet-resnet50": "val/error<0.25", "imagenet-vgg11": "val/error<0.35",
         "openimages-resnet50": "val/average_precision>0.31", "lm1b-transformer": "val/cross_entropy<3.9",
         "lm1b-lstm": "val/cross_entropy<3.9", "commoncrawl-transformer": "val/cross_entropy<3.9"}
OF_MASTERS = [name for name in names() if name.startswith("masters2018-")]


UNKNOWN = Card(10**9, 10**4, lambda: None, {"vocabulary": 1000})        # a text that nothing is published of
OWN = """
import torch
from hvdscale.workload import Classification

def load(data_dir):
    raise AssertionError("no data is read")

workload = Classification("own", "linear", 2, load, lambda: torch.nn.Linear(1, 2))
"""


def planned(name, workers=1, **typed):
    """The plan of a preset at this many workers, from the published sizes."""
    layer, workload = read_config(name)
    workload = find(workload)
    settings, card = Settings.build(workload.defaults, layer, typed), workload.card or UNKNOWN
    return settle(settings, workload, card.train_examples, card.val_examples, Place(workers, workers, workers))


def typed(command, *arguments):
    """What a command makes of these arguments."""
    result = CliRunner().invoke(command, arguments, standalone_mode=False)
    if result.exception:
        raise result.exception
    return result.return_value


# every preset

@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize("name", names())
def test_a_preset_settles_at_any_worker_count(name, workers):
    plan = planned(name, workers)
    assert plan.workers == workers and plan.budget_steps > plan.warmup_steps
    assert plan.schedule.lr_at(plan.budget_steps - 1) > 0


@pytest.mark.parametrize("name", names())
def test_a_preset_has_a_title_a_model_and_all_that_a_workload_would_set_differently(name):
    """Defaults of a workload may change; the recipe's optimizer, schedule and batch stand in the preset itself."""
    import torch
    assert title(name).count(": ") == 1 and len(title(name)) < 100
    layer, workload = read_config(name)
    assert {"optimizer", "weight_decay", "warmup", "decay", "target", "eval_splits", "seed"} <= layer.keys()
    assert {"local_batch", "global_batch"} & layer.keys() and {"lr", "lr_per_example"} & layer.keys()
    assert {"epochs", "steps"} & layer.keys() and {"eval_every", "eval_every_epochs"} & layer.keys()
    workload = find(workload)
    with torch.device("meta"):
        build_model(workload, {**(workload.card or UNKNOWN).model_args, **layer.get("model_args", {})})


# the recipes

def test_goyals_256_workers_have_a_batch_of_8192_and_a_peak_of_3_2():
    plan = planned("goyal2017-resnet50", 256)
    assert (plan.global_batch, plan.local_batch, plan.ghost_batch) == (8192, 32, 32)
    assert plan.peak_lr == pytest.approx(3.2) and plan.start_lr == pytest.approx(0.1)
    assert (plan.optimizer, plan.momentum, plan.weight_decay) == ("nesterov", 0.9, 1e-4)
    assert not plan.decay_norm_and_bias
    assert plan.target is None and plan.eval_splits == ("test",)


@pytest.mark.parametrize("name", ["goyal2017-resnet50", "horovod-resnet50"])
@pytest.mark.parametrize("workers", [1, 8, 256])
def test_the_rate_climbs_for_5_epochs_and_falls_tenfold_at_epochs_30_60_and_80(name, workers):
    plan = planned(name, workers)
    epoch = plan.train_examples / plan.global_batch
    lr = plan.schedule.lr_at
    for at, factor in ((5.1, 1), (29.9, 1), (30.1, 0.1), (59.9, 0.1), (60.1, 0.01), (79.9, 0.01), (80.1, 1e-3),
                       (89.9, 1e-3)):
        assert lr(round(at * epoch)) == pytest.approx(factor * plan.peak_lr), at
    assert plan.budget_steps == pytest.approx(90 * epoch, abs=1)
    middle = (plan.start_lr + plan.peak_lr) / 2
    assert lr(round(2.5 * epoch)) == pytest.approx(middle, rel=0.01)


@pytest.mark.parametrize("workers", [1, 8, 256])
def test_horovods_workers_have_an_eighth_of_goyals_rate_and_batch(workers):
    plan = planned("horovod-resnet50", workers)
    assert plan.peak_lr == pytest.approx(0.0125 * workers) == planned("goyal2017-resnet50", workers).peak_lr
    assert plan.start_lr == pytest.approx(0.0125)
    assert (plan.optimizer, plan.weight_decay, plan.decay_norm_and_bias) == ("momentum", 5e-5, True)
    assert planned("horovod-resnet50", workers, accumulate=4).peak_lr == pytest.approx(0.05 * workers)


@pytest.mark.parametrize("name", OF_MASTERS)
def test_masters_rate_per_example_holds_at_any_batch_and_falls_at_half_and_three_quarters(name):
    layer, _ = read_config(name)
    plan, epochs = planned(name), 164 if "cifar100" in name else 82
    assert plan.budget_steps * plan.global_batch == pytest.approx(epochs * plan.train_examples, rel=1e-4)
    assert plan.decay_at == pytest.approx((plan.budget_steps / 2, 0.75 * plan.budget_steps), abs=2)
    assert plan.weight_decay == (5e-4 if "alexnet" in name else 1e-4) and 2**-12 <= layer["lr_per_example"] <= 1
    for workers in (1, 4, 16):
        plan = planned(name, workers)
        assert plan.peak_lr / plan.global_batch == pytest.approx(layer["lr_per_example"])
        assert (plan.warmup, plan.optimizer, plan.momentum) == ("none", "sgd", None)


@pytest.mark.parametrize("name", GOALS)
def test_shallues_goals_are_those_of_figure_1_at_any_worker_count(name):
    plans = [planned(f"shallue2019-{name}", workers) for workers in (1, 2, 8)]
    assert {plan.target for plan in plans} == {GOALS[name]} and {plan.optimizer for plan in plans} == {"nesterov"}
    assert len({plan.global_batch for plan in plans}) == 1
    assert len({plan.peak_lr for plan in plans}) == 1


def test_shallues_imagenet_values_lie_in_the_published_search_space():
    plan = planned("shallue2019-imagenet-resnet50")
    assert plan.global_batch == 256 and plan.budget_steps == 600_000 and plan.ghost_batch == 32
    assert 1e-4 <= plan.peak_lr <= 10 and 0.9 <= plan.momentum <= 0.9999 and 1e-4 <= plan.end_lr_factor <= 0.1
    assert 300_000 <= plan.decay_steps <= 600_000 and plan.label_smoothing in (0, 0.01, 0.1)
    assert plan.weight_decay == 0 and plan.warmup == "none"


# how a configuration is found

def test_a_file_wins_over_a_preset_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "goyal2017-resnet50").write_text("epochs = 1\n")
    assert read_config("goyal2017-resnet50") == ({"epochs": 1}, None)


@pytest.mark.parametrize("path", ["./goyal2017-resnet50", "goyal2017-resnet50.toml"])
def test_a_path_is_never_a_preset(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"^{path}: cannot be read"):
        read_config(path)


def test_a_workload_that_is_no_name_is_refused_and_only_the_top_level_names_one(tmp_path, worded):
    (tmp_path / "job.toml").write_text("workload = 3\n")
    with worded.error(UsageError):
        read_config(str(tmp_path / "job.toml"))
    (tmp_path / "job.toml").write_text('[model_args]\nworkload = "a/b"\n')
    assert read_config(str(tmp_path / "job.toml")) == ({"model_args": {"workload": "a/b"}}, None)


# in the commands

@pytest.mark.parametrize("command", [train.command, doctor.command])
def test_a_workload_typed_wins_over_that_of_the_configuration(command, tmp_path):
    (tmp_path / "job.toml").write_text('workload = "digits/fc"\nseed = 3\n')
    config = ("--config", str(tmp_path / "job.toml"))
    for arguments, workload in (((), "digits/fc"), (("digits/cnn",), "digits/cnn")):
        name, layers, *_ = typed(command, *arguments, *config)
        assert name == workload and layers == [{"seed": 3}, {}]


def test_a_series_runs_the_workload_of_the_configuration(tmp_path, monkeypatch):
    (tmp_path / "job.toml").write_text('workload = "digits/fc"\nsteps = 3\n')
    ran = []
    monkeypatch.setattr(scale, "find_launcher", lambda wanted: None)
    monkeypatch.setattr("hvdscale.cli.series.carry_out",
                        lambda run, workload, *rest: ran.append((workload, run.keys["steps"])) or {})
    monkeypatch.setattr("hvdscale.report.pages.make", lambda logs, out, echo: None)
    typed(scale.main, "--config", str(tmp_path / "job.toml"), "--workers", "1,2", "--out", str(tmp_path / "out"))
    assert ran == [("digits/fc", 3)] * 2


def test_a_presets_keys_lie_under_the_command_line():
    _, layers, _ = typed(train.command, "--config", "horovod-resnet50", "--epochs", "3", "--model-arg", "width=0.5")
    settings = Settings.build({}, *layers)
    assert (settings.budget.amount, settings.lr, settings.seed) == (3, 0.0125, 42)
    assert settings.model_args == {**read_config("horovod-resnet50")[0]["model_args"], "width": 0.5}


# dry runs without data

def test_a_dry_run_without_data_prints_the_plan_by_the_published_sizes(here, tmp_path, worded):
    said = here("hvdscale-train", "--config", "shallue2019-mnist-simple-cnn", "--dry-run").stdout.splitlines()
    worded(said[0])
    assert "  budget         5000 steps (11.6 epochs of 55000 examples), or until val/error<0.01" in said
    worded(said[-1])
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_of_data_that_is_given_and_wrong_is_an_error(tmp_path, worded):
    with worded.error(DataError):
        train._run("mnist/simple_cnn", [{"data_dir": str(tmp_path)}], True, SingleWorker())


@pytest.mark.parametrize("typed, said", [
    ({"global_batch": 60000}, "larger than the training set of 55000 examples"),
    ({"global_batch": 600, "train_subset": 500}, "larger than the training set of 500 examples"),
    ({"target": "val/bleu>30"}, "'bleu' is none of these"), ({"label_smoothing": 0.95}, "use at most 0.9"),
    ({"model_args": {"widht": 2}}, "'widht'. It takes .*width")])
def test_a_plan_without_data_refuses_what_cannot_hold(typed, said):
    with pytest.raises(UsageError, match=said):
        sketch("mnist/simple_cnn", [typed], SingleWorker())


def test_a_plan_without_data_has_the_model_arguments_that_the_data_would_say(worded):
    assert sketch("cifar_100/resnet_8", [{}], SingleWorker()).startswith("cifar_100/resnet_8 (classes=100)\n")
    with worded.error(UsageError):
        sketch("cifar_100/resnet_8", [{"model_args": {"classes": 7}}], SingleWorker())


def test_nothing_is_planned_where_nothing_is_published_or_data_is_given(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "job_without_card.py").write_text(OWN)
    assert sketch("mnist/simple_cnn", [{"data_dir": str(tmp_path)}], SingleWorker()) is None
    assert sketch("job_without_card:workload", [{"lr": 1.0, "steps": 1, "local_batch": 1}], SingleWorker()) is None
