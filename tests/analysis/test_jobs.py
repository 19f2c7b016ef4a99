"""Versions of one job in logs: which runs are of one workload, and what is said of it."""
import pytest

from hvdscale.analysis.report_data import analyse
from hvdscale.analysis.studies import studies_of
from hvdscale.analysis.trials import read_trials
from hvdscale.analysis.jobs import Versions
from hvdscale.plan.job import key_of
from tests.factories import logs

OLD, NEW, NEWER = ({"source": {"job.py": digest}, "model": {"parameters": "p"}} for digest in ("aa", "bb", "cc"))


def log(name, job, **changes):
    return logs.log(logs.trial(**({"job": job} if job else {}), **changes), path=f"{name}.h5")


def groups(*made):
    """The logs of each workload, and the notes."""
    versions = Versions(made)
    trials = [trial for one in made for trial in read_trials(one, versions)]
    found = [{trial.log for trial in group.trials} for group in analyse(trials)]
    assert len({study.workload for study in studies_of(made, versions)}) == len(found)
    return found, tuple(versions.notes)


@pytest.mark.parametrize("jobs", [(None, None), (OLD, OLD), (None, OLD), (OLD, {**OLD, "defaults": {"lr": 1}}),
                                  ({"source": {"hvdscale": "1"}}, {"source": {"hvdscale": "2"}})])
def test_runs_of_one_version_or_of_unknown_ones_are_one_workload(jobs):
    found, notes = groups(*(log(name, job) for name, job in zip("ab", jobs)))
    assert (found, notes) == ([{"a.h5", "b.h5"}], ())


def test_runs_of_two_versions_are_two_workloads_and_the_note_says_what_differs():
    found, notes = groups(log("a", OLD), log("b", NEW, workers=2), log("c", None))
    assert sorted(map(sorted, found)) == [["a.h5"], ["b.h5"], ["c.h5"]]
    note, = notes
    assert all(part in note for part in ("made/net: 2 versions", "a.h5", "b.h5", "job.py differs"))


def test_other_parameters_are_another_version_unless_the_study_searches_them():
    wide = {**OLD, "model": {"parameters": "q"}}
    assert len(groups(log("a", OLD), log("b", wide))[0]) == 2
    sweep = {"study": "sgd-b32", "draw": 0, "repeat": 0, "point": {"model_args.width": 3}, "trials": 1, "max_draws": 3,
             "space": [{"name": "model_args.width", "type": "discrete", "values": [3, 4]}], "objective": "steps",
             "targets": ["val/error<0.2"], "prune_keep": None, "seed": 0}
    assert len(groups(log("a", OLD, sweep=sweep), log("b", wide, sweep={**sweep, "draw": 1}))[0]) == 1


def test_an_accepted_change_joins_its_two_versions_and_no_third(worded):
    accepting = {**NEW, "accepted": {key_of(OLD): "job.py differs"}}
    found, notes = groups(log("a", OLD), log("b", accepting))
    assert found == [{"a.h5", "b.h5"}]
    worded(notes)
    found, notes = groups(log("a", OLD), log("b", accepting), log("c", NEWER))
    assert sorted(map(sorted, found)) == [["a.h5", "b.h5"], ["c.h5"]] and len(notes) == 2


def test_versions_have_the_same_names_under_all_optimizers_and_batch_schedules():
    made = [log(f"{job['source']['job.py']}{optimizer}", job, optimizer=optimizer)
            for job in (OLD, NEW) for optimizer in ("sgd", "adam")]
    versions = Versions(made)
    names = [trial.workload.version for one in made for trial in read_trials(one, versions)]
    assert names[0] == names[1] != names[2] == names[3] and len(versions.notes) == 1
