"""Figures and report.html: what they hold, and what a browser makes of them."""
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from base64 import b64encode
from hashlib import sha256
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest

from hvdscale.log.schema import Status
from hvdscale.report.pages import document_of_logs
from hvdscale.report.drawing import render
from hvdscale.report.page.html import as_html
from tests.conftest import lacks
from tests.factories.logs import log, study, trial
from tests.factories.shown import figures_of
from tests.factories.studies import realistic

VOID = {"meta", "link", "br", "img", "hr", "input"}


def document(*logs):
    return document_of_logs(logs, skipped=["broken.h5: <is> not HDF5"])


SCRIPT = "<script>alert('&')</script>"


def odd():
    """Logs with everything that is hard to show."""
    lost = trial(2, seed=1, workers=16, batch=512, status=Status.INFEASIBLE)
    never = trial(1, (0, 500, 900), (0.9, 0.5, 0.3), workers=16, batch=512, dataset="mnist", model="simple_cnn",
                  train_examples=55000, target="val/error<0.02")
    probe = trial(3, (), (), target=None, step_seconds=[0.1] * 5, dataset=SCRIPT)
    named = [trial(number, dataset=SCRIPT, batch=32 * number) for number in (4, 5)]
    return document(*study().values(), log(never, path="runs/w16.h5"), log(lost, probe, *named, path=f'{SCRIPT}".h5'))


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
        page = without_scripts(page)
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


@pytest.mark.parametrize("of_workers, name, texts", [
    (lambda w: {"step_seconds": [0.02] * 5, "communication_share": 0.1 * w}, "step-time-weak-32", [
        ">computing<", ">getting data<", ">waiting for communication, and its share<", ">40%<", ">workers W<",
        ">milliseconds a step (mean)<"]),
    (lambda w: {"seconds": (0, 1, 2 * 30 ** (w - 1) if w < 4 else 1800)}, "efficiency-weak-32", [">0.001<"]),
    (lambda w: {"error": (1, 1, 0.9 if w == 4 else 0.1)}, "steps-batch", ["not met: above", "one run"]),
    (lambda w: {"error": (1, 1, 0.9 if w == 4 else 0.1)}, "speedup-weak-32", ["not met: below"])])
def test_figures_hold_what_was_timed_and_met_and_what_was_not(of_workers, name, texts):
    logs = [log(trial(workers=w, batch=32 * w, **of_workers(w)), path=f"{w}.h5") for w in (1, 2, 4)]
    [(_, [page])] = document(*logs).pages
    drawn = render(next(figure for figure in page.figures if figure.name == name), "svg").decode()
    assert not [text for text in texts if text not in drawn]


@pytest.mark.parametrize("name, texts", [
    ("steps-batch", ["global batch B (examples)", "steps to target S", "256", "maximum useful batch: ≥ 256"]),
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


@pytest.mark.parametrize("changes", [
    {"error": (float("nan"),) * 3}, {"seconds": (float("nan"),) * 3}, {"steps": (100,), "error": (0.1,)},
    {"error": (-1, -2, -3)}, *(pytest.param(changes, marks=pytest.mark.slow) for changes in (
        {"steps": (0, 1, 2)}, {"error": (0.1, 0.1, 0.1)}, {"status": Status.INFEASIBLE}, {"worker_counts": (3, 1)}))])
def test_figures_are_drawn_whatever_was_measured(changes):
    [(_, [page])] = document(log(trial(**changes), trial(id=2, workers=2, batch=64, **changes))).pages
    for figure in page.figures:
        assert render(figure, "svg")
    assert page.section.target.column in as_html(document(log(trial(**changes))))


def test_the_curve_by_time_leaves_out_runs_whose_times_are_not_known():
    moved = trial(id=2, seed=1, worker_counts=(2, 1), seconds=(0, 77, 99))
    [(_, [page])] = document(log(trial(), moved)).pages
    [(_, [alone])], [(_, [moved_alone])] = document(log(trial())).pages, document(log(moved)).pages
    by_time, of_one = ({figure.name: figure for figure in one.figures}["curve-seconds"] for one in (page, alone))
    assert render(by_time, "svg") == render(of_one, "svg")
    assert "curve-seconds" not in [figure.name for figure in moved_alone.figures]


def test_no_figure_without_trials_that_ended():
    [(_, [page])] = document(log(trial(status=Status.RUNNING))).pages
    assert not [*figures_of(page.section)]


def without_scripts(page):
    """The page as one sees it that runs no script."""
    return re.sub(r"<script[^>]*>.*?</script>", "", page, flags=re.DOTALL)


def test_the_page_is_whole_and_loads_nothing(page):
    outline = Outline(page)
    assert not outline.open and not {"img", "iframe", "object"} & outline.tags
    assert all(target.startswith(("#", "data:,")) for target in outline.loads)
    rest = without_scripts(page)
    assert "http" not in re.sub(r'xmlns="[^"]*"|http-equiv', "", rest) and "@import" not in rest
    assert "default-src 'none'" in page                     # and the browser refuses what a script would load


def test_ids_are_unique_and_every_reference_finds_one(page):
    ids = Outline(page).ids
    assert len(ids) == len(set(ids))
    referred = re.findall(r'url\(#([^)]*)\)|href="#([^"]*)"|aria-labelledby="([^"]*)"|for="([^"]*)"',
                          without_scripts(page))
    assert {name for names in referred for name in names if name} <= set(ids)


def test_names_are_escaped(page):
    assert SCRIPT not in page and "alert('" not in without_scripts(page)
    assert "&lt;script&gt;alert(&#39;&amp;&#39;)" in page and "&lt;is&gt; not HDF5" in page


def test_headings_descend_by_one_and_figures_have_a_text(page):
    headings = Outline(page).headings
    assert headings[0] == 1 and all(after - before <= 1 for before, after in zip(headings, headings[1:]))
    page = without_scripts(page)
    assert page.count('role="img" aria-label="') == page.count("<figure ") > 4
    assert '<html lang="en">' in page and "<th scope=" in page


def test_the_page_says_it_in_words_before_the_tables(page):
    at = page.index("mnist/simple_cnn, nesterov, 55,000 training examples</h2>")
    assert page.index("x the speed", at) < page.index("<table", at)
    assert "not met" in page[at:] and "Method and provenance" in page[at:]


def test_under_every_figure_stands_how_many_trials_it_is_made_of(page):
    captions = re.findall("<figcaption>.*?</figcaption>", page, re.DOTALL)
    assert captions and all(re.search(r"\b[\d,]+ trials? behind this figure\b", caption) for caption in captions)


def test_every_colour_has_a_stand_in_for_dark_pages(page):
    used = set(re.findall(r"var\(--c([0-9a-f]{6})\)", page))
    dark = page[page.index("@media (prefers-color-scheme:dark){:root{--c"):]
    assert used and all(f"--c{color}:#" in dark for color in used)


WIDE = """
tell("wide", document.documentElement.scrollWidth - document.documentElement.clientWidth);
tell("loaded", performance.getEntriesByType("resource").length);
console.error("heard");
"""
SORT = """
const table = document.querySelector("[id^=mnist][id$=-batches]").parentNode.querySelector("table");
const head = [...table.tHead.rows[0].cells].find(one => one.textContent.startsWith("steps"));
const column = () => [...table.tBodies[0].rows].map(row => row.cells[head.cellIndex].firstChild.textContent);
for (const name of ["asis", "up", "down", "again"]) {
  tell(name, [head.getAttribute("aria-sort"), column()]);
  head.querySelector("button").focus();
  head.querySelector("button").click();
}
tell("focused", document.activeElement === head.querySelector("button"));
"""
VALUES = """
const svg = document.querySelector("figure svg"), marks = [...svg.querySelectorAll("[role=img]")];
const note = () => document.querySelector(".note").textContent;
const press = key => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
tell("named", marks.map(mark => mark.getAttribute("aria-label")));
marks[0].dispatchEvent(new PointerEvent("pointerenter"));
tell("pointed", note());
marks[0].dispatchEvent(new PointerEvent("pointerleave"));
tell("left", [note(), document.querySelectorAll("figure svg title").length]);
svg.focus();
press("ArrowRight");
press("ArrowRight");
tell("keyed", note());
const entry = [...svg.querySelectorAll("[role=checkbox]")].find(one => one.textContent === "steps to target");
const series = [...svg.querySelectorAll(`[data-series="${entry.dataset.entry}"]`)];
const shown = () => [entry.getAttribute("aria-checked"), series.filter(one => one.getClientRects().length).length];
tell("series", [series.length, shown(), (entry.focus(), press("Enter"), shown()),
  (entry.dispatchEvent(new MouseEvent("click")), shown())]);
const field = document.querySelector(".filter input"), bar = field.closest(".filter");
document.querySelectorAll("details").forEach(one => { one.open = true; });
const rows = [...bar.nextElementSibling.querySelectorAll("tbody tr")];
const filter = text => {
  field.value = text;
  field.dispatchEvent(new Event("input"));
  return [rows.filter(row => row.getClientRects().length).length, bar.querySelector("[role=status]").textContent];
};
tell("filtered", [filter("complete 64"), filter("COMPLETE"), filter("nowhere"), filter(""), rows.length]);
tell("labelled", field.labels[0].textContent);
"""
PLACES = """
const top = one => one && Math.round(one.getBoundingClientRect().top + scrollY);
const page = document.querySelector("section:has(> .verdict)");
tell("places", [".verdict", "figure", "table", ".findings"].map(name => top(page.querySelector(name))));
"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    """Open a page in headless Chromium and run probes in it; gives back all that they tell, by name, the page as it
    then stands as "page", and what was said on its console as "console"."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if not found:
        lacks("chromium", "needs chromium on PATH")
    tmp = tmp_path_factory.mktemp("chromium")

    def run(page, *probes, width=1200):
        script = "".join(f"(() => {{{probe}}})();" for probe in probes)
        script = f"""const found = {{}}, tell = (name, value) => {{ found[name] = value; }};
          onload = () => {{ {script} document.querySelector("#told").textContent = JSON.stringify(found); }};"""
        probed = page.replace("</body>", f'<pre id="told"></pre><script>{script}</script></body>')
        allowed = b64encode(sha256(script.encode()).digest()).decode()
        (tmp / "report.html").write_text(probed.replace("script-src ", f"script-src 'sha256-{allowed}' ", 1))
        done = subprocess.run(
            [found, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
             "--enable-logging=stderr", f"--user-data-dir={tmp / 'profile'}", f"--window-size={width},900",
             "--dump-dom", f"file://{tmp}/report.html"], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        [told] = re.findall('<pre id="told">(.*?)</pre>', done.stdout, re.DOTALL)
        return {"page": done.stdout, "console": re.findall(r'CONSOLE.*?"(.*?)", source', done.stderr),
                **json.loads(unescape(told))}
    return run


@pytest.fixture(scope="module")
def shown(page, chromium):
    return chromium(page, WIDE, SORT, VALUES)


def test_a_browser_shows_the_page_without_errors_or_requests(page, shown):
    assert shown["console"] == ["heard"]                # our own probe is heard, and nothing else is said
    assert (shown["wide"], shown["loaded"]) == (0, 0)
    assert "Method and provenance" in shown["page"] and shown["page"].count("<figure ") == page.count("<figure ")


def test_a_script_that_got_into_the_page_does_not_run(page, chromium):
    intruder = '<script>document.title = "script"</script><img src="data:," onerror="document.title = \'handler\'">'
    told = chromium(page.replace("<main>", f"<main>{intruder}", 1), SORT, 'tell("title", document.title);')
    assert told["title"] == unescape(re.search("<title>(.*?)</title>", page)[1])
    assert len(told["console"]) == 2 and all("violates" in said and "script-src" in said for said in told["console"])
    assert told["up"] != told["down"]                   # the page's own script runs
    assert "unsafe" not in re.search("script-src ([^;]*)", page)[1]


def test_the_page_fits_a_narrow_screen(page, chromium):
    told = chromium(page, WIDE, width=500)
    assert (told["wide"], told["console"]) == (0, ["heard"])


@pytest.mark.parametrize("width", [1200, 390])
def test_the_first_picture_lies_directly_under_the_verdict(page, chromium, width):
    verdict, picture, table, findings = chromium(page, PLACES, width=width)["places"]
    assert verdict < picture < table < findings and picture < 1100


def test_other_figures_lie_under_their_subjects():
    page = as_html(document(*study().values()))
    assert re.findall("<h4>(.*?)</h4>", page) == ["Workers", "Training"]


def test_a_point_shows_its_value_when_hovered_over(page):
    titles = re.findall(r"<title>(\d[^<]*)</title>", page)
    assert any(re.fullmatch(r"[\d,]+: [\d.,kM]+ \([^)]+\)", title) for title in titles)


def test_a_value_shows_at_once_by_pointer_and_by_keys(shown):
    assert shown["pointed"] == shown["named"][0] and shown["keyed"] == shown["named"][1]
    assert shown["left"] == ["", 0] and re.fullmatch(r"[\d,]+: .+", shown["pointed"])


def test_an_entry_of_a_legend_hides_its_series(shown):
    count, *states = shown["series"]
    assert count > 1 and states == [["true", count], ["false", 0], ["true", count]]


def test_the_table_of_runs_is_filtered_by_all_words(shown):
    some, complete, none, every, rows = shown["filtered"]
    assert shown["labelled"] == "Filter rows " and every == [rows, f"{rows} of {rows}"]
    assert 0 < some[0] < complete[0] <= rows and some[1] == f"{some[0]} of {rows}" and none == [0, f"0 of {rows}"]


def test_a_table_sorts_by_its_heads(shown):
    (no, asis), (up, rising), (down, falling), again = (shown[name] for name in ("asis", "up", "down", "again"))
    assert (no, up, down) == (None, "ascending", "descending") and again == [None, asis] and shown["focused"]
    values = [float(text.replace(",", "")) for text in rising if text.replace(",", "").isdigit()]
    assert values == sorted(values) and falling == rising[::-1] and sorted(asis) == sorted(rising) and asis != rising
    assert rising[-1].startswith(">")


@pytest.mark.parametrize("trials", [6, pytest.param(100, marks=pytest.mark.slow)])
def test_a_sweep_of_ten_batches_makes_a_page_of_less_than_half_a_megabyte(trials):
    made = []
    for at in range(10):
        drawn = realistic(2 ** at, 0.3, 2000, count=2 * trials, wanted=trials, keep=None, seed=at)
        for one in drawn:
            one.error = one.error + np.linspace(0.5, 0, len(one.error)) ** (1 + one.row["id"] / 100)
        made.append(log(*drawn, path=f"b{at}.h5"))
    whole = document(*made).with_main_figures()
    [(_, [page, *_])] = whole.pages
    assert len(page.section.trials) >= 10 * trials and len(as_html(whole).encode()) < 500_000
