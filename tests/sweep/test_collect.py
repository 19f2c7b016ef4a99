"""The log of a study, made of its groups' logs: each trial as it would have gone in sequence."""
import json
import os
import threading

import numpy as np
import pytest
from click.testing import CliRunner

from hvdscale.cli.log import main as log_command
from hvdscale.errors import LogError
from hvdscale.log.check import check
from hvdscale.log.reader import read_log
from hvdscale.log.schema import Status
from hvdscale.sweep import collect as collecting
from hvdscale.sweep.collect import collect
from hvdscale.sweep.ledger import DrawResult
from hvdscale.system.lock import Lock
from tests.factories.sweeps import BUDGET, EVAL_EVERY, assert_same_study, error, group_log, loss

STUDY = "sgd-b32"


def whole(number, *pieces, stop_step=BUDGET, kind="budget", reason="budget reached"):
    return DrawResult(number, kind, reason, stop_step, pieces=pieces)


def collected(out, *chosen):
    """The path of the study's log, that log, checked."""
    path = collect(str(out), STUDY, lambda: chosen, {})
    return path, check(path)


def steps_of(log, trial):
    return [table["step"][table["trial"] == trial].tolist() for table in (log.evaluations, log.steps)]


def test_a_study_is_the_same_whatever_group_ran_its_trials(tmp_path):
    group_log(tmp_path / "one", "a", [(n, n, 0, BUDGET) for n in range(5)])
    group_log(tmp_path / "two", "a", [(0, 3, 0, BUDGET), (1, 77, 0, BUDGET), (2, 0, 0, BUDGET)])
    group_log(tmp_path / "two", "b", [(0, 4, 0, BUDGET), (1, 1, 0, BUDGET), (2, 99, 0, 20), (3, 2, 0, BUDGET)])
    one, log = collected(tmp_path / "one", *(whole(n, ("a.h5", n)) for n in range(5)))
    places = [("a.h5", 2), ("b.h5", 1), ("b.h5", 3), ("a.h5", 0), ("b.h5", 0)]
    two, other = collected(tmp_path / "two", *(whole(n, places[n]) for n in (3, 1, 4, 0, 2)))
    assert_same_study(one, two)
    assert log.trials["id"].tolist() == other.trials["id"].tolist() == [0, 1, 2, 3, 4]
    assert not np.array_equal(log.steps["step_seconds"], other.steps["step_seconds"])
    assert other.attributes["merged"] == 2 and other.trials["source_trial"].tolist() == [2, 1, 3, 0, 0]
    sources = [json.loads(text) for text in other.trials["source"]]
    assert [source["commit"] for source in sources] == ["a", "b", "b", "a", "b"]
    assert sources[1]["path"] == str(tmp_path / "two" / "logs" / "b.h5")


def test_what_was_settled_holds_and_rows_end_at_the_stop(tmp_path):
    group_log(tmp_path, "a", [(0, 0, 0, BUDGET), (1, 1, 0, BUDGET)])
    pruned = whole(1, ("a.h5", 1), stop_step=20, kind="pruned", reason="pruned: 5 trials had met by step 20")
    repeat = whole(100_000, ("a.h5", 0))
    path = collect(str(tmp_path), STUDY, lambda: [repeat, pruned], {"study": STUDY, "versions": {"torch": "9.9"}})
    log = check(path)
    assert path == str(tmp_path / f"{STUDY}.h5") and log.trials["id"].tolist() == [1, 100_000]
    assert log.trials["status"].tolist() == [Status.INCOMPLETE, Status.COMPLETE]
    assert log.trials["stop_reason"].tolist() == [pruned.reason, "budget reached"]
    assert steps_of(log, 1) == [[0, 10, 20], list(range(1, 21))]
    assert steps_of(log, 100_000) == [list(range(0, 51, 10)), list(range(1, 51))]
    assert log.attributes["study"] == STUDY and log.attributes["versions"]["torch"] == "9.9"
    assert (log.attributes["segment"], log.attributes["segments"], log.attributes["merged"]) == (0, 1, 1)
    assert sorted(os.listdir(tmp_path)) == ["logs", f"{STUDY}.h5"]


def test_a_trial_that_went_on_in_other_logs_is_one(tmp_path):
    group_log(tmp_path, "c", [(0, 7, 0, 25), (4, 0, 0, BUDGET)])
    group_log(tmp_path, "a", [(2, 7, 20, 43), (3, 7, 15, BUDGET)])      # back beyond the second attempt
    path, log = collected(tmp_path, whole(7, ("c.h5", 0), ("a.h5", 2), ("a.h5", 3)), whole(0, ("c.h5", 4)))
    group_log(tmp_path / "straight", "a", [(7, 7, 0, BUDGET), (0, 0, 0, BUDGET)])
    straight, _ = collected(tmp_path / "straight", whole(7, ("a.h5", 7)), whole(0, ("a.h5", 0)))
    assert_same_study(path, straight, but_for=["restarts/*"])
    assert log.restarts["trial"].tolist() == [0, 7, 7, 7]
    assert log.restarts["first_step"].tolist() == [0, 0, 20, 15]
    assert log.restarts["host"].tolist() == ["c", "c", "a", "a"]
    assert log.steps["step_seconds"][log.steps["trial"] == 7].tolist() == [1.0] * 15 + [4.0] * 35
    assert log.trials["source_trial"].tolist() == [4, 3]


def test_a_restart_after_the_stop_is_left_out_with_its_rows(tmp_path):
    group_log(tmp_path, "a", [(0, 0, 0, 33), (1, 0, 30, BUDGET)])
    _, log = collected(tmp_path, whole(0, ("a.h5", 0), ("a.h5", 1), stop_step=20))
    assert log.restarts["first_step"].tolist() == [0] and steps_of(log, 0)[0] == [0, 10, 20]


@pytest.mark.parametrize("seed", range(3))
def test_random_studies_agree_with_a_reference_in_loops(tmp_path, seed):
    draw = np.random.default_rng(seed)
    ran = {f"g{n}": [] for n in range(3)}
    chosen, expected = [], []
    for number in draw.permutation(7).tolist():
        rows, pieces = {}, []           # rows: step -> id of the attempt in force
        first = 0
        for attempt in range(draw.integers(1, 4)):
            name, last = f"g{draw.integers(3)}", int(draw.integers(first, BUDGET + 1))
            id = 10 * len(ran[name]) + int(draw.integers(10))
            ran[name].append((id, number, first, last))
            pieces.append((f"{name}.h5", id))
            rows = {step: was for step, was in rows.items() if step <= first}
            rows |= dict.fromkeys(range(first + 1, last + 1), id)
            first = int(draw.integers(0, last + 1))
        stop = int(draw.integers(BUDGET + 1))
        chosen.append(whole(number, *pieces, stop_step=stop))
        expected += [(number, step, loss(number, step), 1.0 + id) for step, id in rows.items() if step <= stop]
    for name, trials in ran.items():
        group_log(tmp_path, name, trials, closed=draw.random() < 0.5)
    _, log = collected(tmp_path, *chosen)
    columns = [log.steps[name].tolist() for name in ("trial", "step", "loss", "step_seconds")]
    assert list(zip(*columns)) == sorted(expected)
    evaluated = sorted({(number, 0) for number in range(7)}
                       | {(number, step) for number, step, *_ in expected if step % EVAL_EVERY == 0})
    assert list(zip(log.evaluations["trial"].tolist(), log.evaluations["step"].tolist())) == evaluated
    assert log.evaluations["val/error"].tolist() == [error(number, step) for number, step in evaluated]


def test_columns_are_those_of_all_logs(tmp_path):
    group_log(tmp_path, "a", [(0, 0, 0, 20)], metaparameters=("learning_rate", "momentum"))
    group_log(tmp_path, "b", [(0, 1, 0, 10)], metrics=("test/error", "val/error"), optional=("data_seconds",))
    _, log = collected(tmp_path, whole(0, ("a.h5", 0)), whole(1, ("b.h5", 0)))
    assert log.evaluations.columns[-2:] == ("val/error", "test/error") and "data_seconds" in log.steps
    assert np.isnan(log.trials["metaparameters/momentum"]).all() and np.isnan(log.evaluations["test/error"]).all()
    assert log.trials.columns[-2:] == ("source", "source_trial")


def test_logs_of_living_groups_are_read(tmp_path):
    live = group_log(tmp_path, "a", [(0, 0, 0, 20), (1, 1, 0, 20)], closed=False)
    path, log = collected(tmp_path, whole(1, ("a.h5", 1)))
    assert log.trials["id"].tolist() == [1] and log.steps.rows == 20
    live.finish()
    again, _ = collected(tmp_path, whole(0, ("a.h5", 0)), whole(1, ("a.h5", 1)))
    assert again == path and read_log(path).trials.rows == 2


def test_a_study_of_which_no_trial_began_is_an_empty_log(tmp_path):
    path, log = collected(tmp_path, whole(0, kind="lost", reason="lost"))
    assert [table.rows for table in log.tables] == [0] * 4
    assert "no trial has begun" in CliRunner().invoke(log_command, ["show", path]).output


def test_logs_that_are_lost_are_named_with_their_trials(tmp_path, worded):
    for name in "abcd":
        group_log(tmp_path, name, [(0, 0, 0, 10), (1, 1, 0, 10)])
    path, _ = collected(tmp_path, whole(0, ("a.h5", 0)))
    os.unlink(tmp_path / "logs" / "b.h5")
    os.truncate(tmp_path / "logs" / "c.h5", 2000)
    with pytest.raises(LogError) as caught:
        collected(tmp_path, whole(0, ("a.h5", 0)), whole(5, ("b.h5", 1), ("a.h5", 1)), whole(3, ("b.h5", 0)),
                  whole(4, ("c.h5", 0)), whole(6, ("d.h5", 0)), whole(7, ("d.h5", 9)))
    said = str(caught.value).splitlines()
    worded(said[0])
    worded(said[1])
    assert said[1].endswith("with it sgd-b32 loses trial 4")
    assert said[2].endswith("d.h5: has no trial 9, which sgd-b32 needs as 7")
    worded(said[3])
    assert read_log(path).trials["id"].tolist() == [0]                       # as it was
    assert sorted(os.listdir(tmp_path)) == ["logs", f"{STUDY}.h5"]


def test_one_job_waits_for_another_that_collects_the_study(tmp_path, monkeypatch, worded):
    group_log(tmp_path, "a", [(0, 0, 0, 10)])
    other = Lock.take(str(tmp_path / f"{STUDY}.h5"))
    timer = threading.Timer(0.2, other.release)         # longer than a writer of a log would wait
    timer.start()
    _, log = collected(tmp_path, whole(0, ("a.h5", 0)))
    timer.join()
    assert log.trials.rows == 1
    monkeypatch.setattr(collecting, "LOCK_ATTEMPTS", 2)
    other = Lock.take(str(tmp_path / f"{STUDY}.h5"))
    with worded.error(LogError):
        collected(tmp_path, whole(0, ("a.h5", 0)))
    other.release()


def test_trials_of_a_study_are_listed_with_the_point_searched(tmp_path):
    group_log(tmp_path, "a", [(n, n + 20, 0, 10) for n in range(13)])
    path, _ = collected(tmp_path, *(whole(n + 20, ("a.h5", n)) for n in range(13)))
    for command in (["ls", path], ["show", path], ["show", path, "--trial", "32"], ["ls", str(tmp_path / "logs")]):
        assert "sgd-b32 draw 32: lr 0.1, decay linear" in CliRunner().invoke(log_command, command).output
    assert f"hvdscale-log ls {path} --all" in CliRunner().invoke(log_command, ["show", path]).output
