"""The file of tuned metaparameters: what it may hold, and messages that name the file and what is wrong in it."""
import pytest

from hvdscale.errors import PlanError, UsageError
from hvdscale.plan.settings import tuned_for
from tests.factories.plans import DEFAULTS, settled
from tests.wording import answered


@pytest.fixture
def written(tmp_path):
    def written(content):
        (tmp_path / "tuned.toml").write_text(content)
        return tmp_path / "tuned.toml"
    return written


def test_a_batchs_table_is_its_metaparameters_and_evidence_is_ignored(written):
    path = written("workload = 'made/net'\n[global_batch.64]\noptimizer = 'sgd'\nlr = 1\nmodel_args = {dropout = 0.5}\n"
                   "[evidence.64]\ntrial = 7\nsteps = 400\n[evidence.64.position]\nlr = 0.5\n"
                   "[global_batch.128]\nlr = 2\noptimizer_args = {betas = [0.9, 0.9]}\n")
    assert tuned_for(path, "made/net", 64) == {"optimizer": "sgd", "lr": 1.0, "model_args": {"dropout": 0.5}}
    assert tuned_for(path, "made/net", 128) == {"lr": 2.0, "optimizer_args": {"betas": [0.9, 0.9]}}


@pytest.mark.parametrize("typed", [{}, {"optimizer": "adam"}])
def test_a_tuned_optimizer_and_its_keys_take_the_place_of_the_workloads_own(written, typed):
    path = written("[global_batch.64]\noptimizer = 'adam'\nlr = 0.002\nbeta2 = 0.99\nmodel_args = {dropout = 0.5}\n")
    defaults = DEFAULTS | {"optimizer": "nesterov", "momentum": 0.7, "model_args": {"dropout": 0.1, "width": 3}}
    plan = settled(defaults=defaults, global_batch=64, lr_rule="tuned", metaparameters=str(path), **typed)
    assert (plan.optimizer, plan.beta2, plan.momentum, plan.peak_lr) == ("adam", 0.99, None, 0.002)
    assert plan.model_args == {"dropout": 0.5, "width": 3}


def test_what_was_typed_wins_over_the_tuned_model_arguments_ghost_batch_and_optimizer(written):
    path = written("[global_batch.64]\nlr = 0.002\nmodel_args = {dropout = 0.5, norm = 'a'}\n")
    plan = settled(global_batch=64, lr_rule="tuned", metaparameters=str(path), model_args={"dropout": 0.0})
    assert plan.model_args == {"dropout": 0.0, "norm": "a"}
    path = written("[global_batch.64]\nlr = 0.002\nghost_batch = 16\n")
    assert settled(global_batch=64, lr_rule="tuned", metaparameters=str(path)).ghost_batch == 16
    assert settled(global_batch=64, lr_rule="tuned", metaparameters=str(path), ghost_batch="global").ghost_batch == 64
    path = written("[global_batch.64]\nlr = 1\n")
    assert settled(global_batch=64, lr_rule="tuned", metaparameters=str(path), optimizer="adam").optimizer == "adam"


def test_code_named_by_metaparameters_runs_only_if_the_user_names_it_too(written):
    path = written("[global_batch.64]\noptimizer = 'stranger:Optimizer'\nlr = 1\n")
    plan = settled(global_batch=64, lr_rule="tuned", metaparameters=str(path), optimizer="stranger:Optimizer")
    assert plan.optimizer == "stranger:Optimizer"


def test_a_file_that_does_not_serve_is_named_with_the_reason(written, golden, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def said(content, *optimizer):
        written(content)
        typed = {"optimizer": name for name in optimizer if name}
        with pytest.raises((PlanError, UsageError)) as raised:
            if not optimizer:
                tuned_for("tuned.toml", "made/net", 64)
            settled(global_batch=64, lr_rule="tuned", metaparameters="tuned.toml", **typed)
        return f"{type(raised.value).__name__}: {raised.value}"
    golden("tuned", answered("tuned", lambda content: eval(f"said({content})", {"said": said})))
