"""hvdscale-branch: what it takes, refuses and hands on."""
import pytest
from click.testing import CliRunner

from hvdscale.cli import branch
from hvdscale.cli.common import parse
from hvdscale.cli.report import main as report_command
from hvdscale.errors import UsageError
from hvdscale.log.reader import read_log
from hvdscale.plan.branches import BranchRequest


def parsed(monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["hvdscale-branch", *words])
    found, error = parse(branch.command)
    if error:
        raise error
    return found


def test_options_are_read_into_what_is_asked(monkeypatch):
    name, layers, asked, out, source, shard, overwrite, dry_run = parsed(
        monkeypatch, "digits/fc", "--out", "b", "--at", "200,100", "--factors", "1,2,8", "--orders", "2",
        "--branch-examples", "4096", "--rule", "sqrt", "--metric", "val/error", "--tolerance", "2%", "--shard", "1/4",
        "--steps", "300", "--lr", "0.1")
    assert asked == BranchRequest((100, 200), (1, 2, 8), 2, 4096, 8, "sqrt", "val/error", "2%")
    assert (name, out, source, shard, overwrite, dry_run) == ("digits/fc", "b", None, (1, 4), False, False)
    assert layers[-1] == {"steps": 300, "lr": 0.1}


def test_beside_other_checkpoints_only_what_was_typed_is_a_layer(monkeypatch):
    _, layers, *_, source, shard, _, _ = parsed(monkeypatch, "--from", "ck", "--out", "b", "--set", "threads=1")
    assert layers == [{}, {"threads": 1}] and source == "ck" and shard == (0, 1)


@pytest.mark.parametrize("words, said", [([], "'--out'"), (["--out", "b", "--log", "w.h5"], "--log")])
def test_where_to_write_is_said_by_out_alone(monkeypatch, words, said):
    with pytest.raises(UsageError, match=said):
        parsed(monkeypatch, "digits/fc", *words)


def test_the_command_trains_branches_and_names_the_report(here, tmp_path, worded):
    words = ["digits/fc", "--out", "b", "--steps", "40", "--at", "20,40", "--factors", "1,2", "--orders", "1",
             "--branch-examples", "256", "--set", "threads=1"]
    done = here("hvdscale-branch", *words)
    assert done.stdout.count(": train/cross_entropy ") == 4 and done.stdout.endswith("next: hvdscale-report b\n")
    again = here("hvdscale-branch", *words)
    assert "[1/4]" not in again.stdout and again.stdout.endswith("next: hvdscale-report b\n")
    report = CliRunner().invoke(report_command, [str(tmp_path / "b"), "--out", str(tmp_path / "r"), "--format", "json"])
    worded(report.output, about="Critical batch")


def test_the_growing_batch_that_follows_is_a_configuration(here, tmp_path):
    """A tolerance that every branch passes, so that the batch grows as far as it was tried."""
    done = here("hvdscale-branch", "digits/fc", "--out", "b", "--steps", "40", "--at", "20,40", "--factors", "1,2,4",
                "--orders", "2", "--branch-examples", "256", "--tolerance", "500%", "--set", "threads=1")
    assert "batch 16, 64 from step 20, predicted to take 38% (30% to 38%) fewer steps" in done.stdout
    here("hvdscale-train", "digits/fc", "--config", "b/schedule.toml", "--steps", "30", "--log", "grown.h5", "--target",
         "none")
    with read_log(tmp_path / "grown.h5") as log:
        assert log.evaluations["examples"][-1] == 20 * 16 + 10 * 64 and log.steps["lr"][-1] > 2 * log.steps["lr"][19]
    words = [str(tmp_path / "b"), "--out", str(tmp_path / "r"), "--format", "json", "--full"]
    report = CliRunner().invoke(report_command, words)
    assert "--set batch_schedule='[[0, 16], [20, 64]]' --lr-rule linear" in " ".join(report.output.split())


def test_a_dry_run_says_what_would_be_trained_and_writes_nothing(here, tmp_path, worded):
    done = here("hvdscale-branch", "digits/fc", "--out", "b", "--steps", "400", "--factors", "1,2,4", "--dry-run")
    said = done.stdout
    assert "global batch   16 = 1 worker" in said and "branches: 36 branches, 1,024 examples each" in said
    worded(said, about="at steps")
    assert not list(tmp_path.iterdir())


def test_a_workload_without_such_a_metric_is_refused_by_name(here, worded):
    done = here("hvdscale-branch", "digits/fc", "--out", "b", "--steps", "4", "--metric", "val/bleu", check=False)
    worded(done.stderr, about="metric val")
    assert done.returncode == 2
