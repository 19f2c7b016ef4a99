"""The file of tuned metaparameters: what it may hold, and messages that name the file and what is wrong in it."""
import pytest

from hvdscale.errors import PlanError, UsageError
from hvdscale.plan.metaparameters import tuned_for
from tests.factories.plans import DEFAULTS, settled


@pytest.fixture
def written(tmp_path):
    def written(content):
        (tmp_path / "tuned.toml").write_text(content)
        return tmp_path / "tuned.toml"
    return written


def test_a_batchs_table_is_its_metaparameters(written):
    path = written("[global_batch.64]\nlr = 1\nmomentum = 0.9\n"
                   "[global_batch.128]\nlr = 2\noptimizer_args = {betas = [0.9, 0.9]}\n")
    assert tuned_for(path, "made/net", 64) == {"lr": 1.0, "momentum": 0.9}
    assert tuned_for(path, "made/net", 128) == {"lr": 2.0, "optimizer_args": {"betas": [0.9, 0.9]}}


def test_optimizer_and_model_arguments_are_tuned_and_evidence_ignored(written):
    path = written("workload = 'made/net'\n[global_batch.64]\noptimizer = 'sgd'\nlr = 1\nmodel_args = {dropout = 0.5}\n"
                   "[evidence.64]\ntrial = 7\nsteps = 400\n[evidence.64.position]\nlr = 0.5\n")
    assert tuned_for(path, "made/net", 64) == {"optimizer": "sgd", "lr": 1.0, "model_args": {"dropout": 0.5}}


@pytest.mark.parametrize("typed", [{}, {"optimizer": "adam"}])
def test_a_tuned_optimizer_and_its_keys_take_the_place_of_the_workloads_own(written, typed):
    path = written("[global_batch.64]\noptimizer = 'adam'\nlr = 0.002\nbeta2 = 0.99\nmodel_args = {dropout = 0.5}\n")
    defaults = DEFAULTS | {"optimizer": "nesterov", "momentum": 0.7, "model_args": {"dropout": 0.1, "width": 3}}
    plan = settled(defaults=defaults, global_batch=64, lr_rule="tuned", metaparameters=str(path), **typed)
    assert (plan.optimizer, plan.beta2, plan.momentum, plan.peak_lr) == ("adam", 0.99, None, 0.002)
    assert plan.model_args == {"dropout": 0.5, "width": 3}


def test_what_was_typed_of_the_models_arguments_wins_over_the_tuned(written):
    path = written("[global_batch.64]\nlr = 0.002\nmodel_args = {dropout = 0.5, norm = 'a'}\n")
    plan = settled(global_batch=64, lr_rule="tuned", metaparameters=str(path), model_args={"dropout": 0.0})
    assert plan.model_args == {"dropout": 0.0, "norm": "a"}


def test_a_tuned_ghost_batch_is_the_plans(written):
    path = written("[global_batch.64]\nlr = 0.002\nghost_batch = 16\n")
    assert settled(global_batch=64, lr_rule="tuned", metaparameters=str(path)).ghost_batch == 16
    assert settled(global_batch=64, lr_rule="tuned", metaparameters=str(path), ghost_batch="global").ghost_batch == 64


def test_another_optimizer_than_the_one_tuned_for_is_refused_naming_both(written):
    path = written("[global_batch.64]\noptimizer = 'nesterov'\nlr = 1\n")
    with pytest.raises(PlanError, match="--optimizer adam: what .*tuned.toml has for global batch 64 was tuned for "
                                        "nesterov; leave --optimizer out, or give a file tuned for adam"):
        settled(global_batch=64, lr_rule="tuned", metaparameters=str(path), optimizer="adam")


def test_code_named_by_metaparameters_runs_only_if_the_user_names_it_too(written):
    path = written("[global_batch.64]\noptimizer = 'stranger:Optimizer'\nlr = 1\n")
    with pytest.raises(PlanError, match="names the optimizer stranger:Optimizer, whose module would be imported, and "
                                        "run; if you know that code, give --optimizer stranger:Optimizer, too"):
        settled(global_batch=64, lr_rule="tuned", metaparameters=str(path))
    plan = settled(global_batch=64, lr_rule="tuned", metaparameters=str(path), optimizer="stranger:Optimizer")
    assert plan.optimizer == "stranger:Optimizer"


def test_an_entry_without_an_optimizer_serves_the_one_that_is_typed(written):
    path = written("[global_batch.64]\nlr = 1\n")
    assert settled(global_batch=64, lr_rule="tuned", metaparameters=str(path), optimizer="adam").optimizer == "adam"


@pytest.mark.parametrize("content, kind, said", [
    ("", UsageError, r"has no tables such as \[global_batch.256\]"),
    ("global_batch = 64", UsageError, "has no tables such as"),
    ("[global_batch]\n64 = 0.1", UsageError, "has no tables such as"),
    ("[global_batch.small]\nlr = 0.1", UsageError, "has no tables such as"),
    ("lr = = 3", UsageError, "is not TOML: .*line 1"),
    ("[global_batch.64]\nmomentum = 0.9", UsageError, r"\[global_batch.64\]: has no lr"),
    ("[global_batch.64]\nlr = 0.1\nseed = 3", UsageError, "seed cannot be tuned per batch; what can: .*momentum"),
    ("[global_batch.64]\nlr = 0.1\nmomentun = 3", UsageError, r"\[global_batch.64\]: momentun cannot be tuned"),
    ("workload = 'mnist/fc_1'\n[global_batch.64]\nlr = 0.1", PlanError,
     "was tuned for 'mnist/fc_1', not for 'made/net'"),
    ("[global_batch.8]\nlr = 1\n[global_batch.256]\nlr = 1\n[global_batch.16]\nlr = 1", PlanError,
     "tuned batches: 8, 16, 256. "),
])
def test_a_file_that_does_not_serve_is_named_with_the_reason(written, content, kind, said):
    with pytest.raises(kind, match=f"tuned.toml.*{said}|{said}.*tuned.toml"):
        tuned_for(written(content), "made/net", 64)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UsageError, match="none.toml: cannot be read: No such file"):
        tuned_for(tmp_path / "none.toml", "made/net", 64)


@pytest.mark.parametrize("keys, said", [
    ("lr = -1", "lr = -1.0 must be above 0"), ("lr = 'a'", "lr = 'a' is not a number"),
    ("lr = 1\nwarmup_steps = 1\nwarmup_epochs = 1", "warmup_steps = 1 and warmup_epochs = 1 are alternatives")])
def test_a_value_that_its_key_does_not_take_is_named_with_the_file(written, keys, said):
    with pytest.raises(UsageError, match=rf"tuned.toml: \[global_batch.64\]: {said}"):
        tuned_for(written(f"[global_batch.64]\n{keys}\n"), "made/net", 64)
