"""What the offline commands print, word by word, as tests/golden/ keeps it."""
import re
import shutil

import numpy as np
import pytest

from hvdscale.cli import branch, scale, tune
from hvdscale.cli.compare import main as compare_command
from hvdscale.cli.log import main as log_command
from hvdscale.cli.plan import main as plan_command
from hvdscale.cli.report import main as report_command
from tests import guides
from tests.analysis.test_worker_plan import COUNTS, probe, run
from tests.conftest import GOLDEN
from tests.factories.log_files import finished
from tests.factories.logs import log, save, trial
from tests.wording import screens

PLAN = """
v1.h5 --workers 1-32 --price 2
v1.h5 --workers 1-32 --price 2 --full
v1.h5 --workers 1,2 --per-node 2 --deadline 10m --budget 1
v1.h5 --workers 1,2 --deadline 10s --budget 0.00001
series.h5 --workers 1-4096 --local-batch 32 --steps 860@32 --noise-scale 500
series.h5 --workers 2000000
short.h5 --global-batch 128 --workers 1-64 --bandwidth 10 --latency 20 --parameters 25.6M --deadline 10h --per-node 4
crowded.h5 --workers 1,2,4 --local-batch 32 --per-node 4
all_crowded.h5 --workers 2,4 --local-batch 32
unmet.h5
two_of_three.h5 --workers 1
probe.h5 --workers 1
probe.h5 --workers 1 --steps 39500@32 --deadline 1h
probe.h5 --deadline 1h
quiet.h5
untimed.h5
nothing
series.h5 --price -1
series.h5 --per-node 0
series.h5 --knee nan
series.h5 --confidence 1
series.h5 --local-batch 8 --global-batch 64
series.h5 --deadline soon
series.h5 --deadline 0s
series.h5 --workers 4-2
series.h5 --bandwidth 10
series.h5 --bandwidth 10 --latency 5 --parameters many
series.h5 --steps 860
series.h5 --target val/loss<1
series.h5 --format html
series.h5 --times-from elsewhere.h5
series.h5 --times-from nothing
series.h5 --nodes 1-4
series.h5 --nodes x --per-node 4
series.h5 --nodes 2 --workers 8 --per-node 4
series.h5 --network a.txt --bandwidth 3
series.h5 --power 0
series.h5 --memory 8
series.h5 --budget 0
series.h5 --bandwidth 10 --latency 5
series.h5 --noise-scale 0
series.h5 --parameters 1M
"""
LOG = """
ls
show v1.h5
show v1.h5 --trial 1
show v1.h5 --trial 9
check v1.h5 cut.h5 text.h5 empty.h5 none.h5
repair v1.h5
repair cut.h5
repair text.h5
repair none.h5
merge v1.h5 other.h5 --out all.h5
merge v1.h5 copy.h5 --out both.h5
merge v1.h5 --out all.h5
"""
REPORT = """
v1.h5 --target val/error<0.04 --target test/error<0.1
v1.h5 --budget "100 steps, 5 epochs"
v1.h5 --full
v1.h5 --confidence 0.8 --perfect-within 0.1
unmet.h5
empty.h5
none.h5
nothing
v1.h5 --target val/error
v1.h5 --target val/loss<1
v1.h5 --budget "5 parsecs"
v1.h5 --compare goyal
v1.h5 --paper goyal
v1.h5 --confidence 2
v1.h5 --out report --format docx
v1.h5 --perfect-within -1
v1.h5 --useful-within 20
v1.h5 --rule cubic
v1.h5 --rule-within "a fifth"
"""
COMPARE = """
v1.h5 v1.h5
v1.h5 unmet.h5
v1.h5 nothing
v1.h5 v1.h5 --tolerance much
v1.h5 v1.h5 --tolerance -1
v1.h5 v1.h5 --tolerance 10
v1.h5 v1.h5 --time-tolerance nan
v1.h5 v1.h5 --confidence 2
v1.h5 v1.h5 --out v.txt
v1.h5 v1.h5 --target val/nothing<1
v1.h5 v1.h5 --target error
v1.h5 v1.h5 --ledger l
v1.h5 v1.h5 --by steps
v1.h5 v1.h5 --decide --budget "5 steps"
v1.h5 v1.h5 --decide --within x
v1.h5 v1.h5 --decide --out v.csv
v1.h5 v1.h5 --out v.xml
v1.h5 v1.h5 --equal
e1.h5 e2.h5 --equal
e1.h5 e3.h5 --equal
e1.h5 e4.h5 --equal
"""
TRAIN = """
digits/fc --local-batch 32 --dry-run --set threads=1
digits/fc --global-batch 256 --optimizer adamw --lr 0.002 --lr-rule adam_sqrt --base-batch 32 --dry-run --set threads=1
digits/fc --steps 5 --set "batch_schedule_epochs=[[0, 32], [2, 64]]" --dry-run --set threads=1

digits/none
mnist/simple_cnn
mnist/simple_cnn --data-dir nothing
digits/fc --steps 5 --set epochs=3
digits/fc --set momentun=0.5
digits/fc --set steps=many
digits/fc --seed -1
digits/fc --precision fp8
digits/fc --config none.toml
digits/fc --config goyal
digits/fc --global-batch 64 --set global_batch=32
digits/fc --model-arg width
digits/fc --lr-rule tuned
digits/fc --target val/bleu>30
digits/fc --checkpoint nothing --resume nothing --steps 3
"""
TUNE = """
sweep.toml --only batch
sweep.toml --shard 3/3
sweep.toml --set lr=3
sweep.toml --set thread=3
sweep.toml --only width=3
sweep.toml --set threads=none
none.toml
"""
SCALE = """
digits/fc --out out --workers 1,two
digits/fc --out out --set log=w.h5
digits/fc --out out --set checkpoint=ck
digits/fc --out out --probe --steps 5
digits/fc --out out --probe --until 10%
digits/fc --out out --set overwrite=true
digits/fc --out out --until 10% --overwrite
digits/fc --out out --until 150%
digits/fc --out out --until soon
digits/fc --out out --at-most 2
digits/fc --out out --decide
digits/fc --out out --decide --against base --until 5%
--out out
"""
BRANCH = """
digits/fc --out b --at 1;2
digits/fc --out b --factors 2
digits/fc --out b --factors 0,1
digits/fc --out b --tolerance 0
digits/fc --out b --shard 2/2
digits/fc --from ck --out b
--from ck --config x.toml --out b
--out b
digits/fc --out b --set checkpoint=ck
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with the logs that the commands name."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(GOLDEN / "v1.h5", tmp_path)
    (tmp_path / "nothing").mkdir()
    return tmp_path


def test_the_plan_is_worded_as_it_was(folder, golden):
    for name, trials in {
            "series": [run(workers, seed=seed) for workers in COUNTS for seed in range(2)],
            "short": [run(workers) for workers in COUNTS[:3]],
            "crowded": [run(workers, cores=2) for workers in (1, 2, 4)],
            "all_crowded": [run(workers, cores=1) for workers in (2, 4)],
            "unmet": [trial(1, error=(0.9, 0.5, 0.4))],
            "two_of_three": [run(1), run(1, seed=1), trial(3, error=(0.9, 0.5, 0.4), seed=2, train_examples=10**6)],
            "probe": [probe(1)], "quiet": [probe(1, None)], "untimed": [trial(1, seconds=(np.nan,) * 3)],
            "elsewhere": [trial(steps=(), error=(), target=None, step_seconds=[0.1] * 50, optimizer="adam")]}.items():
        save(log(*trials), f"{name}.h5")
    golden("plan", screens("hvdscale-plan", plan_command, PLAN.strip().splitlines()), numbers=False)


def test_what_is_said_of_logs_is_worded_as_it_was(folder, golden):
    whole = (folder / "v1.h5").read_bytes()
    for name, content in {"copy": whole, "cut": whole[:20000], "text": b"no log", "empty": b""}.items():
        (folder / f"{name}.h5").write_bytes(content)
    finished("other.h5", trials=2)
    said = screens("hvdscale-log", log_command, LOG.strip().splitlines())
    golden("log", re.sub(r"[\d.]+ KiB", "N KiB", said))                  # as HDF5 likes


def test_what_is_reported_is_worded_as_it_was(folder, golden):
    save(log(trial(1, error=(0.9, 0.5, 0.4))), "unmet.h5")
    save(log(), "empty.h5")
    for name, changes in {"e1": {}, "e2": {"workers": 2}, "e3": {"losses": (1, 0.7)}, "e4": {"peak_lr": 0.2}}.items():
        save(log(trial(**{"losses": (1, 0.5), "step_seconds": (0.1, 0.1), "problem": {"exact": {"threads": 1}},
                          **changes})), f"{name}.h5")
    golden("report", screens("hvdscale-report", report_command, REPORT.strip().splitlines()) + "\n" + screens(
        "hvdscale-report compare", compare_command, COMPARE.strip().splitlines()), numbers=False)


def test_what_training_refuses_and_plans_is_worded_as_it_was(folder, here, golden):
    def train(*words):
        return here("hvdscale-train", *words, check=False)
    golden("train", screens("hvdscale-train", train, TRAIN.strip("\n").splitlines()))


@pytest.mark.parametrize("name, command, lines", [
    ("tune", tune.command, TUNE), ("scale", scale.main, SCALE), ("branch", branch.command, BRANCH)])
def test_what_a_command_of_many_runs_refuses_is_worded_as_it_was(folder, golden, name, command, lines):
    (folder / "sweep.toml").write_text(guides.block("hvdscale/sweep/README.rst", "toml"))
    golden(name, screens(f"hvdscale-{name}", command, lines.strip().splitlines()))
