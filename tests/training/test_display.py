"""What rank 0 prints: the plan, then lines, or a bar on a terminal."""
import io
import math
import re

import pytest

from hvdscale.errors import ExitCode
from hvdscale.log.schema import Status
from hvdscale.plan.settle import Place
from hvdscale.training.display import BAR_SECONDS, LINE_SECONDS, Display, describe
from hvdscale.workers.launch import on_terminal
from hvdscale.training.snapshot import Outcome, Stop
from hvdscale.workers.launch import LAUNCHED
from tests.cli.test_live import Terminal
from tests.factories.plans import settled
from tests.wording import answered

METRICS = ("cross_entropy", "error")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for variable in LAUNCHED:
        monkeypatch.delenv(variable, raising=False)


def shown(out, plan, step_seconds, steps=100, every=10):
    """What is printed of a run whose steps take so long and are evaluated every so many."""
    now = [0.0]
    display = Display(plan, METRICS, out=out, clock=lambda: now[0])
    for step in range(steps + 1):
        if step % every == 0:
            display.evaluation(step, {"val/error": 1 / (1 + step), "val/cross_entropy": 2.0})
        if step < steps:
            now[0] += step_seconds
            display.step(step + 1, now[0], loss=0.5)
    display.end()
    display.say("done")
    return out.getvalue()


def test_lines_come_at_the_start_the_end_and_every_few_seconds():
    lines = shown(io.StringIO(), settled(steps=100), step_seconds=0.5).splitlines()
    steps = [int(re.match(r"step +(\d+)/100  ", line).group(1)) for line in lines[:-1]]
    assert steps[0] == 0 and steps[-1] == 100 and lines[-1] == "done"
    gaps = [0.5 * (b - a) for a, b in zip(steps[1:], steps[2:-1])]
    assert set(gaps) == {LINE_SECONDS}


def test_a_line_has_loss_metric_speed_and_time_left():
    lines = shown(io.StringIO(), settled(steps=100), step_seconds=0.5).splitlines()
    assert lines[0] == "step   0/100  val/error 1"
    said = "step  16/100 loss 0.5 val/error 0.09091 20 examples/s 0:42 left"
    assert lines[4].split() == said.split()


def test_the_target_names_the_metric_that_is_shown():
    text = shown(io.StringIO(), settled(steps=100, target="val/cross_entropy<0.1"), step_seconds=0.5)
    assert "val/cross_entropy 2 " in text and "val/error" not in text


def test_time_left_is_of_the_budget_in_seconds_where_it_is_one():
    lines = shown(io.StringIO(), settled(seconds=100), step_seconds=0.5).splitlines()
    assert re.match(r"step 4  loss 0.5 .* 1:38 left$", lines[1])
    assert re.match(r"step 16  loss 0.5 .* 1:32 left$", lines[4])


def course(last, step_seconds, evaluation, checkpoint, every=10, **budget):
    """The end of a run with evaluations, the first of twice the time, and a checkpoint at each tenth step; by step the
    time and what was printed by then; all that was printed."""
    now, out, lines, seconds = [0.0], io.StringIO(), {}, 0.0
    plan = settled(**budget, eval_every=every, checkpoint="kept", checkpoint_every=10)
    display = Display(plan, METRICS, out=out, clock=lambda: now[0])

    for step in range(last + 1):
        if plan.evaluates_at(step) or step == last:
            took = evaluation * (2 if step == 0 else 1)
            now[0] += took
            display.evaluation(step, {"val/error": 0.5}, took)
        if checkpoint and (step % 10 == 0 or step == last):
            now[0] += checkpoint
            display.checkpoint(checkpoint)
        if step < last:
            seconds += step_seconds
            now[0] += step_seconds
            display.step(step + 1, seconds, loss=0.5)
            lines[step + 1] = now[0], out.getvalue()
    return now[0], lines, out.getvalue()


@pytest.mark.parametrize("budget", [dict(steps=100), dict(seconds=50), dict(steps=100, batch_schedule=[[0, 10]])])
@pytest.mark.parametrize("evaluation, checkpoint", [(0.0, 0.0), (20.0, 0.0), (0.0, 12.0), (7.0, 9.0)])
def test_the_time_left_has_evaluations_and_checkpoints(budget, evaluation, checkpoint):
    end, lines, text = course(100, 0.5, evaluation, checkpoint, **budget)
    checked = 0
    for step in range(11, 100):
        now, shown = lines[step]
        if shown != lines[step - 1][1]:
            minutes, seconds = re.findall(r"(\d+):(\d\d) left", shown)[-1]
            assert 60 * int(minutes) + int(seconds) == pytest.approx(end - now, rel=0.2, abs=1), (step, shown)
            checked += 1
    assert checked > 10
    whole = re.findall(r"note: the budget of 50 s counts steps alone; .* takes about (\d+) s", text)
    assert len(whole) == ("seconds" in budget)
    assert all(float(seconds) == pytest.approx(end, rel=0.2) for seconds in whole)


@pytest.mark.parametrize("layer", [dict(eval_every=10), dict(eval_every="70 examples"), dict(eval_every=0)])
def test_the_evaluations_ahead_are_those_of_the_plan(layer):
    plan = settled(steps=57, **layer)
    for step in range(58):
        ahead = sum(plan.evaluates_at(later) for later in range(step + 1, 58))
        assert plan.evaluations_between(step, 57) == ahead


def test_a_resumed_run_shows_what_was_measured_before():
    out = io.StringIO()
    display = Display(settled(steps=100), METRICS, out=out, clock=lambda: 0.0)
    display.resume({"val/error": 0.25})
    display.step(51, 5.0, loss=0.5)
    assert "val/error 0.25" in out.getvalue()


def test_fp16_shows_the_loss_scale_and_how_many_updates_were_skipped():
    out = io.StringIO()
    display = Display(settled(steps=100), METRICS, out=out, clock=lambda: 0.0)
    display.scaled(8192.0, 3)
    display.step(51, 5.0, loss=0.5)
    assert re.search(r"step  51/100 .* left  loss scale 8192, 3 updates skipped$", out.getvalue(), re.M)
    display.measured(Outcome(Stop(Status.COMPLETE, "done", ExitCode.DONE), 51, {}, -1))
    assert "fp16: loss scale 8192, 3 updates skipped of 51; /steps" in out.getvalue()


@pytest.mark.parametrize("forward, busy, said", [
    ((8, 8), 0.05, None), ((8, 8), 0.3, "the host is busy: a worker waited for a core for 30% of its time"),
    ((4, 8), 0.05, "rank 1 is slow: 8 ms a step in its passes, the others 4; they wait for it"),
    ((4, 8), 0.3, "rank 1 is slow: 8 ms a step in its passes, the others 4; they wait for it (the host is busy: a "
                  "worker waited for a core for 30% of its time)")])
def test_a_slow_rank_is_never_said_without_the_busy_host(forward, busy, said):
    display = Display(settled(workers=2), METRICS, out=(out := io.StringIO()))
    for step in range(40):
        display.ranks(0.01, [0, 0, *(ms / 1000 for ms in forward)], math.nan if step % 2 else busy * 0.01)
    display.measured(Outcome(Stop(Status.COMPLETE, "done", ExitCode.DONE), 40, {}, -1))
    assert out.getvalue() == (f"  note: {said}\n" if said else "")


def test_on_a_terminal_there_is_one_line_redrawn_as_a_bar():
    text = shown(Terminal(), settled(steps=100), step_seconds=BAR_SECONDS / 4)
    assert text.count("\n") == 1 and text.endswith("\r\x1b[Kdone\n")
    bars = re.findall(r"\r\x1b\[K\[(#*)(-*)\] step +(\d+)/100", text)
    assert len(bars) < 100
    for filled, empty, step in bars:
        assert (len(filled), len(filled) + len(empty)) == (int(24 * int(step) / 100), 24)
    assert bars[-1] == ("#" * 24, "", "100")


@pytest.mark.parametrize("out", [io.StringIO(), Terminal()], ids=["lines", "bar"])
def test_the_last_progress_has_what_was_measured_at_the_last_step(out):
    drawn = re.findall(r"step 100/100 .*val/error (\S+)", shown(out, settled(steps=100), 0.5))
    assert drawn[-1] == f"{1 / 101:.4g}"


def test_plain_output_has_no_control_characters():
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", shown(io.StringIO(), settled(steps=100), step_seconds=0.5))


@pytest.mark.parametrize("variable", LAUNCHED)
def test_under_a_launcher_whose_output_is_no_terminal_there_is_no_bar(monkeypatch, variable):
    """Launchers give their workers terminals of their own; the parent of this process stands for one."""
    assert on_terminal(Terminal())
    monkeypatch.setenv(variable, "2")
    monkeypatch.setattr("os.readlink", lambda path: "pipe:[1]")
    assert not on_terminal(Terminal())
    monkeypatch.setattr("os.readlink", lambda path: "/dev/pts/3")
    assert on_terminal(Terminal())


# the plan in words

def described(workers=1, transport="single", device="cpu", **keys):
    return describe(settled(place=Place(workers, workers, 2, device, transport=transport), **keys), "runs/a.h5")


def test_plans_are_described_in_the_same_words(golden):
    """Of each plan what differs from the plan of the defaults, which comes first."""
    first = described().splitlines()

    def differing(call):
        lines = eval(call, {"described": described}).splitlines()
        return "\n".join(line for line in lines if call == "described()" or line not in first)
    golden("described", answered("described", differing))
