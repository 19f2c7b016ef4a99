"""A job of a user's own that is edited between runs: noticed on resume, in a search, in branches and in a series."""
import json
from functools import partial
from io import StringIO

import pytest
import torch
from click.testing import CliRunner

from hvdscale.cli import scale
from hvdscale.cli.train import _run
from hvdscale.errors import RanksDifferError, UsageError
from hvdscale.log.reader import read_log
from hvdscale.plan.branches import BranchRequest
from hvdscale.report.runs import read
from hvdscale.training import prepare, series
from hvdscale.training.branches import Branching
from hvdscale.training.checkpoint import listed, read as read_checkpoint, write as write_checkpoint
from hvdscale.training.prepare import current_job
from hvdscale.training.display import Display
from hvdscale.workers.group import SingleWorker
from tests.factories.edited_jobs import forget, write_job
from tests.parallel.sweeps import carry_out

TANH, RATE, WIDER = ("ReLU", "Tanh"), ("lr=0.05", "lr=0.2"), ("Linear(6, WIDTH)", "Linear(6, WIDTH, bias=False)")
NEGATED = ("manual_seed(3)", "manual_seed(4)")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the job in it, from which commands are run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    threads = torch.get_num_threads()
    write_job(tmp_path)
    yield tmp_path
    torch.set_num_threads(threads)
    forget()


@pytest.fixture
def train(folder, monkeypatch):
    """Train the job with checkpoints, resuming; gives what is displayed."""
    def train(**keys):
        said = StringIO()
        monkeypatch.setattr("hvdscale.training.outputs.Display", partial(Display, out=said))
        keys = {"checkpoint": "kept", "log": "w.h5", "resume": "auto", "threads": 1, **keys}
        assert _run("job:workload", [{}, keys], False, SingleWorker()) == 0
        return said.getvalue()
    return train


def job_in(path):
    with read_log(path) as log:
        return json.loads(log.trials["plan"][-1])["job"]


@pytest.mark.parametrize("edits, helpers, said", [
    ([TANH], None, r"job.py differs; model: \(1\): ReLU\(\) -> \(1\): Tanh\(\)"),
    ([RATE], None, "job.py differs; defaults: lr 0.05 -> 0.2"),
    ([NEGATED], None, "job.py differs; data: the first example of train differs; data: the last example of train"),
    ([], "WIDTH = 5 + 0\n", "helpers.py differs"),
    ([("from helpers import WIDTH", "WIDTH = 5")], None, "helpers.py is gone; job.py differs")])
def test_resuming_an_edited_job_is_an_error_that_names_what_differs(train, folder, edits, helpers, said, worded):
    train()
    write_job(folder, *edits, **({"helpers": helpers} if helpers else {}))
    with worded.error(UsageError):
        train()


def test_accepted_changes_are_recorded_and_stay_accepted(train, folder):
    train()
    write_job(folder, TANH)
    assert "note: accepted: job.py differs" in train(steps=12, accept_changes=True)
    what, = job_in("w.h5")["accepted"].values()
    assert what == "job.py differs; model: (1): ReLU() -> (1): Tanh()"
    train(steps=16)
    assert list(job_in("w.h5")["accepted"].values()) == [what]


def test_a_comment_or_another_folder_is_no_edit(train, folder, monkeypatch):
    train()
    job = folder / "elsewhere"
    job.mkdir()
    write_job(job, ("def load", "# the data\ndef load"))
    monkeypatch.chdir(job)
    monkeypatch.syspath_prepend(str(job))
    assert "accepted" not in train(steps=12, checkpoint=str(folder / "kept"), log=str(folder / "w.h5"))


def test_parameters_of_other_shapes_cannot_be_accepted(train, folder, worded):
    train()
    write_job(folder, WIDER)
    with worded.error(UsageError):
        train(accept_changes=True)


def test_a_checkpoint_without_digests_resumes_as_before(train, folder):
    train()
    for _, path in listed("kept"):
        state = read_checkpoint(path)
        plan = json.loads(state["plan"])
        del plan["job"]
        write_checkpoint(path, {**state, "plan": json.dumps(plan)})
    write_job(folder, TANH)
    assert "accepted" not in train(steps=12)
    assert "Tanh()" in str(job_in("w.h5")["model"]["lines"])


def test_a_built_in_workload_of_another_version_resumes_with_a_note(train, folder, monkeypatch):
    pytest.importorskip("sklearn")

    def resume(**keys):
        return _run("digits/fc", [{}, {"checkpoint": "kept", "log": "d.h5", "resume": "auto", "threads": 1, **keys}],
                    False, SingleWorker())
    said = StringIO()
    monkeypatch.setattr("hvdscale.training.outputs.Display", partial(Display, out=said))
    assert resume(steps=4) == 0
    monkeypatch.setattr("hvdscale.training.prepare.__version__", "99.0")
    assert resume(steps=6) == 0 and "is now 99.0" in said.getvalue()


def test_a_rank_with_another_file_is_named(folder, worded):
    class Other(SingleWorker):
        """Rank 0 of two: rank 1 has another job.py."""

        def gather(self, value, name):
            if name != "plan":
                return super().gather(value, name)
            *same, job = value
            return [value, (*same, {**job, "source": {**job["source"], "job.py": "other"}})]
    with worded.error(RanksDifferError):
        prepare.prepare("job:workload", [{"threads": 1}], Other())


# hvdscale-tune and hvdscale-branch

def test_a_search_of_an_edited_job_is_an_error_unless_accepted(folder, worded):
    sweep = folder / "sweep.toml"
    sweep.write_text('workload = "job:workload"\nbatch_sizes = [8]\noptimizers = ["sgd"]\ntrials = 2\nsteps = 8\n'
                     'evaluations = 4\n'
                     'targets = ["val/error<0.3"]\n[settings]\nthreads = 1\n'
                     "[space.lr]\nscale = 'log'\nmin = 0.01\nmax = 0.5\n")
    assert carry_out(sweep, "out")[0] == 0
    assert carry_out(sweep, "out")[0] == 0                       # nothing has changed
    write_job(folder, TANH)
    with worded.error(UsageError):
        carry_out(sweep, "out")
    sweep.write_text(sweep.read_text().replace("trials = 2", "trials = 3"))
    code, printed = carry_out(sweep, "out", accept_changes=True)
    assert code == 0 and "note        accepted: job.py differs" in printed
    assert carry_out(sweep, "out")[0] == 0                       # the change stays accepted
    with read_log("out/sgd-b8.h5") as log:
        jobs = [json.loads(plan)["job"] for plan in log.trials["plan"]]
    assert "accepted" not in jobs[0] and len(jobs[-1]["accepted"]) == 1
    with read("out") as runs:
        document = runs.document()
    worded(document.notes[0])
    assert len(document.pages) == 1


def test_branches_of_an_edited_job_are_an_error_unless_accepted(folder, worded):
    (folder / "out").mkdir()

    def branch(orders=1, **keys):
        asked = BranchRequest(at=(8,), factors=(1, 2), orders=orders, examples=16, evaluations=2)
        return Branching("job:workload", [{"threads": 1, **keys}], asked, "out", None, (0, 1), False,
                         SingleWorker()).carry_out()
    assert branch() == 0
    write_job(folder, TANH)
    with worded.error(UsageError):
        branch(2)
    assert branch(2, accept_changes=True) == 0


# hvdscale-scale

@pytest.fixture
def scaled(folder, monkeypatch):
    """Call hvdscale-scale with runs in this process; gives exit code, output, and the workers of what was run."""
    def carry_out(run, workload, *_):
        carry_out.ran.append(run.workers)
        layers = [{}, {**run.keys, "log": run.log, "overwrite": True, "global_batch": 8 * run.workers}]
        forget()
        assert _run(workload, layers, False, SingleWorker()) == 0
        return series.job_of(run)

    def scaled(*options, workers="1,2"):
        monkeypatch.setattr("hvdscale.training.outputs.Display", partial(Display, out=StringIO()))
        monkeypatch.setattr("hvdscale.cli.series.carry_out", carry_out)
        monkeypatch.setattr(series, "ASIDE", series.ASIDE | {"global_batch"})       # of this test alone
        carry_out.ran = []
        found = CliRunner().invoke(scale.main, ["job:workload", "--workers", workers, "--out", "out", *options])
        return found.exit_code, found.output, carry_out.ran
    return scaled


def test_a_series_of_an_edited_job_is_neither_finished_nor_mixed(scaled, folder, monkeypatch):
    def job_now(name, keys, say):
        forget()
        workload = prepare.find(name)
        return json.loads(json.dumps(current_job(name, workload, workload.load(None), {})))
    assert scaled()[::2] == (0, [1, 2])
    code, output, ran = scaled()
    assert (code, ran) == (0, []) and "2 of 2 runs are already finished" in output
    monkeypatch.setattr(series, "current_job", job_now)         # without a process each time
    write_job(folder, RATE)
    code, output, ran = scaled()
    assert (code, ran) == (2, []) and "out/w1-r1.h5 is of another job: job.py differs; defaults: lr 0.05" in output
    (folder / "out/w1-r1.h5").unlink()
    assert scaled()[::2] == (2, [])
    code, output, ran = scaled("--accept-changes")
    assert (code, ran) == (0, [1])
    assert "runs count as one workload although the job has changed" in " ".join(output.split())
    assert scaled()[::2] == (0, [])                         # the change stays accepted
    assert scaled("--overwrite")[::2] == (0, [1, 2])
    with read("out") as runs:
        assert runs.document().notes == ()


def test_logs_of_two_versions_under_one_name_are_two_workloads(scaled, folder, worded):
    scaled(workers="1")
    write_job(folder, TANH)
    scaled("--overwrite", workers="2")
    with read("out") as runs:
        document = runs.document()
    worded(document.notes[0])
    assert len(document.pages) == 2
    assert "out/w1-r1.h5" in document.notes[0] and "job.py differs" in document.notes[0]


def test_an_edit_during_a_series_ends_it(scaled, folder, monkeypatch, worded):
    job_of = series.job_of

    def edit(run):
        write_job(folder, TANH)
        return job_of(run)
    monkeypatch.setattr(series, "job_of", edit)
    code, output, ran = scaled()
    worded(output)
    assert (code, ran) == (2, [1, 2])
