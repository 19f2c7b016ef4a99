"""Times of hosts with more workers than cores are told from others in every figure that shows them."""
import pytest
from matplotlib.figure import Figure as Canvas

from hvdscale.report.drawing import render
from hvdscale.report.plan.figures import figures_of_plan
from tests.factories.logs import log, trial
from tests.report.test_tables import sections
from tests.analysis.test_worker_plan import plan, run
from tests.factories.shown import figures_of

TIMES = ("speedup-weak-32", "efficiency-weak-32", "step-time-weak-32", "curve-seconds")
EXPLAINED = "too few free cores"


def figures(cores):
    """Those of two runs each at 1, 2 and 4 workers on hosts with that many cores, by name."""
    made = [trial(10 * w + seed, (0, 80 // w, 120 // w), (0.9, 0.5, 0.05), (0, 80 / w, 120 / w + seed), workers=w,
                  batch=32 * w, seed=seed, cores=cores, step_seconds=[0.1] * 4, communication_share=0.2)
            for w in (1, 2, 4) for seed in range(2)]
    [section] = sections(log(*made))
    return {figure.name: figure for figure in figures_of(section)}


def drawn(figure):
    axes = Canvas().add_subplot()
    figure.draw(axes)
    return axes


def hollow(axes):
    """Marker and rounded place of each hollow mark."""
    return {(line.get_marker(), round(line.get_xdata()[0])) for line in axes.lines
            if len(line.get_xdata()) == 1 and line.get_markerfacecolor() == "white"}


@pytest.mark.parametrize("cores, workers", [(8, set()), (2, {4}), (1, {2, 4})])
def test_only_marks_of_times_are_hollow_at_crowded_worker_counts(cores, workers):
    found = figures(cores)
    assert hollow(drawn(found["speedup-weak-32"])) == {(marker, at) for marker in "so" for at in workers}
    assert hollow(drawn(found["efficiency-weak-32"])) == {(marker, at) for marker in "so" for at in workers}
    assert not hollow(drawn(found["steps-batch"]))
    for name in TIMES[:2]:
        assert ("Hollow marks: the host had too few free cores" in found[name].caption) == bool(workers)


def test_legends_say_what_the_marks_mean_where_there_are_any():
    for cores, explained in ((2, set(TIMES)), (8, set())):
        assert {name for name, figure in figures(cores).items()
                if EXPLAINED in render(figure, "svg").decode()} == explained


def test_worker_counts_in_other_figures_have_the_tables_mark():
    found = figures(2)
    axes = drawn(found["curve-seconds"])
    styles = {line.get_label().partition(",")[0]: line.get_linestyle() for line in axes.lines}
    assert (styles["W = 2"], styles["W = 4#"]) == ("-", "--")
    assert {"W = 4"} <= {line.get_label().partition(",")[0] for line in drawn(found["curve-step"]).lines}
    ticks = drawn(found["step-time-weak-32"]).xaxis.get_major_formatter()
    assert [ticks(at) for at in range(3)] == ["1", "2", "4#"]


def test_a_plans_figures_mark_them_too():
    for cores, marks in ((1, (2, 2, 2)), (64, (0, 0, 0))):
        figures = figures_of_plan(plan(*(run(workers, cores=cores) for workers in (2, 4)), workers=(2, 4),
                                       local_batch=32))
        texts = [[text.get_text() for text in drawn(figure).texts] for figure in figures]
        assert tuple(sum(text.endswith("#") for text in some) for some in texts) == marks
        assert {EXPLAINED in render(figure, "svg").decode() for figure in figures} == {bool(marks[0])}
