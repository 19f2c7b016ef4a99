"""Every command of README.rst and of the guides runs, in its order, as it is written; one long series is shortened.
What is shown as its output is what it prints."""
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from hvdscale.cli.log import main as log
from hvdscale.cli.plan import main as plan
from hvdscale.cli.report import main as report
from tests import guides
from tests.conftest import DATA, ROOT, but_slow, command_environment, launcher_command
from tests.factories.edited_jobs import forget
from tests.factories.found_runs import write_runs
from tests.factories.logs import save
from tests.factories.size_grids import runs_to_target

README = guides.read("README.rst")
# commands that need more than a folder to run in, and the test that runs each
ELSEWHERE = {
    "hvdscale-data fetch cifar_10 --data-dir cifar":
        "test_a_data_set_comes_whole_and_the_command_says_what_to_type_next",
    "tools/quickstart": "test_the_quickstart_ends_with_a_report",
    "pip install .": "test_the_offline_commands_run_on_the_base_install",
    "pip install '.[torch]'": "test_torch_alone_trains_under_torchrun",
    "sbatch -N2 --ntasks-per-node=2 slurm/train.sbatch digits/fc --steps 40":
        "test_the_sbatch_command_of_the_readme_runs",
    "salloc -N2 --ntasks-per-node=8": "test_inside_an_allocation_a_series_runs_on_its_nodes",
    "horovodrun -np 4 --min-np 2 --max-np 8 --host-discovery-script ./hosts hvdscale-train digits/fc --checkpoint kept":
        "test_the_elastic_command_for_a_cluster_runs",
    "tools/test --room wrappers -m slow": "test_the_guide_says_which_faults_are_found",
    "tools/coverage": "test_the_coverage_of_intervals_is_printed_as_tables",
    "tools/bench_step": "test_a_step_is_timed_against_torchs_own",
    "tools/bench_step --watched": "test_the_cost_of_watching_is_shown",
    "tools/bench_log": "test_the_log_is_timed_against_csv_and_h5py",
    "tools/bench_sweep": "test_a_sweep_is_timed_against_its_steps_alone_and_among_many_trials",
    "tools/bench_epoch": "test_an_epoch_is_timed_against_a_horovod_script",
    "tools/bench_report": "test_the_tables_are_timed_and_those_of_pandas_are_the_same",
    "hvdscale-log import batch_science_data.tar.bz2 archive.h5":
        "test_an_archive_becomes_a_log_and_the_figures_of_its_paper",
    "hvdscale-report archive.h5 --paper shallue2019 --out paper":
        "test_an_archive_becomes_a_log_and_the_figures_of_its_paper",
    **dict.fromkeys(("hvdscale-log import results/dgxh100_n16/bert bert.h5 --workers 16x8",
                     "hvdscale-log import rcps_bert.json reference.h5", "hvdscale-report bert.h5 reference.h5"),
                    "test_runs_of_a_benchmark_are_reported_beside_its_reference_points"),
    "hvdscale-report compare baseline candidate --tolerance 10%": "test_a_candidate_is_held_against_its_baseline",
    "hvdscale-report compare baseline candidate --decide --ledger baseline.json":
        "test_a_candidate_is_held_against_its_baseline",
    "hvdscale-doctor resume train.py --stop 6 -- --epochs 3 --ckpt run/": "test_a_script_that_resumes_rightly_passes",
    "hvdscale-log export tools/readme/mnist.h5 parquet --as parquet": "test_parquet_holds_all_that_the_log_holds",
    "hvdscale-log export tools/readme/mnist.h5 tb/mnist --as tensorboard":
        "test_every_trial_is_a_run_with_its_scalars_by_step",
    "tools/studies/run data studies mnist_simple_cnn_nesterov": "test_the_script_carries_out_a_study_and_reports_on_it",
    **dict.fromkeys(("hvdscale-scale script train.py --workers 1,2 --batch 6 --out runs/mine -- --batch {local}",
                     "hvdscale-plan runs/mine --steps 5000@12 --workers 1,2 --price 2"),
                    "test_the_commands_of_the_guide_time_a_script_and_name_a_section_of_one_rank"),
    guides.completion(): "test_the_readmes_line_completes_every_command",
    "tools/test": None,                                 # runs this one
}
# each sentence of README.rst that states results, and what its numbers are by the JSON of the commands beside it
HELD = {
    r"to ([\d.]+) % of validation error, the best of (\d+) trials": lambda of: (100 * of.target, of.trials),
    r"From batch (\d+) to (\d+) the steps fall to a (\d+)th; beyond (\d+) they fall no more":
        lambda of: (min(of.steps), of.perfect, of.steps[8] / of.steps[of.perfect], min(of.steps, key=of.steps.get)),
    r"only (\d+) of (\d+) batches is within half a doubling": lambda of: (of.within * len(of.steps), len(of.steps)),
    r"critical batch is ([\d.]+) of the published one": lambda of: (of.critical_batch,),
    r"(\d+) workers should take ([\d.]+) s, and (\d+) worker ([\d.]+) s at ([\d.]+) of the cost":
        lambda of: (of.fastest, of.seconds[of.fastest], 1, of.seconds[1], of.cost[1] / of.cost[of.fastest])}
# what else its text counts: versions, years, sizes of downloads, what was asked for
GIVEN = (r"Python [\d.]+ to [\d.]+|et al\. \d+|published in \d+|[\d.]+ GB|95 % interval|within 20%|At 0\.50 an hour|"
         r"10 Gbit/s|1 and 2 workers")
KEPT = {"hvdscale-scale script train.py --workers 1,2 --repeats 3 --batch 64 --out runs/script -- --batch {local}":
        "tools/port/ddp_before.h5"}             # commands that time, and logs of what they show
SERIES = "hvdscale-scale mnist/simple_cnn --data-dir mnist"
# those that take longest, and tell least beside the others' tests: run with all the others by a slow test
TORCHRUN = "torchrun --nproc-per-node 2 --no-python"
LONG = (SERIES, "hvdscale-scale digits/fc --workers",
        "hvdscale-scale job:workload --workers", "horovodrun --network-interface lo",
        "horovodrun -np 2 hvdscale-train digits/cnn",
        "horovodrun -np 2 hvdscale-train job:workload --save-model", "horovodrun -np 4 hvdscale-train digits/cnn",
        f"{TORCHRUN} hvdscale-train digits/cnn --log-file runs/torch.h5", f"{TORCHRUN} hvdscale-doctor script",
        "hvdscale-doctor job:workload", "hvdscale-train mnist/simple_cnn --data-dir mnist --steps 20",
        "hvdscale-branch digits/fc --out runs/branched", "hvdscale-report runs/branched",
        "mpirun -np 2 hvdscale-tune sweep.toml", "hvdscale-report sweeps/digits",
        "hvdscale-train digits/fc --global-batch 64 --lr-rule tuned --metaparameters sweeps/digits/tuned.toml")
# whose commands take longest; test_guides holds their options by default, and the commands' own tests what they do
LONG_GUIDES = ("hvdscale/workloads/README.rst", "hvdscale/doctor/README.rst", "hvdscale/training/README.rst",
               "hvdscale/training/batches.rst", "hvdscale/analysis/README.rst")
# those that run in the tests' own process, unless the shell has something to say in them
OFFLINE = {"hvdscale-report": report, "hvdscale-plan": plan, "hvdscale-log": log}
SHELLS = set("|;&<>$`*") | {"--watch"}
# what the commands call by these names, of the data sets that are there
LINKS = {"mnist": DATA / "mnist", "multi30k": DATA / "multi30k", "README.rst": ROOT / "README.rst",
         "tools": ROOT / "tools"}
# guides to logs that are there
HAVE_RUNS = ("hvdscale/analysis/README.rst", "hvdscale/log/README.rst", "hvdscale/report/README.rst")
YOUR_RUNS = "hvdscale/exchange/runs/README.rst"
SHORTENED = " --steps 2 --workers 1,2 --repeats 1"      # the last of two equal options holds


def shown(path):
    """The document's commands with what is shown of them, those named in the text last."""
    return guides.typed(path) + [guides.Shown(command, "", "") for command in guides.named(path)]


def commands():
    return [each.command for path in guides.PATHS for each in shown(path)]


def bash(command, folder):
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, timeout=300,
                          stdin=subprocess.DEVNULL, env=command_environment())
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def carry_out(here, tmp_path, monkeypatch):
    """Run a command in tmp_path as a shell would; gives what it prints."""
    def carry_out(command):
        name, *words = shlex.split(command)
        if any(mark in command for mark in SHELLS) or name not in (*OFFLINE, "hvdscale-train", "hvdscale-branch"):
            return bash(command, tmp_path)
        if name not in OFFLINE:
            forget("job")
            return here(name, *words).stdout
        with monkeypatch.context() as patched:
            patched.chdir(tmp_path)
            done = CliRunner().invoke(OFFLINE[name], words)
        assert done.exit_code == 0, f"{command}\n{done.output}"
        return done.output
    return carry_out


@pytest.fixture
def folder(tmp_path):
    """A folder to follow a document in: ``folder(path)`` puts there what its commands need."""
    def folder(path):
        launcher_command("horovodrun", 1)
        own = guides.block(path, "python") or guides.block("hvdscale/workloads/README.rst", "python")
        (tmp_path / "job.py").write_text(own)
        shutil.copy(ROOT / "tools/port/ddp_before.py", tmp_path / "train.py")
        (tmp_path / "sweep.toml").write_text(guides.block("hvdscale/sweep/README.rst", "toml"))
        for name, place in LINKS.items():
            if place.exists():
                (tmp_path / name).symlink_to(place)
        if machine := guides.block(path, "json"):
            (tmp_path / "cluster.json").write_text(machine)
        if path in HAVE_RUNS:
            (tmp_path / "runs").mkdir()
            shutil.copy(ROOT / "tools/readme/mnist.h5", tmp_path / "runs")
            (tmp_path / "gpt").mkdir()
            for made in runs_to_target():
                save(made, tmp_path / "gpt" / made.path)
        if path == YOUR_RUNS:
            pytest.importorskip("tensorboard")
            write_runs(tmp_path / "tb", "event files")
            write_runs(tmp_path / "outputs", "trainer_state.json")
            (tmp_path / "tables").mkdir()
            trials, evaluations = re.findall(r"::\n\n((?:    (?:id|trial|\d+),.*\n)+)", guides.read(path))
            (tmp_path / "tables/trials.csv").write_text(re.sub("^    ", "", trials, flags=re.M))
            (tmp_path / "tables/evaluations.csv").write_text(re.sub("^    ", "", evaluations, flags=re.M))
        return tmp_path
    return folder


@pytest.mark.parametrize("path", but_slow(guides.PATHS, LONG_GUIDES))
@pytest.mark.parametrize("left_out", [LONG, pytest.param((SERIES,), marks=pytest.mark.slow)],
                         ids=["but the longest", "all"])
def test_every_command_but_those_of_other_tests_runs_as_written(folder, carry_out, path, left_out):
    place = folder(path)
    for command, _, output in shown(path):
        if command in ELSEWHERE or command.startswith(("export PATH", *left_out)):
            continue
        data = re.search(r"--data-dir (\S+)", command)
        if data and not (place / data[1]).exists() and "hvdscale-data" not in command:
            continue
        command = f"hvdscale-report {ROOT / KEPT[command]}" if command in KEPT else command
        printed = "\n".join(map(str.rstrip, carry_out(command).splitlines()))
        assert output in printed, command
    if path == "README.rst":
        assert_held(place)


def prose(path):
    """The document's text on one line, without commands, tables, links' targets and literals."""
    text = re.sub(r"^(    |\.\. |   :|\S.*  ).*", "", guides.read(path), flags=re.M)
    return " ".join(re.sub(r"``[^`]*``|<[^>]*>`_", "", text).split())


def assert_held(folder):
    """That each number of README's sentences is that of the report and the plan in the folder, as rounded there."""
    report, plan = (json.loads((folder / name).read_text()) for name in ("report/report.json", "plan/plan.json"))
    [section], [plan], [_, marks] = report["workloads"][0]["sections"], plan["plans"], report["chapters"][0]["tables"]
    plans, batches, search = (next(table["rows"] for table in tables if table["name"] == name) for name, tables in (
        ("plan", plan["tables"]), ("batches", section["tables"]), ("search", section["tables"])))
    found, perfect = by("mark", "found", marks["rows"]), by("global_batch", "statistical_efficiency", batches)
    of = SimpleNamespace(
        target=float(section["target"].partition("<")[2]), trials=search[0]["cells"]["feasible"]["value"],
        steps=by("global_batch", "steps_to_target", batches), perfect=max(b for b in perfect if perfect[b] >= 1 / 1.25),
        within=found["steps within 0.5 log2"], critical_batch=found["B_crit over published"], fastest=plan["fastest"],
        seconds=by("workers", "seconds_to_target", plans), cost=by("workers", "cost", plans))
    for sentence, values in HELD.items():
        stated = re.search(sentence, prose("README.rst")).groups()
        for text, value in zip(stated, values(of), strict=True):
            assert abs(float(text) - value) <= 0.5 / 10 ** len(text.partition(".")[2]), (sentence, text, value)
    assert plans[0]["cells"]["seconds_to_target"]["low"] < plans[-1]["cells"]["seconds_to_target"]["high"]   # overlap


def by(key, column, rows):
    """A column's values by those of another."""
    return {row["cells"][key]["value"]: row["cells"][column]["value"] for row in rows}


def test_every_number_in_the_readmes_text_is_held_against_json_or_given():
    text = prose("README.rst")
    for known in (*HELD, GIVEN):
        assert re.search(known, text), known
        text = re.sub(known, "", text)
    assert not re.findall(r".{30}\d.{10}", text)


def test_the_commands_left_out_are_in_the_documents():
    for start in LONG:
        assert any(command.startswith(start) for command in commands()), start
    assert len(set(commands())) >= 50


def test_commands_tested_elsewhere_are_documented_and_have_tests():
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for command, test in ELSEWHERE.items():
        assert command in commands() and (test is None or f"def {test}(" in tests), command


@pytest.mark.slow
def test_the_series_whose_table_is_shown_runs_with_fewer_steps(tmp_path, mnist):
    launcher_command("horovodrun", 1)
    (tmp_path / "mnist").symlink_to(mnist)
    [series] = [command for command in commands() if command.startswith(SERIES)]
    printed = bash(series + SHORTENED, tmp_path)
    assert "[2/2] 2 workers, seed 0: runs/mnist/w2-r1.h5" in printed
    assert sorted(path.name for path in (tmp_path / "runs/mnist").glob("*.h5")) == ["w1-r1.h5", "w2-r1.h5"]
    assert (tmp_path / "runs/mnist/report/report.html").is_file()


def test_the_quickstart_ends_with_a_report():
    if Path(sys.prefix) != ROOT / ".venv":
        pytest.skip("needs the environment of tools/test")
    before = set((ROOT / "runs").glob("quickstart*"))
    printed = bash("tools/quickstart", ROOT)
    (made,) = set((ROOT / "runs").glob("quickstart*")) - before
    try:
        assert (made / "report" / "report.html").is_file()
        assert str(made / "report" / "report.html") in printed
        assert "By worker count" in bash(f".venv/bin/hvdscale-report {made}", ROOT)
    finally:
        shutil.rmtree(made)


def test_the_guides_figure_is_what_the_report_draws_of_the_log_beside(tmp_path):
    bash(f"hvdscale-report tools/readme/mnist.h5 --format png --out {tmp_path}/report", ROOT)
    [drawn] = (tmp_path / "report/figures").glob("*-speedup-weak-32.png")
    [shown] = guides.images("hvdscale/analysis/README.rst")
    assert shown == ROOT / "tools/readme/speedup.png"
    guides.assert_drawn_alike(drawn, shown)
