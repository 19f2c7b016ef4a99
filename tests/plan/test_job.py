"""Two jobs held against each other: what differs, in words, and what is not known."""
import pytest

from hvdscale.errors import UsageError
from hvdscale.plan.job import changes_of, have_same_parameters, is_built_in, key_of, note_version, refuse_changes
from tests.wording import answered

LINES = ["Sequential(", "  (0): Linear(in_features=6, out_features=5, bias=True)", "  (1): ReLU()", ")"]
JOB = {"source": {"job.py": "aa", "net.py": "bb"}, "defaults": {"lr": 0.05, "model_args": {"width": 3}},
       "model": {"torch": "2.13.0", "parameters": "cc", "lines": LINES},
       "data": {"train": {"examples": 40, "first": "d1", "last": "d2"},
                "val": {"examples": 10, "first": "e1", "last": None}}}
TANH = [*LINES[:2], "  (1): Tanh()", ")"]


def edited(part, **changes):
    return {**JOB, part: {**JOB[part], **changes}}


def test_what_differs_is_said_in_words(golden):
    golden("job", answered("job", lambda call: "\n".join(eval(call, globals())) or "nothing"))


@pytest.mark.parametrize("part", [*JOB])
def test_what_is_unknown_on_either_side_is_no_change(part):
    without = {name: value for name, value in JOB.items() if name != part}
    assert changes_of(JOB, without) == changes_of(without, JOB) == changes_of({}, JOB) == []


def test_a_built_in_job_of_a_later_version_is_the_same_with_a_note():
    then, now = ({"source": {"hvdscale": version}, "defaults": {"lr": lr}}
                 for version, lr in (("0.5.0", 1), ("0.6.0", 2)))
    assert is_built_in(then) and changes_of(then, now) == []
    assert note_version(then, now) == ["hvdscale was 0.5.0, is now 0.6.0"]
    assert note_version(then, then) == note_version(JOB, now) == []


def test_a_change_is_refused_or_accepted_with_those_accepted_before(worded):
    then, now = {**JOB, "accepted": {"f00": "net.py differs"}}, edited("source", **{"job.py": "a2"})
    with worded.error(UsageError):
        refuse_changes(then, now, False, "w.h5", "Put it back")
    assert refuse_changes(then, now, True, "w.h5", "") == {"f00": "net.py differs", key_of(JOB): "job.py differs"}
    assert refuse_changes(then, JOB, False, "w.h5", "") == {"f00": "net.py differs"}


def test_the_key_is_of_source_and_data_alone():
    assert key_of(JOB) == key_of(edited("defaults", lr=1)) == key_of(edited("model", parameters="x"))
    assert len({key_of(JOB), key_of(edited("source", **{"job.py": "a2"})), key_of(edited("data", val={}))}) == 3
    assert key_of({"defaults": {"lr": 1}}) == ""


def test_parameters_of_unknown_models_count_as_the_same():
    assert have_same_parameters(JOB, {}) and have_same_parameters(JOB, edited("model", lines=TANH))
    assert not have_same_parameters(JOB, edited("model", parameters="c2"))
