"""Broken logs: a message each, never a traceback, from every command that reads logs."""
import contextlib
import json
import math
import resource
import shutil
import signal
import traceback
from random import Random

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

from hvdscale.cli import compare, log, plan, report
from hvdscale.errors import ExitCode, LogError
from hvdscale.log.plan_text import plan_at, read_plan
from hvdscale.log.schema import Status
from hvdscale.plan.search_space import discrete
from tests.conftest import GOLDEN
from tests.factories.bad_logs import break_log
from tests.factories.logs import log as made_log, save, study, trial
from tests.factories.studies import SPACE, drawn, realistic, studied
from tests.wording import answered

SECONDS = 60                # a case may take, on a busy machine
MEMORY = 3 << 30            # bytes that it may take beside what the process has


def commands_of(path, good, out):
    """(name, command, arguments) of all that read a log."""
    return [
        ("report", report.main, [path]),
        ("report with a target", report.main, [path, "--target", "val/error<0.2"]),
        ("report beside published curves", report.main, [path, "--compare", "shallue2019"]),
        ("report to files", report.main, [path, "--out", f"{out}/report", "--format", "html,json,csv"]),
        ("plan", plan.main, [path]), ("plan with a price", plan.main, [path, "--price", "2", "--workers", "1-64"]),
        ("export to tables", log.main, ["export", path, f"{out}/tables", "--as", "csv"]),
        ("export to an archive", log.main, ["export", path, f"{out}/archive", "--as", "archive"]),
        ("ls", log.main, ["ls", path]), ("show", log.main, ["show", path]),
        ("show all", log.main, ["show", path, "--trial", "1", "--plan", "--evaluations", "--steps"]),
        ("check", log.main, ["check", path]),
        ("merge", log.main, ["merge", path, good, "--out", f"{out}/merged.h5", "--overwrite"]),
        ("compare", compare.main, [good, path]), ("compare with it", compare.main, [path, good]),
    ]


@contextlib.contextmanager
def bounded(seconds=SECONDS, memory=MEMORY):
    """Raises TimeoutError or MemoryError where what is done within takes more."""
    def stop(*_):
        raise TimeoutError(f"took more than {seconds} s")
    with open("/proc/self/statm", encoding="ascii") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    limits, before = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (taken + memory, limits[1]))
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)


def failure(command, arguments):
    """What is wrong with how a command ended; "" where nothing is."""
    with bounded():
        done = CliRunner().invoke(command, list(map(str, arguments)))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return "".join(traceback.format_exception(done.exception))[-3000:]
    if "Traceback" in done.output or done.exit_code not in (0, 1, 2, ExitCode.REGRESSION):
        return f"exit code {done.exit_code}: {done.output[-500:]}"
    if done.exit_code and not done.output.strip():
        return f"exit code {done.exit_code} without a word"
    return ""


def failures(numbers, folder, good, share=1.0, without=()):
    """{case: what went wrong} of cases, each a broken log given to a share of the commands, one at least."""
    found = {}
    for number in numbers:
        random = Random(number)
        path = folder / f"broken{number}.h5"
        said = break_log(random, random.choice(good), path)
        commands = [one for one in commands_of(path, random.choice(good), folder) if one[0] not in without]
        for name, command, arguments in random.sample(commands, max(1, round(share * len(commands)))):
            wrong = failure(command, arguments)
            if wrong:
                found[f"case {number}, {name}, {said}"] = wrong
        path.unlink(missing_ok=True)
        for kind in ("tables", "archive", "report"):
            shutil.rmtree(folder / kind, ignore_errors=True)
    return found


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Paths of good logs: the golden one, a sweep's study, and runs of four worker counts."""
    folder, space = tmp_path_factory.mktemp("good"), (*SPACE, discrete("label_smoothing", [0.0, 0.1]))
    sweep = save(studied(*realistic(256, 0.1, 600, repeats=2, space=space)), folder / "sweep.h5")
    return [str(GOLDEN / "v1.h5"), sweep, save(study(seeds=2)[2], folder / "runs.h5")]


def told(found):
    return "\n\n".join(f"{case}\n{wrong}" for case, wrong in list(found.items())[:5])


def test_good_logs_pass_every_command(tmp_path, good):
    for path in good[:1]:
        for name, command, arguments in commands_of(path, path, tmp_path):
            drawn_soon = [good[2], *arguments[1:]] if name == "report to files" else arguments
            assert invoke(command, *drawn_soon).exit_code == 0, name


def test_a_log_broken_at_random_gives_a_message_and_no_traceback(tmp_path, good):
    found = failures(range(40), tmp_path, good, share=0, without=("report to files",))
    assert not found, told(found)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_thousands_of_logs_broken_at_random_give_messages(tmp_path, good, block):
    found = failures(range(1000 + 150 * block, 1150 + 150 * block), tmp_path, good, share=0.5)
    assert not found, told(found)


def invoke(command, *arguments):
    done = CliRunner().invoke(command, list(map(str, arguments)))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def changed(path, change):
    """The log with something in its file changed."""
    with h5py.File(path, "r+") as file:
        change(file)
    return path


def put(table, column, row, value):
    """Puts a value into a column."""
    def change(file):
        file[f"{table}/{column}"][row] = value
    return change


def unit(table, column, value):
    def change(file):
        file[f"{table}/{column}"].attrs["unit"] = value
    return change


def without(table, column):
    def change(file):
        del file[f"{table}/{column}"]
    return change


def hollow(rows):
    """A table of evaluations that claims so many rows and has none of them in the file."""
    def change(file):
        group = file["evaluations"]
        for name in ("trial", "step", "examples", "train_seconds", "val/error"):
            kept = dict(group[name].attrs)
            kind = group[name].dtype
            del group[name]
            group.create_dataset(name, (rows,), kind, chunks=(1024,)).attrs.update(kept)
        group["committed_rows"][0] = rows
    return change


def attribute(name, value):
    def change(file):
        file.attrs[name] = value
    return change


BROKEN = {      # how it is broken: (what is changed in its file, what is said of it)
    "an id twice": (put("trials", "id", 1, 1), "trial 1 is in trials twice, at rows 0 and 1"),
    "a status that there is not": (put("trials", "status", 0, 9), "trial 1: status is 9; there are 0 RUNNING"),
    "a step twice": (put("evaluations", "step", 2, 5), "trial 1: evaluations/step is 5 twice"),
    "a negative step": (put("evaluations", "step", 1, -5), "evaluations/step is -5 at row 1, and must not be negative"),
    "an absurd step": (put("evaluations", "step", 1, 2 ** 60), "must be no more than 9,007,199,254,740,992"),
    "no worker": (put("trials", "workers", 0, 0), "trials/workers is 0 at row 0, and must be at least 1"),
    "an absurd batch": (put("trials", "global_batch", 0, 2 ** 62), "must be no more than"),
    "negative seconds": (put("evaluations", "train_seconds", 1, -1.0), "evaluations/train_seconds is -1.0 at row 1"),
    "milliseconds": (unit("evaluations", "train_seconds", "milliseconds"),
                     "evaluations/train_seconds is in milliseconds where seconds belongs"),
    "a metric in percent": (unit("evaluations", "val/error", "percent"), "val/error is in percent where 1 belongs"),
    "no seconds": (without("evaluations", "train_seconds"), "evaluations has no column train_seconds"),
    "no plans": (without("trials", "plan"), "trials has no column plan"),
    "absurd size": (hollow(10 ** 12), "claims 1,000,000,000,000 rows, but has 0 bytes"),
    "a newer version": (attribute("version", 7), "is written in schema version 7, this hvdscale"),
    "a version that is none": (attribute("version", "x"), "is damaged"),
    "foreign": (attribute("format", "netcdf"), "is an HDF5 file, but not an hvdscale log"),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A log of two trials, evaluated each five steps."""
    trials = [trial(at, (0, 5, 10), (0.9, 0.5, 0.1), seed=at, eval_every=5) for at in (1, 2)]
    ordered = made_log(*trials)
    order = np.lexsort((ordered.evaluations["step"], ordered.evaluations["trial"]))
    for name, values in ordered.evaluations.items():
        ordered.evaluations[name] = values[order]
    return save(ordered, tmp_path_factory.mktemp("plain") / "plain.h5")


@pytest.mark.parametrize("how", BROKEN)
def test_each_way_to_break_a_log_has_its_message(tmp_path, plain, how):
    change, said = BROKEN[how]
    path = changed(shutil.copy(plain, tmp_path / "bad.h5"), change)
    for command, arguments in ((report.main, [path]), (compare.main, [plain, path]), (plan.main, [path])):
        done = invoke(command, *arguments)
        assert done.exit_code == 1 and said in done.output and str(path) in done.output, done.output
    assert invoke(log.main, "check", path).exit_code == 1


@pytest.mark.parametrize("kind", ["csv", "archive"])
def test_a_status_that_there_is_not_ends_an_export(tmp_path, plain, kind):
    change, said = BROKEN["a status that there is not"]
    path = changed(shutil.copy(plain, tmp_path / "bad.h5"), change)
    done = invoke(log.main, "export", path, tmp_path / "out", "--as", kind)
    assert done.exit_code == 1 and said in done.output and not (tmp_path / "out").exists()


@pytest.mark.parametrize("data, said", [
    (b"", "is an empty file, not a log"), (b"step,error\n1,2\n", "is not an HDF5 file"),
    (None, "is cut off at byte "), (b"\x89HDF\r\n\x1a\n", "is truncated to 8 bytes")])
def test_a_file_that_is_no_log_or_half_of_one_is_named(tmp_path, plain, data, said):
    path = tmp_path / "bad.h5"
    with open(plain, "rb") as file:
        whole = file.read()
    path.write_bytes(whole[:len(whole) // 2] if data is None else data)
    for command, arguments in ((report.main, [path]), (compare.main, [plain, path]), (plan.main, [path]),
                               (log.main, ["ls", path]), (log.main, ["show", path]), (log.main, ["check", path]),
                               (log.main, ["merge", path, plain, "--out", tmp_path / "out.h5"])):
        done = invoke(command, *arguments)
        assert done.exit_code == 1 and said in done.output and str(path) in done.output, (command, done.output)


def a_plan():
    return json.loads(drawn(0, 300).row["plan"])


def put_in(where, value):
    """A plan with something else in that place."""
    inner = whole = a_plan()
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    return whole


def take_out(name):
    """A plan whose sweep lacks that entry."""
    whole = a_plan()
    del whole["sweep"][name]
    return whole


def test_an_entry_of_a_plan_that_is_not_what_it_should_be_or_is_not_there_is_named(golden):
    def said(call):
        with pytest.raises(LogError) as raised:
            plan_at("a.h5", 3, json.dumps(eval(call, globals())))
        return str(raised.value)
    golden("plan_entries", answered("plan_entries", said))


def test_plans_are_read_and_what_is_none_or_nested_beyond_any_is_not():
    assert read_plan(json.dumps(a_plan())) == a_plan()
    for made in (trial(), drawn(3, math.inf, diverged=True)):
        assert read_plan(made.row["plan"])["problem"]
    for text in ("", "{", "[]", "3", "[" * 100_000, "1" * 10_000):
        assert read_plan(text) == {}
    with pytest.raises(LogError, match="nested deeper than 40 times"):
        read_plan('{"a":' * 100 + "1" + "}" * 100)


@pytest.mark.parametrize("trials, said", [
    ([trial(1)], "one run"),
    ([trial(at, error=(0.9, 0.8, 0.7), seed=at) for at in (1, 2)], "was not met within 200 steps"),
    ([trial(at, seed=at, status=Status.INFEASIBLE) for at in (1, 2)], "every trial diverged"),
    ([trial(1, error=(math.nan,) * 3)], "was never measured in 1 of 1 trial"),
    ([trial(1, seconds=(math.nan,) * 3)], "took 200 steps"),
    ([trial(1, status=Status.RUNNING)], "no trial has run to its end and measured it yet")])
def test_logs_that_say_little_are_reported_as_far_as_they_go(tmp_path, trials, said):
    path = save(made_log(*trials), tmp_path / "little.h5")
    done = invoke(report.main, path)
    assert done.exit_code == 0 and said in " ".join(done.output.split()), done.output


def test_a_log_that_contradicts_itself_is_skipped_where_that_is_asked(tmp_path, plain, worded):
    bad = changed(shutil.copy(plain, tmp_path / "bad.h5"), put("trials", "id", 1, 1))
    done = invoke(report.main, plain, bad, "--skip-broken")
    worded(done.output, about="is in")
    assert done.exit_code == 0 and "skipped: " in done.output
