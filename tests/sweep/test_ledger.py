"""Each draw is run by one living process at a time and recorded once, whoever is killed, whatever the disk does."""
import errno
import json
import math
import os
import random
import threading
import time
from pathlib import Path

import pytest

from hvdscale.errors import LogError
from hvdscale.sweep import ledger as module
from hvdscale.sweep.ledger import ATTEMPTS, KILLED, DrawResult, Ledger, Owner
from hvdscale.sweep.studies import read_record
from tests.factories.claims import STUDY, notes, ran_at_once, start
from tests.wording import answered

RESULT = DrawResult(7, "met", "target val/error<0.02 met at step 400", 400,
                    {"val/error<0.05": 100, "val/error<0.02": 400, "val/error<0.001": math.inf}, math.nan, 12.5,
                    (("node1-4711-00000000.h5", 3), ("node2-12-0badcafe.h5", 0)), "node2-12-0badcafe")


@pytest.fixture
def out(tmp_path):
    return str(tmp_path)


@pytest.fixture
def ledger(out):
    return Ledger(out)


@pytest.fixture
def owner(out):
    owner = Owner.take(out)
    yield owner
    owner.release()


@pytest.fixture(params=["links", "no links"])
def links(request, monkeypatch):
    """A file system that makes links, and one that refuses them."""
    if request.param == "no links":
        def refuse(*_):
            raise OSError(errno.EPERM, "Operation not permitted")
        monkeypatch.setattr(os, "link", refuse)


def die(out, ledger, number=0):
    """An owner claims a draw and dies."""
    owner = Owner.take(out)
    attempt = ledger.claim(STUDY, number, owner)
    owner.release()
    return attempt


def placed(out, name):
    return Path(out, "trials", STUDY, name)


def folder(out):
    return sorted(os.listdir(os.path.join(out, "trials", STUDY)))


def ended_without_a_word(out, number):
    """Attempts at a finished draw that neither gave it back nor recorded it."""
    kinds = [name.split(".")[1].partition("-")[0] for name in folder(out) if name.startswith(f"{number}.")]
    return kinds.count("claim") - kinds.count("released") - kinds.count("json")


def test_a_draw_is_claimed_once_and_recorded_once(out, ledger, owner, links):
    other = Owner.take(out)
    assert ledger.claim(STUDY, 7, owner) == 1
    assert ledger.claim(STUDY, 7, other) is None and Ledger(out).claim(STUDY, 7, owner) is None
    assert ledger.claim(STUDY, 8, other) == 1 and ledger.claim("sgd-b64", 7, other) == 1
    assert ledger.record(STUDY, RESULT)
    assert not ledger.record(STUDY, DrawResult(7, "lost"))
    assert ledger.claim(STUDY, 7, other) is None
    assert [r.as_json() for r in Ledger(out).results(STUDY).values()] == [RESULT.as_json()]
    assert folder(out) == ["7.claim-1", "7.json", "8.claim-1"]          # and nothing temporary
    other.release()


def test_what_is_running_says_where(ledger, owner, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "99")
    third = Owner.take(ledger.out)
    before = time.time()
    for number, who in ((3, owner), (1, third), (2, owner)):
        ledger.claim(STUDY, number, who)
    ledger.record(STUDY, DrawResult(2, "budget"))
    running = ledger.running(STUDY)
    assert list(running) == [1, 3] and running[1].pop("time") >= before
    assert running[1] == {"owner": third.name, "host": third.host, "pid": os.getpid(), "job": "99", "attempt": 1}
    third.release()
    assert list(ledger.running(STUDY)) == [3]


def test_owners_of_one_process_differ(out):
    owners = [Owner.take(out) for _ in range(3)]
    assert {*os.listdir(os.path.join(out, "owners"))} == {f"{owner.name}.lock" for owner in owners}
    for owner in owners:
        owner.release()
    assert os.listdir(os.path.join(out, "owners")) == []


def test_results_that_are_taken_back_leave_nothing_behind(out, ledger, owner):
    for number, kind in enumerate(("met", "failed", "lost")):
        ledger.claim(STUDY, number, owner)
        ledger.record(STUDY, DrawResult(number, kind))
    ledger.note_killed([STUDY], owner.host, owner.pid)
    assert ledger.take_back(STUDY, ("failed", "lost")) == [1, 2]
    assert list(ledger.results(STUDY)) == [0] and ledger.claim(STUDY, 1, owner) == 1
    assert ledger.note_killed([STUDY], owner.host, owner.pid) and not ledger.note_killed([STUDY], owner.host, -1)
    assert folder(out) == ["0.claim-1", "0.json", "1.claim-1", "1.killed-1"]


def test_a_released_draw_is_free_and_does_not_count_as_an_attempt(out, ledger, owner):
    for attempt in range(1, 2 * ATTEMPTS):
        assert ledger.claim(STUDY, 0, owner) == attempt
        ledger.release(STUDY, 0, attempt)
        assert ledger.running(STUDY) == {} and not ledger.lost(STUDY, 0)


def test_a_draw_is_lost_after_as_many_dead_owners_as_there_are_attempts(out, ledger, owner, links):
    for dead in range(ATTEMPTS):
        assert not ledger.lost(STUDY, 0)
        assert die(out, ledger) == dead + 1
        assert ledger.running(STUDY) == {}
    assert ledger.lost(STUDY, 0) and ledger.claim(STUDY, 0, owner) is None
    assert ledger.record(STUDY, DrawResult(0, "lost", owner=owner.name))
    assert not ledger.lost(STUDY, 0)


def test_dead_attempts_count_among_released_ones(out, ledger, owner):
    for _ in range(ATTEMPTS - 1):
        ledger.release(STUDY, 0, ledger.claim(STUDY, 0, owner))
        die(out, ledger)
    last = ledger.claim(STUDY, 0, owner)
    assert last == 2 * ATTEMPTS - 1 and not ledger.lost(STUDY, 0)       # the last attempt lives
    owner.release()
    assert ledger.lost(STUDY, 0)


def test_one_of_many_takes_over_a_dead_owners_draw(out, links):
    crowd = [(Ledger(out), Owner.take(out)) for _ in range(6)]
    for number in range(15):
        assert die(out, crowd[0][0], number) == 1
        barrier, claims = threading.Barrier(len(crowd)), []

        def claim(ledger, owner):
            barrier.wait()
            claims.append(ledger.claim(STUDY, number, owner))

        threads = [threading.Thread(target=claim, args=one) for one in crowd]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(claims, key=str) == [2] + [None] * (len(crowd) - 1)
    for _, owner in crowd:
        owner.release()


def test_a_result_that_came_while_the_draw_was_claimed_stands(out, ledger, owner, monkeypatch):
    first = Owner.take(out)
    ledger.claim(STUDY, 7, first)
    look = ledger._files

    def late_look(*draw):                              # the draw is recorded and its owner ends after the listing
        files = look(*draw)
        Ledger(out).record(STUDY, RESULT)
        first.release()
        return files

    monkeypatch.setattr(ledger, "_files", late_look)
    assert ledger.claim(STUDY, 7, owner) is None
    monkeypatch.undo()
    assert ledger.running(STUDY) == {} and not ledger.lost(STUDY, 7)
    assert [result.kind for result in ledger.results(STUDY).values()] == ["met"]


def test_a_draw_is_lost_sooner_where_its_process_alone_was_killed(out, ledger):
    for attempt in range(1, KILLED + 1):
        assert not ledger.lost(STUDY, 0)
        owner = Owner.take(out)
        assert ledger.claim(STUDY, 0, owner) == attempt
        assert ledger.claim(STUDY, 5, owner)
        ledger.release(STUDY, 5, attempt)
        ledger.note_killed([STUDY, "another"], owner.host, owner.pid + 1)       # another process
        ledger.note_killed([STUDY, "another"], owner.host, owner.pid)
        owner.release()
    assert ledger.lost(STUDY, 0) and ledger.claim(STUDY, 0, Owner.take(out)) is None
    assert not ledger.lost(STUDY, 5)


def test_a_draw_released_while_its_owner_ends_is_not_lost(out, ledger, monkeypatch):
    for _ in range(ATTEMPTS - 1):
        die(out, ledger)
    last = Owner.take(out)
    assert ledger.claim(STUDY, 0, last) == ATTEMPTS
    look = ledger._files

    def late_look(*draw):
        files = look(*draw)
        Ledger(out).release(STUDY, 0, ATTEMPTS)
        last.release()
        return files

    monkeypatch.setattr(ledger, "_files", late_look)
    assert not ledger.lost(STUDY, 0)


def test_a_link_whose_reply_was_lost_counts_as_made(ledger, owner, monkeypatch):
    link = os.link

    def link_twice(*names):                            # as an NFS client does that repeats a request
        link(*names)
        link(*names)

    monkeypatch.setattr(os, "link", link_twice)
    assert ledger.claim(STUDY, 0, owner) == 1
    assert ledger.claim(STUDY, 0, owner) is None


def test_results_are_read_once_in_order_and_again_where_they_were_removed(ledger, monkeypatch):
    for number in (100_000, 10, 9):
        ledger.record(STUDY, DrawResult(number, "met"))
    reads = []
    read = module._read
    monkeypatch.setattr(module, "_read", lambda path: reads.append(os.path.basename(path)) or read(path))
    assert list(ledger.results(STUDY)) == list(ledger.results(STUDY)) == [9, 10, 100_000]
    ledger.record(STUDY, DrawResult(3, "met"))
    assert list(ledger.results(STUDY)) == [9, 10, 100_000, 3]
    assert reads == ["9.json", "10.json", "100000.json", "3.json"]
    placed(ledger.out, "9.json").unlink()
    assert 9 not in ledger.results(STUDY)
    ledger.record(STUDY, DrawResult(9, "diverged"))
    assert ledger.results(STUDY)[9].kind == "diverged"


def test_a_further_result_costs_as_many_names_among_thousands_as_among_few(out, owner, monkeypatch):
    few, many = Ledger(out), Ledger(out)
    for name, first in (("few", 40), ("many", 5_040)):
        for number in range(first - 40, first) if name == "few" else range(first):
            few.record(name, DrawResult(number, "met"))
    assert len(few.results("few")) == 40 and len(many.results("many")) == 5_040
    names, listed = [], os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: names.extend(found := listed(path)) or found)

    def names_of_a_result(ledger, study, number):
        names.clear()
        assert ledger.claim(study, number, owner) == 1
        ledger.record(study, DrawResult(number, "met"))
        assert ledger.results(study)[number].kind == "met"
        return len(names)
    assert names_of_a_result(many, "many", 5_040) - names_of_a_result(few, "few", 40) < 300


def test_draws_of_all_hundreds_are_found_and_taken_back(out, owner):
    ledger, numbers = Ledger(out), (*range(95, 205), 4_321, 100_000, 432_101)
    for number in numbers:
        ledger.claim(STUDY, number, owner)
        ledger.record(STUDY, DrawResult(number, "failed" if number % 10 == 1 else "met"))
    other = Ledger(out)
    assert sorted(other.results(STUDY)) == sorted(ledger.results(STUDY)) == sorted(numbers)
    gone = [number for number in numbers if number % 10 == 1]
    assert other.take_back(STUDY, ["failed"]) == gone
    left = sorted(set(numbers) - set(gone))
    assert sorted(other.results(STUDY)) == sorted(Ledger(out).results(STUDY)) == left
    assert [other.claim(STUDY, number, owner) for number in gone] == [1] * len(gone)
    assert list(Ledger(out).running(STUDY)) == list(other.running(STUDY)) == gone


def test_a_result_keeps_every_number_in_plain_json():
    def no_literal(name):
        raise AssertionError(f"{name} is no JSON")

    odd = DrawResult(0, "diverged", 'a "reason" with ü\n', 0, {"t": math.inf}, -math.inf, math.nan)
    for result in (RESULT, odd):
        text = json.dumps(result.as_json(), allow_nan=False)
        back = DrawResult.of_json(json.loads(text, parse_constant=no_literal))
        assert back.as_json() == result.as_json() and back.status is result.status
        assert back.steps == result.steps and back.pieces == result.pieces
        assert repr((back.best, back.seconds)) == repr((result.best, result.seconds))


def test_a_file_that_is_no_result_is_named(golden, tmp_path, monkeypatch, worded):
    monkeypatch.chdir(tmp_path)
    Ledger("out").record(STUDY, RESULT)

    def said(content):
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / "out/trials" / STUDY / "7.json").write_text(text)
        with worded.error(LogError) as caught:
            Ledger("out").results(STUDY)
        return str(caught.value)
    golden("ledger", answered("ledger", lambda content: said(eval(content, globals()))))
    for wrong in ({"best": "good"}, {"steps": [1]}, {"pieces": 3}, {"number": None}):       # Python names these
        said(RESULT.as_json() | wrong)


def test_one_look_keeps_the_results_it_saw_but_a_claim_looks_again(ledger, owner):
    with ledger.one_look():
        assert ledger.results(STUDY) == {}
        Ledger(ledger.out).record(STUDY, RESULT)
        assert ledger.results(STUDY) == {} and ledger.claim(STUDY, 7, owner) is None
    assert list(ledger.results(STUDY)) == [7]


def test_files_of_other_names_are_let_be(ledger, owner):
    ledger.record(STUDY, RESULT)
    for name in (".7.json.00.tmp", "notes.json", "08.json", "8.json~", "8.claim-0", "9.claim", "1e3.json"):
        placed(ledger.out, name).touch()
    assert list(ledger.results(STUDY)) == [7] and ledger.running(STUDY) == {}


@pytest.mark.parametrize("text", ["", '{"owner": "no', "[]", "{}", '{"owner": [1]}', '{"owner": "../../x"}'])
def test_a_claim_that_was_cut_off_counts_as_a_dead_one(ledger, owner, text):
    ledger.claim(STUDY, 0, owner)
    placed(ledger.out, "0.claim-1").write_text(text)
    fresh = Ledger(ledger.out)
    assert fresh.running(STUDY) == {} and fresh.claim(STUDY, 0, owner) == 2


def test_a_result_whose_name_was_reserved_a_moment_ago_is_waited_for(ledger, monkeypatch):
    ledger.record(STUDY, RESULT)
    placed(ledger.out, "7.json").write_text("")
    monkeypatch.setattr(time, "sleep", lambda _: placed(ledger.out, "7.json").write_text(json.dumps(RESULT.as_json())))
    assert ledger.results(STUDY)[7].as_json() == RESULT.as_json()


def test_a_release_that_outlived_its_claim_is_not_that_of_the_next(ledger, owner):
    ledger.release(STUDY, 0, ledger.claim(STUDY, 0, owner))
    placed(ledger.out, "0.claim-1").unlink()
    assert ledger.claim(STUDY, 0, owner) == 2 and ledger.claim(STUDY, 0, owner) is None


def test_a_full_disk_is_an_error_that_names_the_file_and_leaves_no_piece_of_it(ledger, owner, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    ledger.claim(STUDY, 7, owner)
    with monkeypatch.context() as patched, pytest.raises(LogError, match="8.claim-1: cannot be written: No space left"):
        patched.setattr(os, "link", full)
        ledger.claim(STUDY, 8, owner)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LogError, match="7.json: cannot be written: No space left"):
        ledger.record(STUDY, RESULT)
    assert folder(ledger.out) == ["7.claim-1"]
    monkeypatch.undo()
    assert ledger.record(STUDY, RESULT)


def test_a_folder_that_cannot_be_written_or_read_is_named(tmp_path):
    (tmp_path / "trials").write_text("not a folder")
    ledger, owner = Ledger(str(tmp_path)), Owner.take(str(tmp_path))
    for step in (lambda: ledger.results(STUDY), lambda: ledger.claim(STUDY, 0, owner), lambda: ledger.lost(STUDY, 0)):
        with pytest.raises(LogError, match=f"trials/{STUDY}/: cannot be read: Not a directory"):
            step()
    for step in (lambda: ledger.record(STUDY, RESULT), lambda: ledger.release(STUDY, 0, 1)):
        with pytest.raises(LogError, match=f"trials/{STUDY}/.*: cannot be written: "):
            step()
    with pytest.raises(LogError, match="trials/owners/.*: cannot be written: Not a directory"):
        Owner.take(str(tmp_path / "trials"))
    owner.release()


def test_without_locks_an_owner_lives_until_its_lock_file_is_removed(out, ledger, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(LogError, match="refuses locks.*--take-over"):
        Owner.take(out)
    dead, owner = (Owner.take(out, take_over=True) for _ in range(2))
    ledger.claim(STUDY, 0, dead)
    os.close(dead.lock.descriptor)                     # all that a kill would do
    assert ledger.claim(STUDY, 0, owner) is None and list(ledger.running(STUDY)) == [0]
    os.unlink(dead.lock.path)
    assert ledger.claim(STUDY, 0, owner) == 2
    owner.release()


def test_killed_at_random_every_draw_is_finished_and_none_runs_twice_at_once(out):
    draws, kills, rng = 24, 0, random.Random(1)
    ledger = Ledger(out)
    workers = [start(out, draws, 0.06, seed) for seed in range(4)]
    deadline = time.monotonic() + 60
    while len(results := ledger.results(STUDY)) < draws:
        assert time.monotonic() < deadline
        time.sleep(rng.uniform(0, 0.05))
        busy = [claim["pid"] for claim in ledger.running(STUDY).values()]
        pids = busy if kills % 5 else [worker.pid for worker in workers]        # some while they start
        pid = rng.choice(pids) if pids else None
        for worker in [w for w in workers if w.pid == pid and kills < 20]:
            worker.kill()
            worker.join()
            kills += 1
            workers.remove(worker)
            workers.append(start(out, draws, 0.06, 100 + kills))
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    said = notes(out)
    assert not ran_at_once(said) and not [(n, w) for n, w in said.items() if "refused" in w]
    assert all(whats.count("recorded") <= 1 for whats in said.values())
    dead = sum(ended_without_a_word(out, number) for number in range(draws))
    assert kills > 1 and dead, (kills, dead)          # far more where the machine is idle
    for number, result in results.items():
        assert result.kind == "met" or ended_without_a_word(out, number) == ATTEMPTS - 1
    assert ledger.running(STUDY) == {}


@pytest.mark.parametrize("act", [
    lambda ledger, owner: ledger.record(STUDY, RESULT), lambda ledger, owner: ledger.results(STUDY),
    lambda ledger, owner: ledger.claim(STUDY, 8, owner), lambda ledger, owner: ledger.release(STUDY, 7, 1)],
    ids=["record", "results", "claim", "release"])
def test_a_folder_that_was_moved_is_neither_read_nor_written_in_its_old_place(out, owner, act):
    ledger = Ledger(out, owner)
    ledger.claim(STUDY, 7, owner)
    os.rename(out, f"{out}-moved")
    for there in (False, True):                     # then with another folder in its place
        with pytest.raises(LogError, match=f"^{out}: was moved .*It is now {out}-moved") as caught:
            act(ledger, owner)
        assert "nothing in it has to be removed" in str(caught.value)
        assert os.path.exists(out) == there and not (there and os.listdir(out))
        os.makedirs(out, exist_ok=True)
    os.rmdir(out)
    os.rename(f"{out}-moved", out)
    assert ledger.record(STUDY, RESULT)


@pytest.mark.parametrize("content", ["", "{", "[1]", "null"])
def test_a_record_that_is_none_says_what_to_remove(tmp_path, content, worded):
    path = tmp_path / "sweep.json"
    path.write_text(content)
    with worded.error(LogError):
        read_record(str(path))
