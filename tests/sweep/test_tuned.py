"""tuned.toml: that it reads as what the best trials had, whatever the names in it, and gives their plans again."""
import math
import os
import re
from dataclasses import asdict, replace

import pytest

from hvdscale.analysis.search import searches_of
from hvdscale.analysis.trials import read_trials
from hvdscale.errors import LogError, PlanError
from hvdscale.plan.metaparameters import tuned_for
from hvdscale.plan.search_space import Parameter
from hvdscale.plan.settings import Settings, read_toml, tomllib
from hvdscale.plan.settle import Place, settle
from hvdscale.sweep.collect import tuned_toml, write_tuned
from tests.factories.plans import TRAIN, VAL, WORKLOAD
from tests.factories.studies import SPACE, drawn, studied

DEFAULTS = dict(local_batch=10, lr=0.1, base_batch=10, steps=100, momentum=0.8, weight_decay=1e-4,
                model_args={"width": 3})
COMMON = dict(global_batch=64, optimizer="nesterov", lr_rule="none", warmup="none", noise_every=0, lr=0.1 / 3, seed=11,
              target="val/error<0.1", eval_every=20)
BUDGET = {"steps": 400}


def plan_under(*layers, workload=WORKLOAD):
    return settle(Settings.build(DEFAULTS, *layers), workload, TRAIN, VAL, Place())


def tried(number=0, met=300, batch=64, workload=WORKLOAD, asked={}, budget=BUDGET, **changes):
    """A trial of a study whose plan is what the settings ``asked`` settle to."""
    typed = COMMON | {"global_batch": batch} | budget | asked
    settings = Settings.build(DEFAULTS, typed)
    plan = settle(settings, workload, TRAIN, VAL, Place())
    record = plan.as_record({"workload": "typed/name", **settings.asked()})
    point = changes.pop("point", {"lr": typed["lr"], "momentum": 0.99})
    return drawn(number, met, batch=batch, point=point, problem=record["problem"], asked=record["asked"], **changes)


def grown(schedule):
    """A trial of a study whose batch grows."""
    typed = {name: value for name, value in COMMON.items() if name != "global_batch"}
    settings = Settings.build(DEFAULTS, {**typed, **BUDGET, "batch_schedule": schedule, "batch_schedule_lr": "stay"})
    record = settle(settings, WORKLOAD, TRAIN, VAL, Place()).as_record({"workload": "typed/name", **settings.asked()})
    return drawn(0, 300, batch=schedule[-1][1], point={"lr": typed["lr"]}, problem=record["problem"],
                 asked=record["asked"])


def searches(*trials):
    """Those of trials in one log a batch."""
    by_batch = {}
    for one in trials:
        by_batch.setdefault(one.row["global_batch"], []).append(one)
    return searches_of([trial for batch, found in by_batch.items()
                        for trial in read_trials(studied(*found, path=f"out/nesterov-b{batch}.h5"))])


def read(text):
    return tomllib.loads(text)


def test_what_was_tuned_over_a_growing_batch_is_found_at_its_first(tmp_path):
    schedule = [[0, 64], [20, 128]]
    write_tuned(tmp_path / "tuned.toml", searches(grown(schedule)))
    text = (tmp_path / "tuned.toml").read_text()
    assert [*read(text)["global_batch"]] == ["64"]
    again = read(f'x = {{{text.partition("set again: ")[2].splitlines()[0]}}}')["x"]
    used = plan_under({**again, "lr_rule": "tuned", "metaparameters": str(tmp_path / "tuned.toml")})
    assert used.peak_lr == COMMON["lr"] and str(used.batches) == "64, 128 from step 20"


@pytest.mark.parametrize("asked", [
    {"warmup": "gradual", "warmup_examples": 4000.0, "warmup_start_factor": 0.0},
    {"momentum": 1 - 1 / 3e3}, {"decay": "linear", "end_lr_factor": 1e-2 / 3}, {"decay": "cosine", "decay_steps": 333},
    {"decay": "linear", "decay_epochs": 2.5}, {"decay": "step", "decay_at_steps": [100, 200], "decay_factor": 0.3},
    {"warmup": "gradual", "warmup_steps": 40, "warmup_start_factor": 0.0},
    {"warmup": "constant", "warmup_epochs": 1.5, "warmup_start_factor": 0.25},
    {"label_smoothing": 0.01, "clip_norm": 1.5, "weight_decay": 0.0}, {"ghost_batch": 8}, {"ghost_batch": "global"},
    {"model_args": {"dropout": 0.1 + 0.2, "norm": "ours", "layers": [3, 4]}},
    {"optimizer": "sgd"}, {"optimizer": "adamw", "beta2": 0.99, "epsilon": 1e-6},
    {"optimizer": "momentum", "lr_in_velocity": True, "momentum_correction": False, "decay_norm_and_bias": True},
    {"optimizer": "torch.optim:RMSprop", "optimizer_args": {"alpha": 0.9, "centered": True}},
    {"lr_rule": "linear", "base_batch": 32},
    {"optimizer": "adamw", "decay_timescale": 7 / 3},
    {"optimizer": "adamw", "decay_timescale": 7 / 3, "lr_rule": "sqrt", "base_batch": 16},
    {"momentum_half_life": 1e3 / 3}, {"optimizer": "adamw", "beta1_half_life": 300.0, "beta2_half_life": 1e5 / 3},
    {"optimizer": "adamw", "lr_rule": "adam_sqrt", "base_batch": 16, "beta1": 0.95},
    {"optimizer": "adam", "lr_rule": "adam_sqrt:beta2", "base_batch": 4, "beta1": 0.95}], ids=str)
@pytest.mark.parametrize("budget", [{"steps": 400}, {"epochs": 40.0}], ids=str)
def test_the_tuned_rule_gives_the_plan_of_the_trial_that_it_was_tuned_by(tmp_path, asked, budget):
    write_tuned(tmp_path / "tuned.toml", searches(tried(asked=asked, budget=budget)))
    used = plan_under({"global_batch": 64, "lr_rule": "tuned", "metaparameters": str(tmp_path / "tuned.toml"), **budget,
                       "target": "val/error<0.1", "eval_every": 20, "noise_every": 0, "seed": 11})
    expected = plan_under(COMMON | budget | asked)
    same = dict.fromkeys(("lr_rule", "base_lr", "base_batch", "lr_factor"))
    assert asdict(replace(used, **same)) == asdict(replace(expected, **same))
    assert used.base_lr == used.peak_lr == expected.peak_lr and used.base_batch == 64 and used.lr_factor == 1


def test_a_half_life_that_was_searched_is_kept_with_its_unit():
    [found] = searches(tried(asked={"optimizer": "adam", "beta2_half_life": 1e4}, point={"beta2_half_life": 1e4}))
    text = tuned_toml([found])
    assert read(text)["global_batch"]["64"] == {"optimizer": "adam", "lr": 0.1 / 3, "beta2_half_life": 1e4,
                                                "warmup": "none"}
    assert re.search("beta2_half_life = 10000.0 +# examples", text)


def test_a_decay_over_the_trials_budget_ends_there_under_another_budget(tmp_path):
    write_tuned(tmp_path / "tuned.toml", searches(tried(asked={"decay": "linear"})))
    tuned = {"global_batch": 64, "lr_rule": "tuned", "metaparameters": str(tmp_path / "tuned.toml"), "steps": 1000}
    assert plan_under(tuned).decay_steps == 400
    assert plan_under({**tuned, "decay_steps": 900}).decay_steps == 900
    assert plan_under({**tuned, "decay": "constant"}).decay_steps == 0


def test_the_evidence_tells_trial_steps_interval_and_where_in_the_space():
    found = searches(tried(0, 900), tried(1, 600, asked={"lr": 0.99}), tried(2, diverged=True), tried(3, math.inf),
                     tried(1, 700, repeat=1, asked={"lr": 0.99}), tried(1, math.inf, repeat=2, asked={"lr": 0.99}))
    content = read(tuned_toml(found, "out"))
    told = content["evidence"]["64"]
    assert content["global_batch"]["64"]["lr"] == 0.99
    assert told.pop("position") == {"lr": pytest.approx(1 + math.log10(0.99) / 3), "momentum": pytest.approx(0.5)}
    assert told == {"study": "nesterov-b64", "log": "nesterov-b64.h5", "trial": 1, "target": "val/error<0.1",
                    "steps": 600, "steps_before": 500, "repeat_steps": [700.0, math.inf], "feasible": 3, "draws": 4,
                    "diverged_share": 0.25, "finished": False, "near_bounds": ["lr"]}
    assert "repeat_steps = [nan]" in tuned_toml(searches(tried(0, 900), tried(0, diverged=True, repeat=1)))


def test_a_batch_that_met_no_target_has_no_entry_in_the_file(tmp_path):
    found = searches(tried(0, 900, batch=32), tried(0, math.inf), tried(1, diverged=True))
    write_tuned(tmp_path / "tuned.toml", found)
    text = (tmp_path / "tuned.toml").read_text()
    assert "# [global_batch.64]: nesterov-b64: 1 feasible of 2 drawn, none of which met val/error<0.1" in text
    with pytest.raises(PlanError, match="no metaparameters at global batch 64 in .*tuned batches: 32"):
        tuned_for(tmp_path / "tuned.toml", "made/net", 64)
    write_tuned(tmp_path / "none.toml", searches(tried(0, math.inf)))
    with pytest.raises(PlanError, match="tuned batches: none"):
        tuned_for(tmp_path / "none.toml", "made/net", 64)


def test_of_several_optimizers_the_best_at_each_batch_is_taken():
    slow, fast = [searches(tried(0, met, asked={"optimizer": name}, optimizer=name))[0]
                  for name, met in (("sgd", 900), ("nesterov", 500))]
    for order in ([slow, fast], [fast, slow]):
        assert read(tuned_toml(order))["global_batch"]["64"]["optimizer"] == "nesterov"
    [tied] = searches(tried(0, 500, asked={"optimizer": "sgd"}, optimizer="sgd"))
    assert read(tuned_toml([tied, fast]))["global_batch"]["64"]["optimizer"] == "sgd"


def test_of_a_metric_to_be_large_the_largest_is_best():
    sweep = {"objective": "val/error", "minimizes": False, "targets": [], "prune_keep": None}
    small, large = [searches(tried(0, met, asked={"optimizer": name}, optimizer=name, sweep=sweep, easier=easier))[0]
                    for name, met, easier in (("sgd", math.inf, 200), ("nesterov", 400, 300))]
    small.best.value = 0.1
    content = read(tuned_toml([small, large]))
    assert content["global_batch"]["64"]["optimizer"] == "nesterov"
    assert content["evidence"]["64"]["objective"] == "val/error" and content["evidence"]["64"]["value"] == 0.5


def test_settings_that_no_table_may_set_are_named_to_be_said_again():
    text = tuned_toml(searches(tried(asked={"precision": "bf16", "last_batch": "drop"})))
    assert 'must be set again: last_batch = "drop", precision = "bf16"' in text
    assert "precision" not in read(text)["global_batch"]["64"]


def test_the_text_is_the_same_whatever_the_order_of_batches():
    found = searches(tried(batch=32), tried(batch=128), tried(batch=64))
    assert tuned_toml(found) == tuned_toml(found[::-1])
    assert list(read(tuned_toml(found))["global_batch"]) == ["32", "64", "128"]


def test_the_file_is_whole_or_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "tuned.toml"
    write_tuned(path, searches(tried()))
    before = path.read_text()

    def full(*args):
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(LogError, match="tuned.toml: cannot be written: No space left"):
        write_tuned(path, searches(tried()))
    assert path.read_text() == before


def test_a_searched_argument_of_the_model_is_in_the_table(tmp_path):
    dropout = Parameter("model_args.dropout", "double", "linear", 0.0, 0.5)
    found = searches(tried(asked={"model_args": {"dropout": 0.125}}, space=(*SPACE, dropout),
                           point={"lr": 0.1 / 3, "momentum": 0.99, "model_args.dropout": 0.125}))
    write_tuned(tmp_path / "tuned.toml", found)
    assert tuned_for(tmp_path / "tuned.toml", "made/net", 64)["model_args"] == {"width": 3, "dropout": 0.125}
    assert read_toml(tmp_path / "tuned.toml")["evidence"]["64"]["position"]["model_args.dropout"] == 0.25
