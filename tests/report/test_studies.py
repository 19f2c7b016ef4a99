"""What a report shows of studies: sentences first, then tables and figures; of huge logs without a trial of its own."""
import json

import pytest
from click.testing import CliRunner

from hvdscale.analysis.budgets import Budget
from hvdscale.analysis.studies import are_searched, studies_of
from hvdscale.analysis.trials import JobKey
from hvdscale.cli.report import main
from hvdscale.errors import UsageError
from hvdscale.log.reader import read_log
from hvdscale.report.document import MOST
from hvdscale.report.output import as_json, on_screen
from hvdscale.report.page.html import as_html
from hvdscale.report.pages import describe_joining
from hvdscale.report.subject import ReportRequest, request_of
from hvdscale.report.pages import document_of_logs
from hvdscale.report.views import budgets, cells
from hvdscale.target import Target
from tests.factories.archives import write_big_log
from tests.factories.logs import log, study, trial
from tests.factories.studies import realistic

FEWEST = {16: 2000, 64: 800, 256: 500, 1024: 450}


def sweep(**changes):
    """Logs of studies at four batch sizes."""
    return [log(*realistic(batch, 0.01 * batch ** 0.5, fewest, seed=batch, **changes), path=f"b{batch}.h5")
            for batch, fewest in FEWEST.items()]


@pytest.fixture(scope="module")
def swept():
    return document_of_logs(sweep(), asked=ReportRequest(budgets=(Budget(500, "steps"), Budget(2, "epochs"))))


def words(document):
    return " ".join("\n".join(on_screen(document, whole=True)).split())


def test_what_was_found_is_said_before_the_tables(swept):
    verdict, main, findings, *tables, how_to_read = list(on_screen(swept, whole=True))
    [(_, [page])] = swept.pages
    assert "-----" not in verdict and 1 <= len(page.verdict) <= 3 and all(said in " ".join(verdict.split())
                                                                          for said in page.verdict)
    assert findings.count("\n") > 3 and "-----" not in findings and findings.count("\n- ") <= MOST
    assert all("-----" in text for text in (main, *tables)) and how_to_read.startswith("How to read this\n")


def test_budgets_are_shown_where_they_are_asked_for(swept):
    [(_, [page])] = swept.pages
    [table] = [table for table in page.tables if table.name == "budgets-val-error"]
    assert [column.title for column in table.columns[2:]] == ["best within 500 steps", "best within 2 epochs"]
    assert "Best validation error within 500 steps" in words(swept)
    for budget in ("500 steps", "2 epochs"):
        assert any(one.startswith(f"No sign of a large-batch penalty within {budget}:") for one in page.summary)
        assert f"quality-val-error-{budget.replace(' ', '-')}" in [table.name for table in page.details]
    [without] = [page for _, [page] in document_of_logs(sweep()).pages]
    assert not any(table.name.startswith("budget") for table in (*without.tables, *without.details))


def test_repeats_of_one_setting_are_no_studies():
    logs = list(study().values())
    assert not are_searched(studies_of(logs)) and are_searched(studies_of(sweep()))
    [(_, [page])] = document_of_logs(logs).pages
    assert [table.name for table in page.details] == ["critical-batch", "runs"]
    assert page.summary[0].startswith("Fastest: ")


@pytest.mark.parametrize("target, batches", [("val/error<0.6", "16, 64, 256 and 1,024"), ("val/error<0.2", "16")])
def test_a_target_met_before_the_first_step_is_said_and_the_rest_goes_on(target, batches, worded):
    easy = log(*realistic(16, 0.04, FEWEST[16], seed=16, easier=-1), path="b16.h5")
    document = document_of_logs([easy, *sweep()[1:]], [Target.parse(target)])
    said = words(document)
    worded(said, about="The target")
    assert "S_min" not in said and "Best point found" in said
    assert batches == "16" or "Widen the space" not in said, "nothing was searched where none had to train"
    assert ("Learning-rate rules from the best of batch 64" in said) == (batches == "16")
    [page] = document.shown
    assert {"trials", "best-under-budgets"} <= {figure.name for figure in page.figures}
    json.dumps(as_json(document), allow_nan=False)


def test_tables_in_detail_are_in_the_files_alone(swept):
    [(_, [page])] = swept.pages
    detail = next(table for table in page.details if table.name.startswith("base-rates"))
    assert detail.title not in words(swept) and f"<summary>{detail.title}</summary>" in as_html(swept)
    [section] = json.loads(json.dumps(as_json(swept), allow_nan=False))["workloads"][0]["sections"]
    assert detail.name in [table["name"] for table in section["tables"]]


def test_workloads_are_shown_beside_each_other_and_beside_publications(worded):
    logs = [*sweep(), *sweep(optimizer="sgd")]
    document = document_of_logs(logs, asked=ReportRequest(compare=("shallue2019",)))
    beside, published = document.chapters
    worded(beside.title)
    assert {figure.name for figure in beside.figures} == {
        f"optimizers-made-net-1000-examples-val-error-below-0.1-{kind}" for kind in ("steps", "normalised")}
    assert published.summary and published.title in words(document)
    written = json.loads(json.dumps(as_json(document), allow_nan=False))["chapters"]
    assert [one["title"] for one in written] == [beside.title, published.title] and written[0]["figures"]


@pytest.fixture
def wide(tmp_path, monkeypatch):
    """A log as an archive gives it, and a limit below what it has."""
    path = tmp_path / "archive.h5"
    write_big_log(path, studies=14, trials=300, evaluations=6000)
    monkeypatch.setattr("hvdscale.report.pages.MOST_EVALUATIONS", 1000)
    return str(path)


def test_a_huge_log_is_told_of_without_a_trial_of_its_own(wide, monkeypatch, tmp_path):
    monkeypatch.setattr("hvdscale.report.pages.read_trials", lambda log, versions: pytest.fail("a trial was made"))
    result = CliRunner().invoke(main, [wide, "--target", "val/error<0.3", "--out", str(tmp_path / "out"), "--format",
                                       "json,csv", "--full"])
    assert result.exit_code == 0, result.exception
    said = " ".join(result.stdout.split())
    assert said.startswith("More than 1,000 evaluations: this report is of the studies as a whole.")
    assert "fewest steps to val/error<0.3" in said
    assert json.loads((tmp_path / "out" / "report.json").read_text())["notes"][0] in said


def test_a_huge_log_and_its_trials_say_the_same_of_the_fewest_steps(wide, monkeypatch):
    target = Target.parse("val/error<0.3")

    def fewest(document):
        return {(str(workload), table.name): [[cell.shown for cell in row.cells] for row in table.rows]
                for workload, pages in document.pages for page in pages for table in page.tables
                if table.name.startswith("steps-to-result")}
    with read_log(wide) as opened:
        short = fewest(document_of_logs([opened], [target]))
        monkeypatch.setattr("hvdscale.report.pages.MOST_EVALUATIONS", 10 ** 9)
        assert short and fewest(document_of_logs([opened], [target])) == short


def test_a_paper_s_figures_are_made_of_an_archive_held_against_its_targets(wide, tmp_path):
    result = CliRunner().invoke(main, [wide, "--paper", "shallue2019", "--out", str(tmp_path), "--format", "json"])
    assert result.exit_code == 0, result.exception
    assert result.stdout.startswith("As in the paper: this report is of the studies as a whole.")
    assert "By global batch: val/error<0.3 (median best of as many trials at each batch, with its" in result.output
    chapters = json.loads((tmp_path / "report.json").read_text())["chapters"]
    [chapter] = [one for one in chapters if "2019" in one["title"]]
    assert any("figure-1" in figure["name"] for figure in chapter["figures"])


def test_without_a_target_the_best_measured_is_shown_and_a_target_asked_for(wide):
    said = " ".join(CliRunner().invoke(main, [wide]).stdout.split())
    assert "Best validation error" in said and said.endswith("holds their trials against one.")


@pytest.mark.parametrize("text, found", [
    (["5000 steps, 10 epochs"], [(5000, "steps"), (10, "epochs")]),
    (["5,000 steps,1 epoch", "3600 seconds"], [(5000, "steps"), (1, "epochs"), (3600, "seconds")])])
def test_lists_of_budgets(text, found):
    assert [(one.amount, one.unit) for one in request_of(budgets=text).budgets] == found


@pytest.mark.parametrize("arguments, said", [
    (["--budget", "10 furlongs"], "10 furlongs"), (["--target", "val/error>0.1"], "val/error<0.1"),
    (["--target", "val/loss<1"], "the metrics there: "), (["--compare", "shallue"], "shallue2019"),
    (["--paper", "shallue"], "shallue2019")])
def test_misuse_is_explained_of_huge_logs_too(wide, arguments, said):
    result = CliRunner().invoke(main, [wide, *arguments])
    assert result.exit_code == UsageError.exit_code and said in result.output


def test_the_rules_and_how_much_they_may_lose_are_the_user_s():
    [page] = document_of_logs(sweep(), asked=request_of(rules=["power:0.7", "sqrt<=4"], rule_within="35%")).shown
    [table] = [table for table in page.tables if table.name == "lr-rules"]
    assert [column.key for column in table.columns[4:]] == ["loss_power_0p7", "loss_sqrt_max_4"]
    assert any("surely more than 35%;" in note for note in table.notes)


def archived(trials):
    """A log of so many trials of an archive, no two of one setting."""
    return log(*(trial(at, (0, 100, 200), (0.9, 0.3, 0.01 * (1 + at % 7)), peak_lr=0.01 * at, batch=16 << at % 3,
                       plan=json.dumps({"archive": {"path": "made"}, "problem": {"peak_lr": 0.01 * at}}))
                 for at in range(1, trials + 1)))


def test_what_holds_for_all_targets_of_a_metric_is_worked_out_once(monkeypatch):
    calls = []
    for module, name in ((budgets, "quality_of"), (budgets, "both_readings"), (budgets, "best_under")):
        found = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given, name=name, found=found, **rest: (
            calls.append(name), found(*given, **rest))[1])
    counts = []
    for values in ((0.3,), (0.3, 0.2, 0.1, 0.05)):
        calls.clear()
        document = document_of_logs([archived(24)], [Target.parse(f"val/error<{value}") for value in values],
                                    asked=ReportRequest(budgets=(Budget(100, "steps"),)))
        assert len(document.shown) == len(values)
        counts.append(sorted(calls))
    assert counts[0] == counts[1] and "quality_of" in counts[0]


def test_differing_fields_are_found_by_reading_each_setting_once():
    class Looked(dict):
        count = 0

        def __contains__(self, name):
            Looked.count += 1
            return super().__contains__(name)

    settings = [Looked(lr=at, optimizer="sgd", **{"schedule.at": 1} if at % 2 else {}) for at in range(300)]
    assert cells._differing([*settings, Looked(lr=1)]) == ["lr", "schedule.at"]
    assert Looked.count <= 3 * len(settings)


IMPORTED = [{"imported": {"kind": "rcp"}}]


def workload(**changes):
    return JobKey(**{"dataset": "bert", "model": "reference", "model_args": "", "optimizer": "lamb",
                     "train_examples": 0, **changes})


@pytest.mark.parametrize("changes, said", [
    ({"model": "bert_large"}, "--model"), ({"optimizer": "adam"}, "--optimizer"), ({"train_examples": 7}, "--set-size"),
    ({"version": "a1b2c3"}, None), ({"dataset": "resnet"}, None)])
def test_workloads_that_differ_in_what_an_import_names_are_told_how_to_join(changes, said):
    found = list(describe_joining([workload(), workload(**changes)], IMPORTED))
    assert len(found) == (said is not None) and all(said in one for one in found)
    assert not list(describe_joining([workload(), workload(**changes)], [{}]))
