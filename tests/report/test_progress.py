"""What a report says of what it is doing."""
import io
from contextlib import redirect_stdout

from click.testing import CliRunner

from hvdscale.cli.report import main
from hvdscale.formatting.screen import AFTER, Progress
from hvdscale.report.pages import document_of_logs, make
from hvdscale.target import Target
from tests.factories.logs import save, study
from tests.factories.studies import realistic, studied


def test_what_is_short_is_silent_and_what_is_long_is_told_ever_more_rarely(monkeypatch):
    said, now = [], [0.0]
    monkeypatch.setattr("hvdscale.formatting.screen.CLOCK", lambda: now[0])
    tell = Progress(said.append)
    for tenth in range(10 * 900):
        now[0] = tenth / 10
        tell(f"part {tenth}")
    assert said[0] == f"2 s: part {10 * AFTER:.0f}" and said[1].startswith("4 s: ")
    times = [int(line.split(" s")[0]) for line in said]
    assert times[1] - times[0] == 2 and 28 < times[-1] - times[-2] < 32 and len(said) < 60
    tell("short")
    tell("reading 3 GB", long=True)             # which takes long by itself
    assert said[-1] == "900 s: reading 3 GB" and "short" not in said[-2]


def test_a_report_tells_what_it_reads_holds_draws_and_writes(tmp_path):
    paths = [save(made, tmp_path / f"w{workers}.h5") for workers, made in study(seeds=1).items()]
    told = []
    with redirect_stdout(io.StringIO()):
        make(paths, out=tmp_path / "report", tell=lambda what, long=False: told.append(what))
    assert told[:4] == [f"reading log {at} of 4: {path}" for at, path in enumerate(sorted(paths), 1)]
    assert told[4].startswith("sorting ") and told[5].startswith("holding 4 trials")
    assert [what for what in told if what.startswith("drawing figure 1 of ")]
    assert "writing the page" in told and told[-1] == "writing report.json"


def test_it_is_told_on_stderr_and_the_report_is_as_without(tmp_path, monkeypatch):
    path = save(study(seeds=1)[1], tmp_path / "w1.h5")
    plain = CliRunner().invoke(main, [path])
    monkeypatch.setattr("hvdscale.formatting.screen.AFTER", 0.0)
    told = CliRunner().invoke(main, [path])
    assert told.stdout == plain.stdout and not plain.stderr
    assert f"0 s: reading log 1 of 1: {path}\n" in told.stderr


def test_figures_that_all_targets_of_a_metric_share_are_made_once():
    sweep = [studied(*realistic(batch, 0.03, 3000 // batch + 300), path=f"b{batch}.h5") for batch in (8, 32, 128)]
    [(_, pages)] = document_of_logs(sweep, [Target.parse("val/error<0.2"), Target.parse("val/error<0.1")]).pages
    first, second = ([figure.name for figure in page.figures] for page in pages)
    shared = {"steps-batch-targets", "best-under-budgets", "base-rates"}
    assert shared <= set(first) and not shared & set(second) and set(second) <= set(first)
