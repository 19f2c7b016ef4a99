"""hvdscale-train: its options as settings, its help, and one process from its command line to its exit code."""
import json
import re
import shlex
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from hvdscale.cli import doctor, scale, train
from hvdscale.cli.train import command
from hvdscale.errors import UsageError
from hvdscale.log.reader import read_log
from hvdscale.log.schema import Status
from hvdscale.plan.lengths import Length
from hvdscale.plan.settings import KEYS, OPTIONS, Settings, key_type
from hvdscale.workloads import names
from tests.conftest import command_environment, heed_ctrl_c
from tests.plan.test_presets import typed
from tests.wording import naming

TRAIN = (sys.executable, "-m", "hvdscale.cli.train")


def parsed(*arguments):
    """What the command makes of these arguments: workload, layers, whether it is a dry run."""
    return typed(command, *arguments)


def test_every_flag_sets_its_key():
    sample = {int: ("3", 3), float: ("0.5", 0.5), str: ("text", "text")}
    for name in (name for names in OPTIONS.values() for name in names):
        if key_type(name) is not bool:
            written, value = sample.get(key_type(name), ("5 epochs", "5 epochs"))
            assert parsed("w", f"--{name.replace('_', '-')}", written) == ("w", [{}, {name: value}], False)
    assert parsed("w", "--eval-every", "5 epochs")[1][1] == {"eval_every": "5 epochs"}
    assert parsed("w", "--overwrite", "--dry-run") == ("w", [{}, {"overwrite": True}], True)
    assert parsed("w", "--allow-missing")[1][1] == {"allow_missing": True}
    assert parsed("w", "--log-file", "a.h5")[1][1] == {"log": "a.h5"}         # for horovodrun
    assert parsed("w") == ("w", [{}, {}], False)
    assert parsed("w", "--lr", "1", "--set", "lr=1.0")[1][1] == {"lr": 1.0}     # tests/golden has what differs


def test_arguments_of_model_and_data_are_entries_of_their_tables(tmp_path):
    (tmp_path / "job.toml").write_text("[model_args]\nwidth = 1\ndepth = 20\n")
    _, layers, _ = parsed("w", "--config", str(tmp_path / "job.toml"), "--model-arg", "width=2", "--model-arg",
                          "norm=none", "--data-arg", "vocabulary=bpe:8000", "--set", "data_args.sequence=64")
    settings = Settings.build({"data_args": {"sequence": 128, "augment": True}}, *layers)
    assert settings.model_args == {"width": 2, "depth": 20, "norm": "none"}
    assert settings.data_args == {"sequence": 64, "augment": True, "vocabulary": "bpe:8000"}


def test_a_configuration_file_lies_under_the_command_line(tmp_path):
    (tmp_path / "job.toml").write_text("lr = 0.5\nepochs = 3\nseed = 1\n")
    _, layers, _ = parsed("w", "--config", str(tmp_path / "job.toml"), "--steps", "7", "--set", "seed=2")
    settings = Settings.build({"lr": 0.1}, *layers)
    assert (settings.lr, settings.budget, settings.seed) == (0.5, Length(7, "steps"), 2)


def test_an_option_may_take_a_number_or_a_word():
    for written, value in (("16", 16), ("global", "global")):
        assert Settings.build({}, *parsed("w", "--ghost-batch", written)[1]).ghost_batch == value
    with pytest.raises(UsageError, match=naming("'some'", "'global'")):
        Settings.build({}, *parsed("w", "--ghost-batch", "some")[1])


def test_the_list_has_every_workload(capsys):
    result = CliRunner().invoke(command, ["--list"], standalone_mode=False)
    listed = [line.split()[0] for line in result.output.splitlines() if "/" in line.split(" ")[0]]
    assert (listed, result.return_value) == (names(), 0)


def test_the_help_names_every_key_without_loading_torch(run, worded):
    code = ("import sys; sys.argv = ['hvdscale-train', '--help-all']\n"
            "from hvdscale.cli.train import main\n"
            "try: main()\n"
            "except SystemExit as left: assert not left.code\n"
            "print('LOADED', {'torch', 'horovod', 'mpi4py', 'h5py', 'scipy', 'matplotlib'} & sys.modules.keys())\n")
    text = run(sys.executable, "-c", code).stdout
    assert "LOADED set()" in text
    for name in KEYS:
        spelling = rf"--{name.replace('_', '-')}\b" if name in OPTIONS else rf"^ +(--.* an entry of )?{name}\b"
        assert re.search(spelling, text, re.M), name
    worded(text, about="seed of")
    assert "object at 0x" not in text
    assert "Exit codes: 0 done, 1 error, 2 misuse, 3 diverged" in text
    assert text.count("steps, epochs, examples, tokens") == 1
    assert len(text.splitlines()) <= 190, "no terminal: as wide as other output"


def test_a_dry_run_prints_the_plan_and_writes_nothing(here, tmp_path):
    done = here("hvdscale-train", "digits/fc", "--local-batch", "32", "--dry-run")
    assert done.stdout.startswith("digits/fc\n") and done.stderr == "" and list(tmp_path.iterdir()) == []


def test_ctrl_c_stops_a_run_which_says_where_it_resumes(tmp_path):
    pytest.importorskip("sklearn")
    command = [*TRAIN, "digits/fc", "--steps", "1000000", "--target", "none", "--eval-every", "0", "--checkpoint", "ck"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=command_environment(),
                          preexec_fn=heed_ctrl_c) as run:
        while not run.stdout.readline().startswith("step"):
            assert run.poll() is None
        run.send_signal(signal.SIGINT)
        said = [line for line in run.stdout.read().splitlines() if "host is busy" not in line]
    assert run.returncode == 75 and said[-3].startswith("INCOMPLETE: stopped by a signal after step"), said
    assert re.search(r"next: .* --resume auto .* at step (\d+)$", said[-1])[1] in said[-3], said


def test_a_run_alone_says_its_plan_its_end_its_log_and_what_to_type_next(run, tmp_path):
    pytest.importorskip("sklearn")
    done = run(*TRAIN, "digits/fc", "--steps", "30", "--eval-every", "10", "--target", "none")
    lines = done.stdout.splitlines()
    assert lines[0] == "digits/fc"
    assert re.search(r"^COMPLETE: budget of 30 steps spent", done.stdout, re.M)
    assert re.search(r"test/error \S+.*val/error \S+", done.stdout[done.stdout.index("COMPLETE"):])
    log = re.fullmatch(r"log: (runs/digits-fc-\d{8}-\d{6}\.h5)", lines[-2]).group(1)
    assert lines[-1] == f"next: hvdscale-report {log}"
    assert f"  log            {log}" in lines
    assert done.stderr == ""
    assert [path.name for path in (tmp_path / "runs").glob("*.h5")] == [log.removeprefix("runs/")]
    with read_log(tmp_path / log) as found:
        assert found.trials["status"][0] == Status.COMPLETE
        assert found.evaluations["step"].tolist() == [0, 10, 20, 30]
    report = run(sys.executable, "-c", "from hvdscale.cli.report import main; main()", *shlex.split(lines[-1])[2:])
    assert "digits/fc" in report.stdout


@pytest.mark.parametrize("number", [signal.SIGUSR1, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_before_the_first_step_says_so_and_asks_to_be_queued_again(number, run, tmp_path, worded):
    (tmp_path / "slow.py").write_text(
        "import os, signal, time\n"
        "from tests.factories.jobs import Tokens\n\n\n"
        "class Slow(Tokens):\n"
        "    def load(self, data_dir):\n"
        f"        os.kill(os.getpid(), {int(number)})\n"
        "        time.sleep(60)\n\n\n"
        "workload = Slow()\n")
    done = run(*TRAIN, "slow:workload", "--checkpoint", "kept", check=False)
    worded(done.stderr, about="stopped by")
    assert done.returncode == 75
    assert "Traceback" not in done.stderr
    assert json.loads((tmp_path / "kept" / "outcome").read_text())["exit_code"] == 75


def test_a_signal_while_the_users_module_is_imported_is_no_fault_of_it(run, tmp_path, worded):
    (tmp_path / "slow.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n")
    done = run(*TRAIN, "slow:workload", check=False)
    worded(done.stderr, about="stopped by")
    assert done.returncode == 75
    assert "slow" not in done.stderr


@pytest.mark.parametrize("module, more", [(train, ["--dry-run"]), (doctor, ["--sample"]), (scale, ["--workers"])])
def test_the_help_lists_options_under_headings(module, more):
    command = getattr(module, "command", None) or module.main
    output = CliRunner().invoke(command, ["--help-all"]).output
    sections = dict(re.findall(r"^(\w[^\n]*):\n((?:  .*\n)+)", output, re.M))
    for heading, option in {"Options": more[0], "Batch": "--local-batch", "Learning rate": "--warmup ",
                            "Budget, target and evaluation": "--target", "Execution": "--device"}.items():
        assert option in sections[heading]
    assert ("Checkpoints" in sections) == (module is train)
    assert output.count("--seed ") == 1
