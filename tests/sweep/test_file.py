"""The sweep file: what its studies are, and messages that name file, line and key of what cannot hold."""
import json
import re
from types import SimpleNamespace

import pytest

from hvdscale.errors import PlanError, UsageError
from hvdscale.plan.lengths import Length
from hvdscale.plan.search_space import draws
from hvdscale.plan.settings import Settings
from hvdscale.sweep.file import read_sweep
from hvdscale.sweep.studies import check_same, plan_of, settle_study
from tests.factories.plans import WORKLOAD
from tests.wording import answered

WHOLE = """\
workload = "mnist/simple_cnn"
batch_sizes = [512, 32, 2048]
optimizers = ["nesterov", "sgd"]
trials = 12
targets = ["val/error<0.02", "val/error<0.05"]
epochs = 5
evaluations = 60

[settings]
decay = "linear"
lr_in_velocity = true
model_args.dropout = 0.2

[space.lr]
scale = "log"
min = 1e-4
max = 10.0

[space.momentum]
scale = "reverse_log"
min = 0.9
max = 0.9999

[space.decay_steps]
min = 0.5
max = 1
scaled = "budget"

[space.label_smoothing]
values = [0, 0.01, 0.1]

[batch.2048]
epochs = 10
trials = 20

[batch.2048.settings]
max_local_batch = 512

[batch.2048.space.lr]
max = 30.0
"""
SMALL = """\
workload = "made/net"
batch_sizes = [4, 16, 64]
optimizer = "sgd"
trials = 3
targets = ["val/error<0.1"]
steps = 100
evaluations = 10
"""
LR = "[space.lr]\nscale = 'log'\nmin = 0.1\nmax = 2\n"


JOB = SimpleNamespace(**vars(WORKLOAD), defaults={})


@pytest.fixture
def read(tmp_path):
    def read(text):
        (tmp_path / "sweep.toml").write_text(text)
        return read_sweep(str(tmp_path / "sweep.toml"))
    return read


def study(sweep, name):
    return next(study for study in sweep.studies if study.name == name)


def bounds(sweep, name, batch=4, budget_steps=100, optimizer="sgd"):
    """The bounds of a parameter in a study's space."""
    space = study(sweep, f"{optimizer}-b{batch}").space(budget_steps)
    found = next(parameter for parameter in space if parameter.name == name)
    return found.low, found.high


# what is read

def test_a_whole_file_is_read(read):
    sweep = read(WHOLE)
    assert (sweep.workload, sweep.record["batch_sizes"], sweep.optimizers) == (
        "mnist/simple_cnn", [32, 512, 2048], ("nesterov", "sgd"))
    assert (sweep.record["trials"], sweep.record["max_draws"]) == (12, 36)
    assert (sweep.evaluations, sweep.repeats, sweep.seed) == (60, 0, 0)
    assert (sweep.objective, sweep.keep, sweep.workers_per_trial) == ("steps", 5, 1)
    assert list(map(str, sweep.targets)) == ["val/error<0.05", "val/error<0.02"]         # easiest first
    assert [study.name for study in sweep.studies] == [
        f"{optimizer}-b{batch}" for optimizer in ("nesterov", "sgd") for batch in (32, 512, 2048)]
    assert [(study.trials, study.max_draws) for study in sweep.studies[:3]] == [(12, 36), (12, 36), (20, 60)]


def test_a_study_has_the_settings_its_budget_and_what_a_sweep_does_by_itself(read):
    sweep = read(WHOLE)
    common = {"lr_rule": "none", "warmup": "none", "noise_every": 0, "decay": "linear", "model_args": {"dropout": 0.2}}
    assert study(sweep, "nesterov-b512").layer == {
        **common, "epochs": 5.0, "optimizer": "nesterov", "global_batch": 512, "lr_in_velocity": True}
    assert study(sweep, "sgd-b2048").layer == {
        **common, "epochs": 10.0, "optimizer": "sgd", "global_batch": 2048, "max_local_batch": 512}
    for each in sweep.studies:
        assert Settings.build({}, each.layer).asked() == each.layer


def test_a_parameter_drops_out_for_an_optimizer_that_lacks_it(read):
    sweep = read(WHOLE)
    names = {each.name: [parameter.name for parameter in each.space(1000)] for each in sweep.studies}
    assert names["nesterov-b32"] == ["decay_steps", "label_smoothing", "lr", "momentum"]
    assert names["sgd-b32"] == ["decay_steps", "label_smoothing", "lr"]


def test_arguments_of_an_optimizers_class_are_for_that_one_alone(read):
    sweep = read(SMALL.replace('optimizer = "sgd"', 'optimizers = ["sgd", "torch.optim:RMSprop"]') + LR
                 + "[space.optimizer_args.alpha]\nmin = 0.5\nmax = 0.9\n[settings.optimizer_args]\neps = 1e-6\n")
    assert [len(each.space(100)) for each in sweep.studies] == [1, 1, 1, 2, 2, 2]
    assert ["optimizer_args" in each.layer for each in sweep.studies] == [False] * 3 + [True] * 3
    assert sweep.studies[-1].name == "torch.optim-RMSprop-b64"


def test_the_order_of_the_tables_is_of_no_account(read):
    tables = [LR, "[space.weight_decay]\nmin = 0\nmax = 1\n", "[space.clip_norm]\nmin = 1\nmax = 2\n"]
    drawn = {json.dumps(draws(read(SMALL + "".join(order)).studies[0].space(100), 5, 0))
             for order in (tables, tables[::-1])}
    assert len(drawn) == 1


@pytest.mark.parametrize("settings, layer", [
    ("", {"warmup": "none"}),
    ("warmup_steps = 5", {"warmup": "gradual", "warmup_start_factor": 0.0, "warmup_steps": 5}),
    ("warmup = 'gradual'\nwarmup_start_factor = 0.5", {"warmup": "gradual", "warmup_start_factor": 0.5}),
    ("warmup = 'constant'\nwarmup_start_factor = 0.5", {"warmup": "constant", "warmup_start_factor": 0.5}),
    ("warmup = 'none'", {"warmup": "none"}),
    ("lr_rule = 'linear'\nbase_batch = 8", {"lr_rule": "linear", "base_batch": 8, "warmup": "none"}),
])
def test_no_rule_and_no_warmup_unless_it_is_said_and_no_noise(read, settings, layer):
    found = read(SMALL + LR + f"[settings]\n{settings}\n").studies[0].layer
    assert found == {"lr_rule": "none", "noise_every": 0, "optimizer": "sgd", "global_batch": 4, "steps": 100, **layer}


def test_a_warmup_that_is_searched_climbs_from_0(read):
    sweep = read(SMALL + LR + "[space.warmup_steps]\nmin = 1\nmax = 10\n")
    assert sweep.studies[0].layer["warmup"] == "gradual" and sweep.studies[0].layer["warmup_start_factor"] == 0
    sweep = read(SMALL + LR + "[space.warmup]\nvalues = ['none', 'gradual']\n[settings]\nwarmup_steps = 3\n")
    for kind, start in (("none", None), ("gradual", 0.0)):
        settings = Settings.build({}, sweep.studies[0].layer, {"warmup": kind})
        assert settings.warmup_start_factor == start
        assert settings.warmup_length == (Length(3, "steps") if kind == "gradual" else None)


def test_lengths_are_texts_or_numbers_by_their_older_names(read):
    older = read(SMALL + LR + "[settings]\nwarmup_epochs = 2\n[batch.16]\nepochs = 3\n")
    newer = read(SMALL.replace("steps = 100", 'budget = "100 steps"') + LR + '[settings]\nwarmup = "2 epochs"\n'
                 '[batch.16]\nbudget = "3 epochs"\n')
    assert newer == older


def test_a_sweep_counts_tokens_and_searches_them(read, worded):
    text = SMALL.replace("steps = 100", 'budget = "1e4 tokens"').replace("evaluations = 10\n", "") + LR
    text += '[settings]\neval_every = "1e3 tokens"\n[space.warmup_tokens]\nmin = 100\nmax = 400\n'
    study = read(text).studies[0]
    assert study.layer["tokens"] == 1e4 and study.layer["warmup"] == "gradual"
    data = SimpleNamespace(train=range(1000), val=range(200), train_tokens=12_500)
    settled = settle_study(read(text), study, JOB, data, None)
    assert (settled.budget_steps, settled.eval_every) == (200, 20) and study.global_batch == 4
    plan = plan_of(settled, 0, JOB, data)
    assert plan.warmup_steps == -(-settled.points[0]["warmup_tokens"] // (12.5 * 4))
    with worded.error(PlanError):
        settle_study(read(text), study, JOB, SimpleNamespace(train=range(1000), train_tokens=None), None)


def test_the_batch_of_a_study_may_grow_from_it(read, refused):
    ramp = '[batch.4.settings]\nbatch_schedule = [[0, 4], ["0.5 epochs", 8]]\n'
    sweep = read(SMALL + LR + ramp)
    data = SimpleNamespace(train=range(100), val=range(20), train_tokens=None)
    settled = settle_study(sweep, sweep.studies[0], JOB, data, None)
    plan = plan_of(settled, 0, JOB, data)
    assert str(plan.batches) == "4, 8 from step 13" and settled.budget_examples == 13 * 4 + 87 * 8
    refused(read, SMALL + LR + ramp.replace("batch.4", "batch.16"))


def test_targets_are_ordered_from_the_easiest_to_the_strictest(read):
    for written, ordered in [
            (["val/error<0.1", "val/error<=0.1", "val/error<0.2"],
             ["val/error<0.2", "val/error<=0.1", "val/error<0.1"]),
            (["val/accuracy>0.9", "val/accuracy>0.8"], ["val/accuracy>0.8", "val/accuracy>0.9"])]:
        sweep = read(SMALL.replace('["val/error<0.1"]', json.dumps(written)) + LR)
        assert list(map(str, sweep.targets)) == ordered


def test_a_columns_best_value_may_be_the_objective(read):
    sweep = read(SMALL.replace("targets", "objective = 'val/classification_error'\n#") + LR)
    assert (sweep.objective, sweep.targets, sweep.keep) == ("val/error", (), None)
    sweep = read("objective = 'val/loss'\nprune = false\n" + SMALL + LR)
    assert list(map(str, sweep.targets)) == ["val/error<0.1"]


def test_a_budget_in_seconds_goes_with_a_grid_in_steps(read):
    text = SMALL.replace("steps = 100", "seconds = 60").replace("evaluations = 10", "")
    sweep = read(text + LR + "[settings]\neval_every = 20\n")
    assert sweep.evaluations is None and sweep.record["seconds"] == 60.0
    assert sweep.studies[0].layer["eval_every"] == 20


def test_every_batch_may_have_its_own_budget_and_none_stand_for_all(read):
    own = "".join(f"[batch.{batch}]\n{budget}\n" for batch, budget in
                  [(4, "steps = 5"), (16, "examples = 320"), (64, "epochs = 2\nmax_draws = 3")])
    sweep = read(SMALL.replace("steps = 100", "") + LR + own)
    assert not {"steps", "examples", "epochs"} & sweep.record.keys()
    assert [(each.layer.get("steps"), each.layer.get("examples"), each.layer.get("epochs"), each.max_draws)
            for each in sweep.studies] == [(5, None, None, 9), (None, 320, None, 9), (None, None, 2.0, 3)]


def test_a_batchs_settings_unset_the_alternatives_for_all_batches(read):
    sweep = read(SMALL + LR + "[settings]\nwarmup_steps = 5\nmodel_args = {a = 1, b = 2}\n"
                 "[batch.16.settings]\nwarmup_epochs = 1\nmodel_args = {b = 3}\n")
    assert [(each.layer.get("warmup_steps"), each.layer.get("warmup_epochs"), each.layer["model_args"])
            for each in sweep.studies] == [(5, None, {"a": 1, "b": 2}), (None, 1.0, {"a": 1, "b": 3}),
                                           (5, None, {"a": 1, "b": 2})]


# the space

def test_half_lives_are_searched_in_examples_where_the_optimizer_has_them(read, worded):
    space = LR + "[space.beta2_half_life]\nscale = 'log'\nmin = 1e3\nmax = 1e6\n"
    sweep = read(SMALL.replace('"sgd"', '"adam"') + space)
    assert {parameter.name for parameter in sweep.studies[0].space(100)} == {"lr", "beta2_half_life"}
    with worded.error(UsageError):
        read(SMALL + space)
    with worded.error(UsageError):
        read(SMALL.replace('"sgd"', '"adam"') + space + "[settings]\nbeta2 = 0.9\n")


def test_bounds_are_scaled_by_a_rule_from_their_base_batch_integers_rounded_and_above_0(read):
    for rule, power in [("linear", 1), ("sqrt", 0.5), ("none", 0), ("power:-1.5", -1.5)]:
        sweep = read(SMALL + LR + f"scaled = '{rule}'\nbase_batch = 16\n")
        for batch in (4, 16, 64):
            assert bounds(sweep, "lr", batch) == pytest.approx((0.1 * (batch / 16)**power, 2 * (batch / 16)**power))
    sweep = read(SMALL + LR + "[space.warmup_steps]\nmin = 2\nmax = 9\nscaled = 'power:-1'\nbase_batch = 16\n")
    assert [bounds(sweep, "warmup_steps", batch) for batch in (4, 16, 64)] == [(8, 36), (2, 9), (1, 2)]
    sweep = read(SMALL + LR + "[space.warmup_steps]\nmin = 0\nmax = 9\nscaled = 'power:-1'\nbase_batch = 16\n")
    assert [bounds(sweep, "warmup_steps", batch) for batch in (4, 16, 64)] == [(0, 36), (0, 9), (0, 2)]


def test_shares_of_the_budget_are_whole_steps_of_at_least_one(read):
    sweep = read(WHOLE)
    for steps, expected in [(1000, (500, 1000)), (7, (4, 7)), (1, (1, 1))]:
        assert bounds(sweep, "decay_steps", 32, steps) == expected
        assert {type(bound) for bound in bounds(sweep, "decay_steps", 32, steps)} == {int}
    drawn = {point["decay_steps"] for point in draws(study(sweep, "sgd-b32").space(1), 8, 0)}
    assert drawn == {1}


def test_a_batchs_own_bounds_are_not_scaled_the_others_are_and_its_own_shares_are_shares(read):
    sweep = read(SMALL + LR + "scaled = 'linear'\nbase_batch = 16\n[batch.64.space.lr]\nmax = 30\n")
    assert bounds(sweep, "lr", 64) == pytest.approx((0.4, 30)) and bounds(sweep, "lr", 4) == pytest.approx((0.025, 0.5))
    sweep = read(WHOLE + "[batch.32.space.decay_steps]\nmin = 0.1\n")
    assert bounds(sweep, "decay_steps", 32, 1000) == (100, 1000)
    assert bounds(sweep, "decay_steps", 512, 1000) == (500, 1000)


def test_a_batch_may_replace_bounds_by_values_and_values_by_bounds(read):
    sweep = read(SMALL + LR + "scaled = 'linear'\nbase_batch = 16\n[batch.16.space.lr]\nvalues = [1, 2]\n"
                 "[space.weight_decay]\nvalues = [0]\n[batch.16.space.weight_decay]\nmin = 0\nmax = 1\n")
    lr, decay = study(sweep, "sgd-b16").space(100)
    assert (lr.values, decay.type, decay.low, decay.high) == ((1.0, 2.0), "double", 0.0, 1.0)
    assert all(type(value) is float for value in lr.values)


def test_entries_of_tables_are_named_with_their_table(read):
    text = SMALL + LR + "[space.model_args.dropout]\nmin = 0\nmax = 0.5\n"
    text += "[space]\n'model_args.act'.values = ['a', true]\n"
    names = {parameter.name: parameter.type for parameter in read(text).studies[0].space(100)}
    assert names == {"lr": "double", "model_args.dropout": "double", "model_args.act": "discrete"}


def test_values_may_be_text_numbers_or_words_in_a_numbers_place(read):
    sweep = read(SMALL + LR + "[space.decay]\nvalues = ['constant', 'linear']\n"
                 "[space.end_lr_factor]\nmin = 0\nmax = 1\n"
                 "[space.ghost_batch]\nvalues = [16, 'global']\n[space.decay_steps]\nmin = 5\nmax = 9\n")
    kinds = {parameter.name: parameter.type for parameter in sweep.studies[0].space(100)}
    assert kinds == {"lr": "double", "decay": "discrete", "end_lr_factor": "double", "ghost_batch": "discrete",
                     "decay_steps": "integer"}


# what is refused: the text that is put in, what is said

@pytest.fixture
def refused(worded):
    def refused(read, text):
        with worded.error(UsageError):
            read(text)
    return refused


def top(old, new):
    """A file with something else in place of a part of SMALL."""
    assert old in SMALL
    return SMALL.replace(old, new) + LR


def behind(tables):
    return f"{SMALL}{LR}{tables}\n"


def searched(name, table):
    """A file that searches a parameter in that space."""
    rate = "" if name == "lr" else "[space]\nlr = {values = [1]}\n"
    return SMALL.replace('optimizer = "sgd"', 'optimizer = "nesterov"') + f"[space.{name}]\n{table}\n{rate}"


def test_what_cannot_hold_is_refused_in_the_same_words(golden, read, tmp_path, monkeypatch):
    """As is another search in the place of WHOLE."""
    monkeypatch.chdir(tmp_path)

    def said(call):
        found = eval(call, {**globals(), "edited": lambda old, new: WHOLE.replace(old, new)})
        kept = as_kept(read(WHOLE))
        (tmp_path / "sweep.toml").write_text(found)
        with pytest.raises(UsageError) as caught:
            check_same(kept, read_sweep("sweep.toml"))
        return str(caught.value)
    golden("sweep", answered("sweep", said))


def test_a_space_without_a_rate_and_shares_of_a_budget_in_seconds_are_refused(read, refused):
    refused(read, SMALL + "[space.weight_decay]\nvalues = [1]\n")
    text = SMALL.replace("steps = 100", "seconds = 9").replace("evaluations = 10\n", "") + LR
    text += "[space.warmup_steps]\nmin = 0.1\nmax = 0.2\nscaled = 'budget'\n[settings]\neval_every = 3\n"
    refused(read, text)


def test_a_key_that_a_workloads_defaults_may_let_act_is_left_to_the_plan(read):
    assert read(SMALL + LR + "[space.end_lr_factor]\nmin = 0.1\nmax = 0.2\n[settings]\ndecay_steps = 3\n").studies


def test_any_value_in_place_of_another_is_refused_or_read(read):
    others = ["true", "-1", "0", "2.5", "nan", '"text"', "[]", "[[1]]", "{}", "{a = 1}", "1979-05-27", "1e400",
              "9" * 400]
    entries = [line for line in WHOLE.splitlines() if "=" in line]
    outcomes = []
    assert len(entries) > 20
    for entry in entries:
        for other in others:
            try:
                outcomes.append(read(WHOLE.replace(f"{entry}\n", f"{entry.partition('=')[0]}= {other}\n", 1)))
            except UsageError as error:
                assert re.search(r"sweep\.toml: ", str(error))
    assert 0 < len(outcomes) < 40       # -1, 0 and 2.5 are values of some keys


# gone on with

def as_kept(sweep):
    return json.loads(json.dumps(sweep.record, allow_nan=False))


@pytest.mark.parametrize("old, new", [
    ("workload", "workload"), ("workload", "# with a comment\nworkload"), ("max = 1\n", "max = 1.0\n"),
    ("trials = 12", "trials = 14"), ("trials = 12", "trials = 12\nmax_draws = 50"), ("trials = 20", "trials = 30"),
    ("[512, 32, 2048]", "[512, 2048, 64]"), ('["nesterov", "sgd"]', '["nesterov"]'),
    ('["nesterov", "sgd"]', '["sgd", "nesterov", "adam"]\nrepeats = 2\nworkers_per_trial = 4'),
    ("max_local_batch = 512", "threads = 1"), ('decay = "linear"', 'decay = "linear"\ndata_dir = "/b"\ndevice = "cpu"'),
    ("trials = 20", "trials = 20\nmax_draws = 70"), ("[settings]", "[batch.32]\ntrials = 3\n[settings]")])
def test_the_same_sweep_and_more_of_it_may_be_asked(read, old, new):
    assert WHOLE.count(old) == 1
    check_same(as_kept(read(WHOLE)), read(WHOLE.replace(old, new)))


def test_a_batch_or_an_optimizer_that_joins_may_bring_its_own_tables(read):
    then = SMALL + LR
    joined = then.replace("[4, 16, 64]", "[4, 16, 128]")
    joined = joined.replace('optimizer = "sgd"', 'optimizers = ["sgd", "nesterov"]')
    joined += "[space.momentum]\nvalues = [0.9]\n[settings]\nlr_in_velocity = true\n[batch.128]\nsteps = 50\n"
    joined += "[batch.128.space.lr]\nmax = 5\n"
    check_same(as_kept(read(then)), read(joined))
    check_same(as_kept(read(joined)), read(then))
    with pytest.raises(UsageError, match="batch.16.steps was not set, is now 50"):
        check_same(as_kept(read(then)), read(joined.replace("[batch.128]", "[batch.16]")))
