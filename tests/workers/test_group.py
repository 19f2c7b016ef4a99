"""What the ranks of a group agree on: errors, plans and data, shown with groups of threads."""
import os
import re
from dataclasses import replace

import pytest

from hvdscale.errors import _LIBRARIES, DataError, HvdscaleError, RanksDifferError, WorkersError
from hvdscale.training.prepare import agree_on
from hvdscale.workers.group import SingleWorker, device
from tests.parallel import toy
from tests.factories.plans import settled
from tests.factories.workers import on_each


def raised_on_each(workers, function):
    """The exception that each rank's call ends with."""
    def caught(member):
        with pytest.raises(Exception) as error:
            function(member)
        return error.value
    return on_each(workers, caught)


def failing(errors):
    """A function that raises the rank's error (None: none), together with the others."""
    def function(member):
        with member.together("loading"):
            if errors[member.rank]:
                raise errors[member.rank]
    return function


MISSING = DataError("d: missing")


@pytest.mark.parametrize("errors, said", [
    ([MISSING] * 3, "d: missing"), ([MISSING, None, None], "rank 0 of 3: d: missing"),
    ([None, MISSING, None], "rank 1 of 3: d: missing"), ([None, None, MISSING], "rank 2 of 3: d: missing"),
    ([MISSING, None, MISSING], "rank 0, 2 of 3: d: missing"),
    ([None, MISSING, RanksDifferError("no lr")], "rank 1 of 3: d: missing\nrank 2: no lr")])
def test_an_error_is_raised_on_all_ranks_naming_those_that_raised_it(errors, said):
    assert [(type(e), str(e)) for e in raised_on_each(3, failing(errors))] == [(DataError, said)] * 3


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit])
def test_any_other_exception_is_named_with_what_was_being_done(kind, capsys):
    errors = raised_on_each(2, failing([None, kind("the disk is on fire")]))
    said = (rf"rank 1 of 2: loading: {kind.__name__}: the disk is on fire \({re.escape(__file__)}:\d+\); "
            "HVDSCALE_TRACEBACK=1 prints the traceback")
    assert all(type(e) is HvdscaleError and re.fullmatch(said, str(e)) for e in errors)
    assert capsys.readouterr().err == ""


def test_an_exception_of_all_ranks_has_one_traceback_if_asked_for(capsys, monkeypatch):
    monkeypatch.setenv("HVDSCALE_TRACEBACK", "1")
    errors = raised_on_each(3, failing([RuntimeError("the disk is on\nfire")] * 3))
    assert len({str(e) for e in errors}) == 1 and str(errors[0]).startswith("loading: RuntimeError: the disk is on f")
    assert capsys.readouterr().err.count("Traceback") == 1


def test_an_exception_of_our_own_code_has_its_traceback(capsys, monkeypatch):
    monkeypatch.setattr("hvdscale.errors._LIBRARIES", (os.path.dirname(__file__), *_LIBRARIES))
    errors = raised_on_each(2, failing([RuntimeError("a mistake"), None]))
    assert "HVDSCALE_TRACEBACK" not in str(errors[0]) and capsys.readouterr().err.count("Traceback") == 1


def test_without_an_error_nothing_is_raised():
    on_each(3, failing([None] * 3))
    failing([None])(SingleWorker())
    with pytest.raises(DataError, match="^d: missing$"):
        failing([MISSING])(SingleWorker())


def test_a_rank_that_settled_another_plan_is_named(worded):
    plans = [settled(3, seed=seed) for seed in (0, 0, 1)]
    errors = raised_on_each(3, lambda member: agree_on(plans[member.rank], {}, toy.load(), member))
    assert {type(e) for e in errors} == {RanksDifferError} and len({str(e) for e in errors}) == 1
    worded(str(errors[0]))
    on_each(3, lambda member: agree_on(plans[0], {}, toy.load(), member))


@pytest.mark.parametrize("change, said", [
    (lambda data: {"test": data.test.first(3)}, "53 training, 31 validation and 3 test examples, .*, rank 0 53"),
    (lambda data: {"record": {"missing": ["b.bin"]}}, "53 training.* test examples, with {.missing.: .*}, rank 0 53")])
def test_a_rank_that_found_other_data_or_lacks_a_part_is_named(change, said):
    found = [replace(toy.load(), record={"missing": []})] * 2
    found[1] = replace(found[1], **change(found[1]))
    errors = raised_on_each(2, lambda member: agree_on(settled(2), {}, found[member.rank], member))
    assert {type(e) for e in errors} == {RanksDifferError}
    assert re.search(f"rank 1 found {said}", str(errors[0]))


@pytest.mark.parametrize("gpus, wanted, local_rank, got", [
    (0, "auto", 0, "cpu"), (0, "cpu", 3, "cpu"), (4, "cpu", 1, "cpu"), (4, "auto", 1, "cuda:1"),
    (4, "cuda", 3, "cuda:3"), (2, "auto", 3, "cuda:1")])
def test_a_rank_computes_on_its_local_ranks_gpu_where_there_is_one(monkeypatch, gpus, wanted, local_rank, got, worded):
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpus > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    taken = []
    monkeypatch.setattr("torch.cuda.set_device", taken.append)
    found = device(wanted, local_rank)
    assert str(found) == got
    assert taken == [found] * (found.type == "cuda")
    if not gpus:
        with worded.error(WorkersError):
            device("cuda", 0)
