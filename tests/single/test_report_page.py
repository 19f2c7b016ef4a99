"""Figures and report.html: what they hold, and what a browser makes of them."""
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest

from hvdscale.analysis.sections import analyse
from hvdscale.analysis.trials import read_trials
from hvdscale.log.schema import Status
from hvdscale.report.document import document_of, facts_of
from hvdscale.report.drawing import render
from hvdscale.report.figures import figures_of
from hvdscale.report.html import as_html
from tests.conftest import lacks
from tests.single.made_logs import log, study, trial

VOID = {"meta", "link", "br", "img", "hr", "input"}


def document(*logs):
    trials = [found for made in logs for found in read_trials(made)]
    return document_of(analyse(trials), [facts_of(made) for made in logs], skipped=["broken.h5: <is> not HDF5"])


def odd():
    """Logs with everything that is hard to show."""
    lost = trial(2, seed=1, workers=16, batch=512, status=Status.INFEASIBLE)
    never = trial(1, (0, 500, 900), (0.9, 0.5, 0.3), workers=16, batch=512, dataset="mnist", model="simple_cnn",
                  train_examples=55000, target="val/error<0.02")
    probe = trial(3, (), (), target=None, step_seconds=[0.1] * 5, dataset="<script>alert('&')</script>")
    return document(*study().values(), log(never, path="runs/w16.h5"), log(lost, probe, path='runs/"odd".h5'))


@pytest.fixture(scope="module")
def page():
    return as_html(odd())


@pytest.fixture(scope="module")
def figures():
    [(_, [page])] = document(*study().values()).pages
    return {figure.name: figure for figure in page.figures}


class Outline(HTMLParser):
    """What a page holds: tags that close, ids, links out, text of each tag."""

    def __init__(self, page):
        super().__init__()
        self.open, self.ids, self.loads, self.headings, self.tags = [], [], [], [], set()
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.add(tag)
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.loads += [attributes[name] for name in ("src", "href", "xlink:href", "srcset") if name in attributes]
        self.headings += [int(tag[1])] if re.fullmatch("h[1-6]", tag) else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_every_figure_is_drawn_for_a_study(figures):
    assert list(figures) == ["steps-batch", "speedup-weak-32", "efficiency-weak-32", "curve-step", "curve-seconds"]


def test_where_a_step_s_time_goes_is_drawn_where_it_was_timed():
    logs = [log(trial(workers=w, batch=32 * w, step_seconds=[0.02] * 5, communication_share=0.1 * w), path=f"{w}.h5")
            for w in (1, 2, 4)]
    [(_, [page])] = document(*logs).pages
    [figure] = [figure for figure in page.figures if figure.name == "step-time-weak-32"]
    drawn = render(figure, "svg").decode()
    for text in ("computing", "getting data", "waiting for communication, and its share", "40%", "workers W",
                 "milliseconds a step (median)"):
        assert f">{text}<" in drawn


def test_tiny_efficiencies_are_drawn_on_a_scale_that_shows_them():
    logs = [log(trial(workers=w, batch=32 * w, seconds=(0, 1, 2 * 30 ** (w - 1))), path=f"{w}.h5") for w in (1, 2, 3)]
    [(_, [page])] = document(*logs).pages
    [figure] = [figure for figure in page.figures if figure.name.startswith("efficiency")]
    assert ">0.001<" in render(figure, "svg").decode()


@pytest.mark.parametrize("name, texts", [
    ("steps-batch", ["global batch B (examples)", "steps to target S", "perfect scaling", "32", "256", "512"]),
    ("speedup-weak-32", ["workers W", "speedup over 1 worker", "ideal", "lost to the system", "lost to statistics"]),
    ("efficiency-weak-32", ["statistical efficiency", "system efficiency", "their product", "ideal"]),
    ("curve-step", ["steps", "validation error", "W = 1, B = 32", "W = 8, B = 256", "target val/error<0.02"]),
    ("curve-seconds", ["training time (seconds, evaluation left out)", "validation error"])])
def test_a_figure_s_axes_and_legend_say_what_they_show(figures, name, texts):
    root = ElementTree.fromstring(render(figures[name], "svg"))
    written = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert set(texts) <= written


def test_a_figure_is_the_same_file_each_time(figures):
    figure = figures["steps-batch"]
    assert render.__wrapped__(figure, "svg") == render.__wrapped__(figure, "svg")
    assert render(figure, "png").startswith(b"\x89PNG")


def test_figures_hold_what_was_not_met_and_what_stands_on_one_run():
    logs = [log(trial(workers=w, batch=32 * w, steps=(0, 100, 200), error=(1, 1, error)), path=f"{w}.h5")
            for w, error in ((1, 0.1), (2, 0.1), (4, 0.9))]
    [(_, [page])] = document(*logs).pages
    drawn = render(page.figures[0], "svg").decode()
    assert "not met: above" in drawn and "one run" in drawn
    assert "not met: below" in render(page.figures[1], "svg").decode()


@pytest.mark.parametrize("changes", [
    {"error": (float("nan"),) * 3}, {"steps": (0, 1, 2)}, {"error": (0.1, 0.1, 0.1)}, {"seconds": (float("nan"),) * 3},
    {"status": Status.INFEASIBLE}, {"steps": (100,), "error": (0.1,)}, {"error": (-1, -2, -3)},
    {"worker_counts": (3, 1)}])
def test_figures_are_drawn_whatever_was_measured(changes):
    [(_, [page])] = document(log(trial(**changes), trial(id=2, workers=2, batch=64, **changes))).pages
    for figure in page.figures:
        assert render(figure, "svg")
    assert page.section.target.column in as_html(document(log(trial(**changes))))


def test_the_curve_by_time_leaves_out_runs_whose_times_are_not_known():
    moved = trial(id=2, seed=1, worker_counts=(2, 1), seconds=(0, 77, 99))
    [(_, [page])] = document(log(trial(), moved)).pages
    by_time = render(next(figure for figure in page.figures if figure.name == "curve-seconds"), "svg").decode()
    [(_, [page])] = document(log(trial())).pages
    alone = render(next(figure for figure in page.figures if figure.name == "curve-seconds"), "svg").decode()
    assert by_time == alone
    [(_, [page])] = document(log(moved)).pages
    assert [figure.name for figure in page.figures] == ["curve-step"]


def test_no_figure_without_trials_that_ended():
    [(_, [page])] = document(log(trial(status=Status.RUNNING))).pages
    assert figures_of(page.section) == ()


def test_the_page_is_whole_and_loads_nothing(page):
    outline = Outline(page)
    assert not outline.open and not {"script", "img", "iframe", "object"} & outline.tags
    assert all(target.startswith(("#", "data:,")) for target in outline.loads)
    assert "http" not in re.sub(r'xmlns="[^"]*"', "", page) and "@import" not in page and "url(http" not in page


def test_ids_are_unique_and_every_reference_finds_one(page):
    ids = Outline(page).ids
    assert len(ids) == len(set(ids))
    referred = re.findall(r'url\(#([^)]*)\)|href="#([^"]*)"|aria-labelledby="([^"]*)"', page)
    assert {name for names in referred for name in names if name} <= set(ids)


def test_names_are_escaped(page):
    assert "<script>" not in page and "&lt;script&gt;alert(&#x27;&amp;&#x27;)" in page
    assert "&lt;is&gt; not HDF5" in page and 'runs/"odd"' not in page


def test_headings_descend_by_one_and_figures_have_a_text(page):
    headings = Outline(page).headings
    assert headings[0] == 1 and all(after - before <= 1 for before, after in zip(headings, headings[1:]))
    assert page.count('<svg role="img" aria-label="') == page.count("<figure ") > 4
    assert '<html lang="en">' in page and "<th scope=" in page


def test_the_page_says_it_in_words_before_the_tables(page):
    at = page.index("mnist/simple_cnn, nesterov, 55,000 training examples</h2>")
    assert page.index("times as fast", at) < page.index("<table", at)
    assert "not met" in page[at:] and "Method and provenance" in page[at:]


def test_every_colour_has_a_stand_in_for_dark_pages(page):
    used = set(re.findall(r"var\(--c([0-9a-f]{6})\)", page))
    dark = page[page.index("@media (prefers-color-scheme:dark){:root{--c"):]
    assert used and all(f"--c{color}:#" in dark for color in used)


@pytest.fixture
def chromium(tmp_path):
    """Open a file in headless Chromium; gives back the page as it then stands and what was said on its console."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if not found:
        lacks("chromium", "needs chromium on PATH")

    def run(path, *flags):
        done = subprocess.run(
            [found, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
             "--enable-logging=stderr", f"--user-data-dir={tmp_path / 'profile'}", *flags, "--dump-dom",
             f"file://{path}"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout, re.findall(r'CONSOLE.*?"(.*?)", source', done.stderr)
    return run


PROBE = """<script>onload = () => console.error(
  "wide by", document.documentElement.scrollWidth - document.documentElement.clientWidth,
  "loaded", performance.getEntriesByType("resource").length)</script></body>"""


@pytest.mark.parametrize("width", [500, 1200])
def test_a_browser_shows_the_page_without_errors_or_requests(page, chromium, tmp_path, width):
    path = tmp_path / "report.html"
    path.write_text(page.replace("</body>", PROBE))
    shown, console = chromium(path, f"--window-size={width},900")
    assert console == ["wide by 0 loaded 0"]            # our own probe is heard, and nothing else is said
    assert "Method and provenance" in shown and shown.count("<svg") == page.count("<svg")
