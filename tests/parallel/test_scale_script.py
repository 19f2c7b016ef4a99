"""hvdscale-scale script: an unmodified script is timed at several worker counts, and what slows it down is named."""
import json
import re
import shlex
import sys

import pytest

from hvdscale.log.reader import read_log
from hvdscale.log.schema import Status, rank_column
from tests import guides
from tests.factories.timed_scripts import SLOW

FEW = ("--warm-up", "4", "--updates", "12")


@pytest.fixture
def scaled(run, tmp_path):
    """Time the script with its arguments at worker counts; gives exit code and what was printed, in lines unwrapped."""
    (tmp_path / "train.py").write_text(SLOW)

    def scaled(counts, *words, options=(), seconds=120):
        done = run(sys.executable, "-m", "hvdscale.cli.scale", "script", "train.py", "--workers", counts, "--out",
                   "out", *FEW, *options, "--", *words, check=False, timeout=seconds)
        assert "Traceback" not in done.stdout + done.stderr
        return done.returncode, " ".join((done.stdout + done.stderr).split())
    return scaled


def test_the_commands_of_the_guide_time_a_script_and_name_a_section_of_one_rank(run, tmp_path):
    (tmp_path / "train.py").write_text(SLOW.replace('"--slow", default=""', '"--slow", default="serial"'))
    scale, plan = (shlex.split(each.command)[1:] for each in guides.typed("hvdscale/scaling/README.rst"))
    said = " ".join(run(sys.executable, "-m", "hvdscale.cli.scale", *scale, timeout=120).stdout.split())
    assert "train.py/script, sgd" in said and re.search("Weak scaling, 1 to 2#? workers", said)
    assert re.search(r"Rank 0 alone spends 2\d[.\d]* ms a step outside of data, passes and optimizer at 2 w", said)
    for workers in (1, 2):
        with read_log(tmp_path / f"runs/mine/w{workers}-r1.h5") as log:
            [text] = log.trials["plan"]
            assert log.trials["status"].tolist() == [Status.COMPLETE] and log.steps.rows == 50
            assert log.trials["global_batch"].tolist() == [6 * workers]
            step = log.steps[rank_column(0, "step")]
        own = float(re.search(r"^own (.*)", (tmp_path / f"runs/mine/w{workers}-r1.out").read_text(), re.M)[1])
        assert step[:5].mean() == pytest.approx(own, rel=0.3)
        assert len(json.loads(text)["measured"]["peak_memory_bytes"]) == workers
    assert sorted(path.name for path in (tmp_path / "runs/mine").iterdir()) == [
        "report", "w1-r1.h5", "w1-r1.out", "w2-r1.h5", "w2-r1.out"]
    assert run(sys.executable, "-m", "hvdscale.cli.scale", *scale).stdout.startswith("2 of 2 runs are already finished")
    assert "By worker count: steps as given" in run(sys.executable, "-m", "hvdscale.cli.plan", *plan).stdout


@pytest.mark.slow
def test_a_count_at_which_the_script_fails_is_named_and_the_other_stands(scaled):
    code, said = scaled("1,2", "--slow", "error")
    assert code == 1 and "1 run of 2 could not be timed; their errors are above" in said and "throughput" in said
    assert re.search(r"train.py on 2 workers, rank \d, after 3 updates: RuntimeError: out of something \(train.py:\d",
                     said)
    code, said = scaled("1", "--nonsense", options=["--overwrite"])
    assert code == 1 and re.search(r"code 2 \(train.py:\d+\): train.py: error: unrecognized arguments: --nons", said)


@pytest.mark.slow
@pytest.mark.parametrize("slow, named", [
    ("rank", r"Rank 1 is slow at 2 workers#?: 2\d[.\d]* ms of computing a step, the others"),
    ("loader", r"The loader is short at 2 workers#?: \d\d% of a step")])
def test_what_slows_a_script_down_is_named(scaled, slow, named):
    code, said = scaled("1,2", "--slow", slow)
    assert code == 0 and re.search(named, said), said


@pytest.mark.slow
def test_a_script_that_hangs_is_ended_and_one_that_ends_early_is_named(scaled):
    code, said = scaled("1,2", "--slow", "hang", options=["--seconds", "20"])
    assert code == 1 and "train.py on 2 workers was ended after 20 s" in said and "throughput" in said
    code, said = scaled("1", "--epochs", "0", options=["--overwrite"])
    assert code == 1 and "train.py on 1 worker ended before its first update" in said


@pytest.mark.slow
def test_a_second_call_with_another_count_reports_both_and_a_module_may_be_run(run, tmp_path):
    (tmp_path / "train.py").write_text(SLOW)
    for counts in "1", "2":
        done = run(sys.executable, "-m", "hvdscale.cli.scale", "script", "-m", "train", "--workers", counts, "--out",
                   "both", *FEW, timeout=120)
    assert re.search("Weak scaling, 1 to 2#? workers", " ".join(done.stdout.split()))


@pytest.mark.slow
def test_a_profile_lies_beside_the_log_and_one_that_is_not_whole_is_said(scaled, tmp_path):
    code, said = scaled("1,2", options=["--profile"])
    assert code == 0 and "Traced at 2 workers" in said and "of communication had no computing beside them" in said
    assert sorted(path.name for path in (tmp_path / "out").glob("*.json.gz")) == [
        "w1-r1.rank0.json.gz", "w2-r1.rank0.json.gz", "w2-r1.rank1.json.gz"]
    code, said = scaled("1", "--epochs", "1", options=["--profile", "--overwrite", "--updates", "100000"])
    assert code == 0 and "the script ended before 5 more updates, so there is no trace; lower --updates" in said


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_under_a_launcher_the_script_is_timed_at_its_workers(run, tmp_path, launcher):
    (tmp_path / "train.py").write_text(SLOW.replace('init_process_group("gloo")', 'init_process_group("gloo", '
                                       'init_method="file://" + __file__ + ".met", rank=RANK, world_size=2)').replace(
        "import time\n", "import time\nimport os\nRANK = int(os.environ.get('OMPI_COMM_WORLD_RANK') or "
        "os.environ['RANK'])\n", 1))
    start = {"mpirun": ["mpirun", "--oversubscribe", "-np", "2"],
             "torchrun": ["torchrun", "--nproc-per-node", "2", "--no-python"]}[launcher]
    done = run(*start, sys.executable, "-m", "hvdscale.cli.scale", "script", "train.py", "--out", "out", *FEW,
               timeout=120)
    assert "train.py/script, sgd" in done.stdout
    with read_log(tmp_path / "out/w2-r1.h5") as log:
        assert log.trials["workers"].tolist() == [2] and log.steps.rows == 12


@pytest.mark.parametrize("words, says", [
    (["--batch", "8", "--global-batch", "16"], "--batch 8 and --global-batch 16: give --batch for weak scaling"),
    (["--", "--batch", "{local}"], "{local} is a worker's share of the global batch"),
    (["--global-batch", "16"], "mark where the local batch is"),
    (["--global-batch", "10", "--workers", "1,4", "--", "{local}"], "--global-batch 10 does not divide by 4 workers"),
    (["--", "--lr={rate}"], "{rate} is no mark: the script's arguments may have {local}, {global}, {workers}, {rank}; "
     "write {{rate}} for an argument that is {rate} itself"),
    (["-m"], "train.py: there is no file train/py.py or train/py/__main__.py"),
    (["--workers", "two"], "is not a list of worker counts")])
def test_options_that_contradict_each_other_are_misuse(tmp_path, monkeypatch, words, says):
    from click.testing import CliRunner
    from hvdscale.cli.scale import main
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    done = CliRunner().invoke(main, ["script", "train.py", "--out", "out", *words])
    assert done.exit_code == 2 and says in done.output and not (tmp_path / "out").exists()
