"""hvdscale-tune in processes: any number of them, killed or not, finds the same."""
import math
import random
import signal
import time

import pytest

from hvdscale.config import read_toml
from hvdscale.log.reader import read_log
from tests.parallel import quadratic
from tests.parallel.sweeps import (TUNE, assert_same_sweep, kill_after, search_in, start, steps_in, studies_in,
                                   sweep_file, tune, until)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The sweep as one process carries it out."""
    import subprocess

    from tests.conftest import command_environment
    folder = tmp_path_factory.mktemp("alone")
    done = subprocess.run([*TUNE, str(sweep_file(folder, high="0.4", repeats=1)), "--out", str(folder / "out")],
                          env=command_environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "out", done.stdout


@pytest.mark.parametrize("ranks, workers", [pytest.param(2, 1, marks=pytest.mark.slow), (4, 1),
                                            pytest.param(2, 2, marks=pytest.mark.slow), (4, 2)])
def test_any_number_of_ranks_and_groups_finds_the_same(tmp_path, run, alone, ranks, workers):
    sweep = sweep_file(tmp_path, high="0.4", repeats=1, workers_per_trial=workers)
    tune(run, sweep, tmp_path / "out", ranks=ranks)
    split = ("trials/workers", "trials/local_batch", "restarts/workers") if workers > 1 else ()
    assert_same_sweep(tmp_path / "out", alone[0], split, 1e-9 if workers > 1 else 0)


def test_shards_in_turn_find_the_same(tmp_path, run, alone):
    sweep = sweep_file(tmp_path, high="0.4", repeats=1)
    for shard in ("2/3", "0/3", "1/3"):
        done = tune(run, sweep, tmp_path / "out", "--shard", shard)
    assert_same_sweep(tmp_path / "out", alone[0])
    assert "not done" not in done.stdout and "tuned.toml" in done.stdout


@pytest.mark.slow
def test_jobs_on_one_folder_at_a_time_share_the_work(tmp_path, alone):
    sweep = sweep_file(tmp_path, high="0.4", repeats=1)
    jobs = [start(sweep, tmp_path / "out", "--only", only) for only in ("batch=16", "batch=64", "optimizer=sgd")]
    printed = [job.communicate()[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0, 0], printed
    assert_same_sweep(tmp_path / "out", alone[0])
    claims = [path.name for path in (tmp_path / "out/trials").glob("*/*.claim-*")]
    assert claims and all(name.endswith("claim-1") for name in claims)      # none was run twice


def test_the_printed_lines_tell_plan_progress_and_what_was_found(alone):
    out, printed = alone
    assert "2 studies, each of 6 feasible trials" in printed
    assert "sweep: 14 of 14 trials done" in printed
    assert "sgd, B = 16: 6 feasible" in printed and "next: hvdscale-report" in printed


def sweep_with_kills(tmp_path, kills, chosen):
    sweep = sweep_file(tmp_path, settings="model_args = {slow = 0.004}", high="0.4", repeats=1)
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert start(sweep, whole).wait() == 0
    for _ in range(kills):
        kill_after(start(sweep, out), chosen.uniform(2.5, 8))
    last = start(sweep, out)
    printed = last.communicate()[0]
    assert last.returncode == 0, printed
    assert_same_sweep(out, whole, ("restarts/*",))


def test_killed_and_started_again_it_finds_the_same(tmp_path):
    sweep_with_kills(tmp_path, 1, random.Random(1))


@pytest.mark.slow
def test_killed_twenty_times_and_started_again_it_finds_the_same(tmp_path):
    sweep_with_kills(tmp_path, 20, random.Random(2))


def pruned_and_unpruned(tmp_path, run, keep, **said):
    """Of each study the fewest steps with pruning and without, over the draws of both, and what pruning saved."""
    for prune in ("true", "false"):
        tune(run, sweep_file(tmp_path, prune=prune, prune_keep=keep, **said), tmp_path / prune, timeout=1800)
    names = studies_in(tmp_path / "true")
    assert names == studies_in(tmp_path / "false")
    for study in names:
        pruned, whole = (steps_in(tmp_path / prune, study) for prune in ("true", "false"))
        both = min(len(pruned), len(whole))
        yield (sorted(steps for *_, steps in pruned[:both])[:keep], sorted(steps for *_, steps in whole[:both])[:keep],
               search_in(tmp_path / "true", study).saved_steps)


@pytest.mark.slow
def test_the_fewest_steps_are_the_same_with_pruning_and_without(tmp_path, run):
    found = list(pruned_and_unpruned(tmp_path, run, 2, optimizers='["sgd", "nesterov"]', optimizer=None))
    assert len(found) == 4
    assert all(pruned == whole for pruned, whole, _ in found)
    assert sum(saved for *_, saved in found) > 0


@pytest.mark.slow
def test_the_fewest_steps_of_thirty_studies_are_the_same_with_pruning_and_without(tmp_path, run):
    found = list(pruned_and_unpruned(
        tmp_path, run, 3, optimizers='["sgd", "nesterov", "adam"]', optimizer=None, trials=10,
        batch_sizes="[2, 4, 6, 8, 12, 16, 24, 32, 48, 64]", steps=40, evaluations=20))
    assert len(found) == 30
    assert all(pruned == whole for pruned, whole, _ in found)
    assert sum(saved > 0 for *_, saved in found) > 15


def steps_of_sgd(lr, target, every, budget):
    """Closed form, at the whole data set: evaluations are every so many steps."""
    for step in range(0, budget + 1, every):
        loss = sum(0.5 * h * (1 - lr * h) ** (2 * step) for h in quadratic.CURVATURES)
        if loss < target:
            return step
    return math.inf


def test_the_known_optimum_is_found_and_a_bound_that_cuts_it_off_is_flagged(tmp_path, run):
    said = dict(batch_sizes="[64]", trials=16, steps=40, evaluations=40)
    tune(run, sweep_file(tmp_path, high="0.4", **said), tmp_path / "wide")
    wide = search_in(tmp_path / "wide", "sgd-b64")
    assert [draw.value for draw in wide.draws if draw.kind == "met"] == [
        steps_of_sgd(draw.point["lr"], 0.001, 1, 40) for draw in wide.draws if draw.kind == "met"]
    best = min(steps_of_sgd(lr / 1000, 0.001, 1, 40) for lr in range(20, 400))       # near 2 / (1 + 10)
    assert best <= wide.best.value <= best + 2
    assert not any(bound.near for bound in wide.bounds)
    printed = tune(run, sweep_file(tmp_path, high="0.1", **{**said, "trials": 32}), tmp_path / "cut").stdout
    cut = search_in(tmp_path / "cut", "sgd-b64")
    assert cut.best.value > wide.best.value and [bound.parameter.name for bound in cut.bounds if bound.near] == ["lr"]
    assert "from the upper bound" in printed


def test_tuned_toml_gives_the_trial_again(tmp_path, run, alone):
    out, _ = alone
    tuned = read_toml(out / "tuned.toml")
    evidence = tuned["evidence"]["64"]
    done = run(*TUNE[:2], "hvdscale.cli.train", "tests.parallel.quadratic:workload", "--global-batch", 64, "--lr-rule",
               "tuned", "--metaparameters", out / "tuned.toml", "--steps", 48, "--eval-every", 2, "--target",
               "val/loss<0.001", "--seed", evidence["trial"], "--log", tmp_path / "again.h5")
    assert f"met at step {evidence['steps']}" in done.stdout
    done = run(*TUNE[:2], "hvdscale.cli.train", "tests.parallel.quadratic:workload", "--global-batch", 32, "--lr-rule",
               "tuned", "--metaparameters", out / "tuned.toml", check=False)
    assert done.returncode == 2 and "tuned batches: 16, 64" in done.stderr


def test_a_trial_that_fails_costs_only_itself(tmp_path, run):
    space = "[space.'model_args.width']\nvalues = [1, 2, 3]\n"      # 3 cannot be built
    sweep = sweep_file(tmp_path, batch_sizes="[64]")
    sweep.write_text(sweep.read_text() + space)
    done = tune(run, sweep, tmp_path / "out", ranks=2)
    search = search_in(tmp_path / "out", "sgd-b64")
    assert len(search.feasible) == 6 and len(search.draws) > 6
    assert "failed" in done.stdout
    assert all(draw.kind == "failed" for draw in search.draws if not draw.feasible)


@pytest.mark.slow
def test_a_trial_that_kills_its_process_is_given_up_and_the_others_are_not_harmed(tmp_path, run):
    space = "[space.'model_args.width']\nvalues = [1, 2]\n"
    sweep = sweep_file(tmp_path, batch_sizes="[64]", trials=3)
    sweep.write_text(sweep.read_text() + space)
    done = tune(run, sweep, tmp_path / "out", ranks=2, KILL_AT_WIDTH="2")
    search = search_in(tmp_path / "out", "sgd-b64")
    assert len(search.feasible) == 3 and len(search.draws) > 3
    assert "was killed by SIGKILL (out of memory?); another takes its place" in done.stderr + done.stdout
    assert "lost" in done.stdout


def test_a_signal_stops_the_trial_and_the_command_goes_on_with_it(tmp_path):
    sweep = sweep_file(tmp_path, batch_sizes="[64]", settings="model_args = {slow = 0.03}", high="0.4")
    whole, out = tmp_path / "whole", tmp_path / "out"
    other, first = start(sweep, whole), start(sweep, out)
    until(lambda: list(out.glob("trials/*/0.json")))
    time.sleep(0.5)                                             # in the steps of the second
    first.send_signal(signal.SIGTERM)
    printed = first.communicate()[0]
    assert first.returncode == 75 and "the same command goes on" in printed, printed
    assert not list(out.glob("owners/*")) and list(out.glob("trials/*/*.released-1"))
    assert list(out.glob("checkpoints/sgd-b64-*/step-*.pt"))
    assert [start(sweep, out).wait(), other.wait()] == [0, 0]
    assert_same_sweep(out, whole, ("restarts/*",))
    assert not list(out.glob("checkpoints/*"))
    with read_log(out / "sgd-b64.h5") as log:
        assert sum(log.restarts["first_step"] > 0) == 1


@pytest.mark.parametrize("mend, said", [
    (dict(trials=9), None),
    (dict(trials=3), None),
    (dict(steps=40), "steps was 48"),
    (dict(high="0.6"), "max was 0.4"),
])
def test_a_sweep_grows_or_shrinks_but_does_not_become_another(tmp_path, run, alone, mend, said):
    import shutil
    shutil.copytree(alone[0], tmp_path / "out")
    done = tune(run, sweep_file(tmp_path, repeats=1, **{"high": "0.4", **mend}), tmp_path / "out", check=False)
    if said:
        assert done.returncode == 2 and said in done.stderr, done.stderr
    else:
        assert done.returncode == 0, done.stderr
        before, after = (steps_in(path, "sgd-b16") for path in (alone[0], tmp_path / "out"))
        fewer = min(len(before), len(after))
        assert len(search_in(tmp_path / "out", "sgd-b16").feasible) == mend["trials"]
        assert before[:fewer] == after[:fewer]
