"""Figures draw what tables and findings say, and name no more than they draw."""
import numpy as np
import pytest

from hvdscale.report.document import facts_of
from hvdscale.report.drawing import as_matplotlib, render
from hvdscale.report.page.html import as_html
from hvdscale.report.pages import document_of_logs
from hvdscale.report.runs import read
from hvdscale.report.plan.views import figures_of_plan
from hvdscale.report.table import NO_INTERVAL, as_records
from tests.analysis.test_worker_plan import plan, run
from tests.factories.logs import log, trial
from tests.factories.studies import realistic
from tests.report.test_study_figures import axes_of, labels


def page_of(*trials, **rest):
    [(_, [page])] = document_of_logs([log(*trials, **rest)]).pages
    return page


def figures_of(page):
    return {figure.name: figure for figure in page.figures}


def runs(steps=(900, 500, 200), seconds=(90.0, 60.0, 10.0), waiting=0.1, error=(0.9, 0.5, 0.05), counts=(1, 2, 3),
         **rest):
    """Two seeds at 1, 2 and 3 workers of 32 examples each."""
    return [trial(10 * w + seed, (0, s // 2, s + 10 * seed), error, (0, t / 2, t + seed), workers=w, batch=32 * w,
                  seed=seed, step_seconds=[0.1] * 4, communication_share=waiting, **rest)
            for w, s, t in zip(counts, steps, seconds) for seed in (0, 1)]


def test_nothing_is_shaded_where_time_is_gained():
    [axes] = axes_of(figures_of(page_of(*runs()))["speedup-weak-32"])
    for area in axes.collections:
        corners = area.get_paths()[0].vertices
        last = corners[np.isclose(corners[:, 0], corners[:, 0].max())]
        assert np.ptp(last[:, 1]) < 1e-9 and np.ptp(corners[np.isclose(corners[:, 0], 2)][:, 1]) > 0.05
    assert {"lost to the system", "lost to statistics"} <= {*labels(axes)}


@pytest.mark.parametrize("steps, seconds, lost", [
    ((900, 400, 200), (90.0, 30.0, 10.0), set()), ((900, 430, 280), (90.0, 80.0, 70.0), {"lost to the system"})])
def test_a_legend_names_only_what_is_lost(steps, seconds, lost):
    [axes] = axes_of(figures_of(page_of(*runs(steps, seconds)))["speedup-weak-32"])
    assert {name for name in labels(axes) if name.startswith("lost")} == lost


def test_a_legend_names_only_parts_of_a_step_that_are_seen():
    [axes] = axes_of(figures_of(page_of(*runs(waiting=0.0)))["step-time-weak-32"])
    assert labels(axes) == ["computing", "getting data"]


def test_a_regime_that_ends_at_the_largest_batch_is_an_arrow():
    page = page_of(*runs())
    [axes] = axes_of(figures_of(page)["steps-batch"])
    assert "maximum useful batch: \N{GREATER-THAN OR EQUAL TO} 96" in labels(axes)
    assert not [one for one in axes.lines if [*one.get_xdata()] == [96, 96] and one.get_linestyle() == ":"]
    assert [text.xy[0] for text in axes.texts] == [96, 96]
    [axes] = axes_of(figures_of(page_of(*runs((900, 500, 490))))["steps-batch"])
    assert "maximum useful batch: 64" in labels(axes) and [64, 64] in [[*one.get_xdata()] for one in axes.lines]


def searched(batches=4):
    [(_, [page])] = document_of_logs([
        log(*realistic(8 * 2 ** at, 0.3, 2000, count=6, wanted=3, keep=None, seed=at), path=f"b{at}.h5")
        for at in range(batches)]).pages
    return page


def test_no_interval_is_drawn_that_the_table_refuses():
    page = searched()
    refused = [row.cells[0].value for row in page.tables[0].rows if NO_INTERVAL in [one.below for one in row.cells]]
    [axes] = axes_of(figures_of(page)["steps-batch"])
    assert refused and not [text for text in axes.texts if text.xy[0] in refused]
    assert not [one for one in axes.lines if one.get_marker() == "_" and one.get_xdata()[0] in refused]


def test_learning_rates_are_decimals_in_every_figure():
    for name in ("best-learning-rate", "base-rates"):
        for axes in axes_of(figures_of(searched())[name], laid_out=True):
            ticks = [label.get_text() for label in axes.yaxis.get_ticklabels()]
            assert all(float(tick.replace(",", "")) > 0 for tick in ticks)


def test_every_number_of_trials_has_its_tick():
    [axes] = axes_of(figures_of(searched())["best-of-n"], laid_out=True)
    assert [label.get_text() for label in axes.xaxis.get_ticklabels()] == ["1", "2", "3"]


def test_axes_beside_each_other_are_as_high_and_begin_as_high():
    found = figures_of(page_of(*runs()))
    tops, heights = set(), set()
    for name in ("steps-batch", "speedup-weak-32", "efficiency-weak-32", "curve-step"):     # titles of a line, of two
        canvas = as_matplotlib(found[name])
        box = canvas.axes[0].get_position()
        tops.add(round(canvas.get_figheight() * (1 - box.y1), 1))
        heights.add(round(canvas.get_figheight() * box.height, 1))
    assert len(tops) == 1 and max(heights) - min(heights) <= 0.15


def test_an_unmet_target_shows_the_curves_and_a_target_that_all_met():
    page = page_of(*runs(error=(0.9, 0.5, 0.313), target="val/error<0.01"))
    assert [figure.name for figure in page.figures][:2] == ["curve-step", "curve-seconds"]
    assert "steps-batch" not in figures_of(page) and "time to target" not in labels(
        axes_of(figures_of(page)["speedup-weak-32"])[0])
    assert page.verdict[0] == ("No run met val/error<0.01: the best was 0.313. Every batch met val/error<0.32; see "
                               "--target 'val/error<0.32'.")
    looser = page_of(*runs(error=(0.9, 0.5, 0.313), target="val/error<0.32"))
    assert "0/2" not in [cell.shown for cell in looser.tables[0].rows[0].cells] and "met" not in looser.verdict[0]


def test_the_verdict_begins_with_all_batches_rather_than_the_worst():
    found = []
    for batch in (32, 64, 128, 256, 512):
        for seed in (0, 1):
            steps = np.arange(0, 3 * (6000 // batch + 30), 10)
            error = 0.5 * np.exp(-steps / (6000 // batch + 30))
            error[8] = 0.1                          # by noise
            found.append(trial(batch + seed, steps, error, np.full(len(steps), np.nan), batch=batch, seed=seed,
                               keep_going=True))
    page = page_of(*found)
    assert "perfect scaling" in page.verdict[0].lower()
    assert [one for one in page.findings if "by noise" in one.said]


def test_runs_have_a_table_with_what_distinguishes_their_settings():
    page = page_of(*runs()[:2], trial(1, batch=32, peak_lr=0.2), trial(2, batch=32, peak_lr=0.3, error=(0.9, 0.8, 0.7)))
    [table] = [table for table in page.details if table.name == "runs"]
    found = {record["run"]: record for record in as_records(table)}
    assert [found[f"made.h5:{at}"]["peak_lr"] for at in (10, 1, 2)] == [0.1, 0.2, 0.3]
    assert found["made.h5:1"]["run_steps"] == 200 and np.isinf(found["made.h5:2"]["run_steps"])
    assert found["made.h5:2"]["run_best"] == 0.7 and found["made.h5:2"]["trials"] == (("made.h5", 2),)


def test_runs_of_other_programs_go_by_their_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed in (1, 2):
        folder = tmp_path / "runs" / f"s{seed}"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(f'{{"batch_size": 32, "seed": {seed}, "lr": 0.1}}')
        (folder / "metrics.csv").write_text("step,val_error,seconds\n0,0.9,0\n50,0.5,5\n100,0.1,10\n")
    with read(["runs", "runs"]) as found:
        page = as_html(found.document())
        assert [facts_of(made).path for made in found.logs] == ["runs"]
    assert page.count("<code>runs/s1/metrics.csv</code>") > 1 and "runs.h5" not in page


# Times of hosts with more workers than cores

EXPLAINED = "too few free cores"


def on_hosts(cores):
    """Figures of runs at 1, 2 and 4 workers on hosts with that many cores, by name."""
    return figures_of(page_of(*runs((120, 60, 30), (120.0, 60.0, 30.0), 0.2, counts=(1, 2, 4), cores=cores)))


def hollow(axes):
    """Marker and rounded place of each hollow mark."""
    return {(line.get_marker(), round(line.get_xdata()[0])) for line in axes.lines
            if len(line.get_xdata()) == 1 and line.get_markerfacecolor() == "white"}


@pytest.mark.parametrize("cores, workers", [(8, set()), (2, {4}), (1, {2, 4})])
def test_only_marks_of_times_are_hollow_at_crowded_worker_counts(cores, workers):
    found = on_hosts(cores)
    for name in ("speedup-weak-32", "efficiency-weak-32"):
        [axes] = axes_of(found[name])
        assert hollow(axes) == {(marker, at) for marker in "so" for at in workers}
        assert ("Hollow marks: the host had too few free cores" in found[name].caption) == bool(workers)
    assert not hollow(axes_of(found["steps-batch"])[0])
    assert {name for name, figure in found.items() if EXPLAINED in render(figure, "svg").decode()} == (
        {"speedup-weak-32", "efficiency-weak-32", "step-time-weak-32", "curve-seconds"} if workers else set())


def test_worker_counts_in_other_figures_have_the_tables_mark():
    found = on_hosts(2)
    (by_time,), (by_step,), (parts,) = (axes_of(found[name]) for name in (
        "curve-seconds", "curve-step", "step-time-weak-32"))
    styles = {line.get_label().partition(",")[0]: line.get_linestyle() for line in by_time.lines}
    assert (styles["W = 2"], styles["W = 4#"]) == ("-", "--")
    assert {"W = 4"} <= {line.get_label().partition(",")[0] for line in by_step.lines}
    assert [parts.xaxis.get_major_formatter()(at) for at in range(3)] == ["1", "2", "4#"]


def test_a_plans_figures_mark_them_too():
    for cores, marks in ((1, (2, 2, 2)), (64, (0, 0, 0))):
        figures = figures_of_plan(plan(*(run(workers, cores=cores) for workers in (2, 4)), workers=(2, 4),
                                       local_batch=32))
        texts = [[text.get_text() for text in axes_of(figure)[0].texts] for figure in figures]
        assert tuple(sum(text.endswith("#") for text in some) for some in texts) == marks
        assert {EXPLAINED in render(figure, "svg").decode() for figure in figures} == {bool(marks[0])}
