"""Studies as columns, held against a loop over trials."""
import numpy as np
import pytest

from hvdscale.analysis import studies as module
from hvdscale.analysis.steps import RunToTarget
from hvdscale.analysis.studies import best_metric, outcomes, studies_of
from hvdscale.analysis.trials import read_trials
from hvdscale.errors import LogError
from hvdscale.log import reader
from hvdscale.log.reader import read_log
from hvdscale.log.schema import Status
from hvdscale.target import Target
from tests.factories.logs import log, save, trial
from tests.factories.studies import drawn, studied

TARGETS = [Target.parse(f"val/error{written}") for written in ("<0.4", "<=0.4", ">0.6", "<0", ">=0")]


def made_trial(random, number, **changes):
    """Values with many ties; some are NaN, some trials were never evaluated, some start beyond step 0."""
    count = int(random.integers(0, 12))
    steps = int(random.integers(0, 3)) + np.cumsum(random.integers(1, 4, count))
    error = random.choice([0.2, 0.4, 0.5, 0.6, np.nan], count)
    status = Status(int(random.integers(0, 4)))
    return trial(number, steps, error, status=status, seed=number, **changes)


def made_logs(seed, count=2):
    """Logs of two workloads at two batches each, their trials' evaluations interleaved, ids in no order."""
    random = np.random.default_rng(seed)
    logs = []
    for at in range(count):
        ids = random.permutation(40)
        logs.append(log(*[made_trial(random, int(number), batch=int(random.choice([32, 64])),
                                     model=str(random.choice(["net", "deep"]))) for number in ids], path=f"{at}.h5"))
    return logs


def in_order_of_trials(made, order=None):
    """The same log with the rows of each trial together, as those of one writer lie, or in another order."""
    order = np.lexsort((made.evaluations["step"], made.evaluations["trial"])) if order is None else order
    for name, values in made.evaluations.items():
        made.evaluations[name] = values[order]
    return made


def shuffled(made):
    return in_order_of_trials(made, np.random.default_rng(0).permutation(made.evaluations.rows))


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """The logs as files."""
    folder = tmp_path_factory.mktemp("logs")
    return [save(in_order_of_trials(made), folder / made.path) for made in made_logs(1)]


@pytest.fixture(params=["interleaved", "together", "shuffled", "files"])
def logs(request, paths, monkeypatch):
    for name, value in (("BLOCK_ROWS", 7), ("GAP_ROWS", 3), ("KEPT_BYTES", 1000), ("KEPT_COLUMNS", 1)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(reader, "SMALL", 0)
    if request.param == "files":                # read by rows
        with read_log(paths[0]) as first, read_log(paths[1]) as second:
            yield [first, second]
        return
    yield [{"interleaved": lambda one: one, "together": in_order_of_trials, "shuffled": shuffled}[request.param](one)
           for one in made_logs(1)]


def with_trials(logs):
    """Each study with its trials one by one, as read_trials gives them."""
    trials = {one.key: one for each in logs for one in read_trials(each)}
    return [(study, [trials[study.key(at)] for at in range(len(study))]) for study in studies_of(logs)]


def test_a_study_has_the_trials_of_one_workload_at_one_batch_by_log_and_id(logs):
    every = [one.key for each in logs for one in read_trials(each)]
    found = []
    for study, trials in with_trials(logs):
        assert {(one.workload, one.global_batch) for one in trials} == {(study.workload, study.global_batch)}
        assert [one.key for one in trials] == sorted(one.key for one in trials)
        for name in ("id", "status", "pruned", "seed"):
            assert getattr(study, name).tolist() == [getattr(one, name) for one in trials]
        found += [one.key for one in trials]
    assert sorted(found) == sorted(every)
    order = [(study.workload, study.global_batch) for study in studies_of(logs)]
    assert order == sorted(order) and len(set(order)) == len(order)


def test_columns_lie_trial_after_trial_in_order_of_steps(logs):
    for study, trials in with_trials(logs):
        first = study.evaluations.first
        for name, of_trial in (("step", lambda one: one.step), ("train_seconds", lambda one: one.train_seconds),
                               ("val/error", lambda one: one.metrics["val/error"])):
            values = study.evaluations.read(name)
            assert values.dtype == np.float64 and len(values) == first[-1]
            for at, one in enumerate(trials):
                np.testing.assert_array_equal(values[first[at]:first[at + 1]], of_trial(one))


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_outcomes_are_those_of_each_trial(logs, target):
    for study, trials in with_trials(logs):
        found = outcomes(study, target)
        for at, one in enumerate(trials):
            run = RunToTarget(one, target)
            assert found.steps[at] == run.steps and found.met[at] == run.met
            measured = [step for step, value in zip(one.step, one.metrics["val/error"]) if value == value]
            last = measured[-1] if measured else np.nan
            earlier = [step for step in measured if step < run.steps] or [0 if run.steps == 0 else np.nan]
            before = earlier[-1] if run.met else np.nan
            np.testing.assert_equal([found.last_step[at], run.last_step], [last, last])
            np.testing.assert_equal(found.before[at], before)
            np.testing.assert_equal(run.steps_before, before if run.met else run.steps)


def test_what_a_search_did_is_told_from_its_plans():
    trials = [drawn(0, 300), drawn(1, pruned=200), drawn(2, diverged=True), drawn(3, failed=True),
              drawn(0, 400, repeat=1)]
    study, = studies_of([studied(*trials)])
    assert study.pruned.tolist() == [False, True, False, False, False]
    assert study.feasible.tolist() == [True, True, False, False, True]
    assert study.infeasible.tolist() == [False, False, True, False, False]
    assert study.repeat.tolist() == [False] * 4 + [True]


def test_seconds_with_changed_worker_counts_count_as_unmeasured():
    study, = studies_of([log(trial(0), trial(1, worker_counts=(2, 4)), trial(2, worker_counts=(2, 2)))])
    met = outcomes(study, Target.parse("val/error<0.2")).row
    np.testing.assert_allclose(study.evaluations.read("train_seconds")[met], [2.0, np.nan, 2.0])


def test_a_metric_missing_from_one_of_two_logs_is_nan_there():
    study, = studies_of([log(trial(0), path="a.h5"), log(trial(0), path="b.h5", metric="test/error")])
    assert study.evaluations.columns == ("val/error", "test/error")
    assert np.isnan(study.evaluations.read("val/error")).tolist() == [False] * 3 + [True] * 3
    with pytest.raises(KeyError, match="train/error; there are val/error, test/error"):
        study.evaluations.read("train/error")


def test_metaparameters_that_a_log_lacks_are_nan():
    more = log(trial(1, peak_lr=0.5), path="b.h5")
    more.trials["metaparameters/momentum"] = np.array([0.9])
    study, = studies_of([log(trial(0), path="a.h5"), more])
    np.testing.assert_array_equal(study.metaparameters["learning_rate"], [0.1, 0.5])
    np.testing.assert_array_equal(study.metaparameters["momentum"], [np.nan, 0.9])


def test_without_trials_there_is_no_study_and_without_evaluations_none_meets():
    assert studies_of([log()]) == studies_of([]) == ()
    study, = studies_of([log(trial(0, (), ()))])
    found = outcomes(study, Target.parse("val/error<1"))
    assert found.steps.tolist() == [np.inf] and np.isnan(found.last_step).all()
    assert np.isnan(best_metric(study, "val/error", True)).all()


def test_evaluations_of_a_trial_that_is_not_there_are_passed_over():
    made = log(trial(0), trial(1), trial(2))
    for name, values in made.trials.items():
        made.trials[name] = values[:2]
    study, = studies_of([made])
    assert study.evaluations.read("step").tolist() == [0, 100, 200] * 2


def test_only_the_rows_of_a_study_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "SMALL", 0)
    monkeypatch.setattr(module, "GAP_ROWS", 10)
    far = [trial(number, range(100), [0.5] * 100, batch=batch) for number, batch in enumerate([32, 64, 32])]
    with read_log(save(in_order_of_trials(log(*far)), tmp_path / "log.h5")) as made:
        study, _ = studies_of([made])
        rows = []
        read = made.evaluations.read
        monkeypatch.setattr(made.evaluations, "read", lambda *asked: rows.append(asked) or read(*asked))
        study.evaluations.read("step")
        assert set(rows) == {("step", 0, 100), ("step", 200, 300)}
        rows.clear()
        study.evaluations.read("step")
        assert not rows


def test_each_plan_is_parsed_once(monkeypatch):
    parsed = []
    monkeypatch.setattr(module, "plan_at", lambda path, number, text: parsed.append(text) or {})
    studies_of([log(*[trial(number, plan=f'{{"problem": {{"train_examples": {number % 2}}}}}')
                      for number in range(6)])])
    assert len(parsed) == 2


def test_a_trial_with_a_step_twice_is_named():
    study, = studies_of([log(trial(0)), log(trial(3, (0, 100, 100), (0.9, 0.5, 0.5)), path="twice.h5")])
    with pytest.raises(LogError, match="twice.h5: trial 3: evaluations/step is 100 twice"):
        study.evaluations.read("val/error")


def test_two_trials_of_one_id_are_named(worded):
    with worded.error(LogError):
        read_trials(log(trial(4), trial(5), trial(4)))
