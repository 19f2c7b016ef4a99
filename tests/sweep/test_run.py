"""Sweeps of the quadratic bowl, in one process: what they find, what costs a trial alone, how they go on."""
import gc
import json
import math
import shutil
import weakref

import pytest

from hvdscale.analysis.trials import read_trials
from hvdscale.errors import PlanError, TrialsError, UsageError
from hvdscale.log.check import check
from hvdscale.log.reader import read_log
from hvdscale.plan.settings import read_toml
from hvdscale.sweep.ledger import Ledger, Owner
from hvdscale.sweep.run import report_status, take_back_failed
from tests.parallel import quadratic
from tests.parallel.sweeps import asked, assert_same_sweep, carry_out, search_in, steps_in, studies_in, sweep_file
from tests.factories.sweeps import assert_same_study

WIDTHS = "[space.'model_args.width']\nvalues = {}\n"


def with_more(sweep, text):
    sweep.write_text(sweep.read_text() + text)
    return sweep


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    assert carry_out(sweep_file(folder, high="0.4", repeats=1), folder / "out")[0] == 0
    return folder / "out"


def test_batch_sizes_in_turn_find_the_same_and_tuned_toml_has_all(tmp_path, alone):
    sweep = sweep_file(tmp_path, high="0.4", repeats=1)
    for batch in ("64", "16"):
        code, printed = carry_out(sweep, tmp_path / "out", only={"batch": [batch]})
        assert code == 0 and "not done" not in printed
    assert_same_sweep(tmp_path / "out", alone)
    assert read_toml(tmp_path / "out/tuned.toml") == read_toml(alone / "tuned.toml")
    assert list(read_toml(alone / "tuned.toml")["global_batch"]) == ["16", "64"]


def test_the_studies_logs_and_the_status_say_what_was_searched(alone, capsys):
    report_status(asked(sweep_file(alone.parent, high="0.4", repeats=1), alone))
    printed = capsys.readouterr().out
    assert all(f"{study}  6 of 6 feasible" in printed for study in studies_in(alone)) and "tuned.toml" in printed
    for study in studies_in(alone):
        check(alone / f"{study}.h5")
        with read_log(alone / f"{study}.h5") as log:
            said = [json.loads(plan)["sweep"] for plan in log.trials["plan"]]
            assert log.steps.rows == 0 and set(log.evaluations["trial"]) == set(log.trials["id"])
        assert [one["draw"] for one in said if not one["repeat"]] == list(range(6))
        assert [one["repeat"] for one in said][-1] == 1


def test_trials_on_a_busy_host_are_marked_though_no_step_is_logged(tmp_path, monkeypatch):
    monkeypatch.setattr("hvdscale.system.cores.CoreClock.look", lambda self: (0.4, 0.8))
    assert carry_out(sweep_file(tmp_path, batch_sizes="[16]"), tmp_path / "out")[0] == 0
    with read_log(tmp_path / f"out/{studies_in(tmp_path / 'out')[0]}.h5") as log:
        assert [trial.without_core for trial in read_trials(log)] == [pytest.approx(0.4)] * len(log.trials["id"])


THIRTY = dict(trials=10, batch_sizes="[2, 4, 6, 8, 12, 16, 24, 32, 48, 64]", steps=40, evaluations=20)


@pytest.mark.parametrize("keep, optimizers, said", [
    (2, '["sgd", "nesterov"]', {}), pytest.param(3, '["sgd", "nesterov", "adam"]', THIRTY, marks=pytest.mark.slow)])
def test_the_fewest_steps_are_the_same_with_pruning_and_without(tmp_path, keep, optimizers, said):
    """Over the draws of both."""
    saved = []
    for prune in ("true", "false"):
        sweep = sweep_file(tmp_path, prune=prune, prune_keep=keep, optimizer=None, optimizers=optimizers, **said)
        assert carry_out(sweep, tmp_path / prune)[0] == 0
    names = studies_in(tmp_path / "true")
    assert names == studies_in(tmp_path / "false") and len(names) == (30 if said else 4)
    for study in names:
        pruned, whole = (steps_in(tmp_path / prune, study) for prune in ("true", "false"))
        both = min(len(pruned), len(whole))
        fewest, wanted = (sorted(steps for *_, steps in each[:both])[:keep] for each in (pruned, whole))
        assert fewest == wanted
        saved.append(search_in(tmp_path / "true", study).saved_steps)
    assert sum(steps > 0 for steps in saved) > (15 if said else 0)


def steps_of_sgd(lr, target, every, budget):
    """Closed form, at the whole data set: evaluations are every so many steps."""
    for step in range(0, budget + 1, every):
        loss = sum(0.5 * h * (1 - lr * h) ** (2 * step) for h in quadratic.CURVATURES)
        if loss < target:
            return step
    return math.inf


def test_the_known_optimum_is_found_and_a_bound_that_cuts_it_off_is_flagged(tmp_path):
    said = dict(batch_sizes="[64]", trials=16, steps=40, evaluations=40)
    carry_out(sweep_file(tmp_path, high="0.4", **said), tmp_path / "wide")
    wide = search_in(tmp_path / "wide", "sgd-b64")
    assert [draw.value for draw in wide.draws if draw.kind == "met"] == [
        steps_of_sgd(draw.point["lr"], 0.001, 1, 40) for draw in wide.draws if draw.kind == "met"]
    best = min(steps_of_sgd(lr / 1000, 0.001, 1, 40) for lr in range(20, 400))       # near 2 / (1 + 10)
    assert best <= wide.best.value <= best + 2
    assert not any(bound.near for bound in wide.bounds)
    _, printed = carry_out(sweep_file(tmp_path, high="0.1", **{**said, "trials": 32}), tmp_path / "cut")
    cut = search_in(tmp_path / "cut", "sgd-b64")
    assert cut.best.value > wide.best.value and [bound.parameter.name for bound in cut.bounds if bound.near] == ["lr"]
    assert "from the upper bound" in printed


def test_another_objective_is_the_best_value_within_the_budget(tmp_path):
    sweep = sweep_file(tmp_path, objective="'val/loss'", prune_keep=None, targets=None, batch_sizes="[64]", high="0.4",
                       trials=10)
    carry_out(sweep, tmp_path / "out")
    search = search_in(tmp_path / "out", "sgd-b64")
    finals = {draw.number: sum(0.5 * h * (1 - draw.point["lr"] * h) ** 96 for h in quadratic.CURVATURES)
              for draw in search.draws}
    assert search.best.number == min(finals, key=finals.get)
    assert all(draw.kind == "budget" for draw in search.draws)
    assert search.best.value == pytest.approx(finals[search.best.number], rel=1e-9)
    tuned = read_toml(tmp_path / "out/tuned.toml")
    assert tuned["evidence"]["64"]["objective"] == "val/loss"


def test_what_another_job_runs_is_not_waited_for(tmp_path):
    sweep, out = sweep_file(tmp_path, batch_sizes="[64]", trials=2, prune="false", high="0.4"), tmp_path / "out"
    out.mkdir()
    other = Owner.take(str(out), job="another")
    Ledger(str(out)).claim("sgd-b64", 0, other)
    assert "not done" in carry_out(sweep, out)[1]
    other.release()
    assert carry_out(sweep, out)[0] == 0 and len(search_in(out, "sgd-b64").draws) == 2


def test_a_budget_in_seconds_ends_by_the_clock(tmp_path):
    sweep = sweep_file(tmp_path, "seconds.toml", "eval_every = 5\nmodel_args = {slow = 0.01}", steps=None, seconds=0.3,
                       evaluations=None, batch_sizes="[64]", trials=2, prune="false", high="0.03")
    carry_out(sweep, tmp_path / "out")
    with read_log(tmp_path / "out/sgd-b64.h5") as log:
        assert all("budget of 0.3 s spent" in reason for reason in log.trials["stop_reason"])


def test_a_trial_that_fails_costs_only_itself(tmp_path):
    sweep = with_more(sweep_file(tmp_path, batch_sizes="[64]"), WIDTHS.format("[1, 2, 3]"))     # 3 cannot be built
    code, printed = carry_out(sweep, tmp_path / "out")
    search = search_in(tmp_path / "out", "sgd-b64")
    assert code == 0 and len(search.feasible) == 6 and len(search.draws) > 6
    assert "failed" in printed
    assert all(draw.kind == "failed" for draw in search.draws if not draw.feasible)


def test_no_more_trials_start_after_all_fail_alike(tmp_path, monkeypatch, capsys):
    sweep, out = sweep_file(tmp_path, batch_sizes="[64]", trials=8), tmp_path / "out"
    with monkeypatch.context() as broken:
        broken.setattr(quadratic, "Bowl", lambda **_: 1 / 0)
        for _ in range(2):
            with pytest.raises(TrialsError, match="(?s)sgd-b64: all of its 5 trials .* division by zero.*--retry"):
                carry_out(sweep, out)
    take_back_failed(asked(sweep, out))
    assert "sgd-b64: taken back: 0, 1, 2, 3, 4" in capsys.readouterr().out
    assert carry_out(sweep, out)[0] == 0
    carry_out(sweep, tmp_path / "whole")
    assert_same_study(out / "sgd-b64.h5", tmp_path / "whole/sgd-b64.h5")
    owner = Owner.take(str(out))
    with pytest.raises(UsageError, match=f"--retry: process {owner.pid} on .* is at work"):
        take_back_failed(asked(sweep, out))
    owner.release()


def test_what_would_fail_in_every_trial_is_an_error_and_no_trials_own_failure(tmp_path, worded):
    sweep = sweep_file(tmp_path, batch_sizes="[64]")
    with worded.error(PlanError):
        carry_out(sweep, tmp_path / "out", free={"loader_workers": 1})
    assert not list((tmp_path / "out").glob("trials/*/*.json"))
    assert carry_out(sweep, tmp_path / "out")[0] == 0


def test_tables_that_one_optimizer_alone_has_are_searched_beside_others(tmp_path):
    more = "[space.'optimizer_args.alpha']\nmin = 0.9\nmax = 0.99\n"
    sweep = with_more(sweep_file(tmp_path, optimizer=None, optimizers='["sgd", "torch.optim:RMSprop"]', trials=3,
                                 batch_sizes="[64]", low="0.005", high="0.05", targets="['val/loss<0.1']"), more)
    carry_out(sweep, tmp_path / "out")
    assert studies_in(tmp_path / "out") == ["sgd-b64", "torch.optim-RMSprop-b64"]
    with read_log(tmp_path / "out/torch.optim-RMSprop-b64.h5") as log:
        assert all(0.9 <= alpha <= 0.99 for alpha in log.trials["metaparameters/optimizer_args.alpha"])
    best = read_toml(tmp_path / "out/tuned-torch.optim-RMSprop.toml")["global_batch"]["64"]
    assert best["optimizer"] == "torch.optim:RMSprop" and 0.9 <= best["optimizer_args"]["alpha"] <= 0.99


@pytest.mark.parametrize("trials", [9, 3])
def test_a_sweep_grows_and_shrinks_along_the_same_draws(tmp_path, alone, trials):
    shutil.copytree(alone, tmp_path / "out")
    carry_out(sweep_file(tmp_path, high="0.4", repeats=1, trials=trials), tmp_path / "out")
    before, after = (steps_in(path, "sgd-b16") for path in (alone, tmp_path / "out"))
    fewer = min(len(before), len(after))
    search = search_in(tmp_path / "out", "sgd-b16")
    assert len(search.feasible) == search.wanted == trials and search.done
    assert before[:fewer] == after[:fewer]


@pytest.mark.parametrize("mend, said", [
    (dict(steps=40), "steps was 48, is now 40"), (dict(high="0.6"), "space.lr.max was 0.4, is now 0.6")])
def test_a_sweep_does_not_become_another(tmp_path, alone, mend, said):
    shutil.copytree(alone, tmp_path / "out")
    with pytest.raises(UsageError, match=said):
        carry_out(sweep_file(tmp_path, repeats=1, **{"high": "0.4", **mend}), tmp_path / "out")


def test_a_study_that_was_left_out_comes_back_as_it_was_or_not_at_all(tmp_path):
    own = "[batch.64]\nsteps = {}\n"
    carry_out(with_more(sweep_file(tmp_path, trials=2, high="0.4"), own.format(12)), tmp_path / "out")
    carry_out(sweep_file(tmp_path, trials=2, high="0.4", batch_sizes="[16]"), tmp_path / "out")
    with pytest.raises(UsageError, match="sgd-b64.json: budget_steps was 12, is now 40"):
        carry_out(with_more(sweep_file(tmp_path, trials=2, high="0.4"), own.format(40)), tmp_path / "out")
    assert carry_out(with_more(sweep_file(tmp_path, trials=2, high="0.4"), own.format(12)), tmp_path / "out")[0] == 0


def test_one_trial_after_another_takes_the_memory_of_one(tmp_path, monkeypatch):
    built, alive = [], []

    def remembered(self, **model_args):
        model = quadratic.Bowl(**model_args)
        alive.append(sum(other() is not None for other in built))
        built.append(weakref.ref(model.w))
        return model
    monkeypatch.setattr(quadratic.Quadratic, "build", remembered)
    gc.collect()
    gc.disable()                # it would come at some time: when, depends on the objects, not on their size
    try:
        carry_out(sweep_file(tmp_path, batch_sizes="[16]", trials=3), tmp_path / "out")
    finally:
        gc.enable()
    assert len(alive) >= 3 and max(alive) <= 1
