"""Workers are lost and come under horovodrun's elastic mode; the job is the one that a single worker takes alone."""
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch

from hvdscale.log.reader import read_log
from hvdscale.log.schema import Status
from hvdscale.plan.batch_schedule import BatchSchedule
from hvdscale.plan.shards import Stream
from tests.conftest import command_environment, launcher_command
from tests.parallel import test_readme as readme
from tests.parallel import toy

STALL, STEPS, BATCH = 8, 40, 24
TWO, THREE = "localhost:1\n127.0.0.1:1\n", "localhost:2\n127.0.0.1:1\n"    # hosts of two names, which are one machine
MORE = "localhost:3\n127.0.0.1:2\n"
JOB = ["toy/net", "--steps", str(STEPS), "--eval-every", "8", "--precision", "fp64", "--set", "model_args.dropout=0.3",
       "--set", "model_args.norm=ours", "--set", f"stall_seconds={STALL}"]


@pytest.fixture
def elastic(tmp_path):
    """Run the toy job under horovodrun's elastic mode in tmp_path; gives exit code and output."""
    def elastic(np, *options, hosts=THREE, then=MORE, at_least=1, at_most=3, timeout=300, more=(), **environment):
        launcher_command("gloo", np)
        (tmp_path / "hosts.txt").write_text(hosts)
        (tmp_path / "hosts.next").write_text(then)
        (tmp_path / "hosts").write_text("#!/bin/sh\ncat hosts.txt\n")
        (tmp_path / "hosts").chmod(0o755)
        command = ["horovodrun", "--gloo", "--network-interface", "lo", "-np", np, "--min-np", at_least, "--max-np",
                   at_most, "--host-discovery-script", "./hosts", *more,
                   sys.executable, "-m", "tests.parallel.elastic_command", *JOB, *options]
        with subprocess.Popen([*map(str, command)], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, env={**command_environment(), **environment}, start_new_session=True) as job:
            try:
                output = job.communicate(timeout=timeout)[0]
            except subprocess.TimeoutExpired:
                os.killpg(job.pid, signal.SIGKILL)
                raise AssertionError(job.communicate()[0]) from None
        return job.returncode, output
    return elastic


@pytest.fixture
def check_same(run, tmp_path):
    """Hold weights, log and visits of the elastic job against the same one on one worker that nothing happens to; gives
    the log's restarts."""
    def check_same(*options, batches=BatchSchedule((BATCH,))):
        given = [word for name, value in batches.keys().items() for word in ("--set", f"{name}={value}")]
        run(sys.executable, "-m", "tests.parallel.elastic_command", *JOB, *given, "--log", "alone.h5",
            "--save-model", "alone.pt", *options, VISITS="alone.jsonl")
        expected = weights(tmp_path / "alone.pt")
        assert (weights(tmp_path / "e.pt") - expected).norm() <= 1e-10 * expected.norm()
        with read_log(tmp_path / "alone.h5") as alone, read_log(tmp_path / "e.h5") as log:
            assert Status(log.trials["status"][0]) == Status.COMPLETE
            assert log.trials["global_batch"][0] == batches.largest
            for table, exact, close in (("steps", ("step", "lr"), ("loss",)),
                                        ("evaluations", ("step", "examples"), ("val/cross_entropy", "train/error"))):
                table, expected = getattr(log, table), getattr(alone, table)
                for column in exact:
                    assert np.array_equal(table[column], expected[column]), column
                for column in close:
                    assert np.allclose(table[column], expected[column], rtol=1e-9), column
            restarts = {name: log.restarts[name].tolist() for name in ("first_step", "workers", "time", "previous_end")}
        check_visits(tmp_path / "visits.jsonl", restarts, batches)
        return restarts
    return check_same


def weights(path):
    return torch.cat([tensor.flatten().double() for tensor in torch.load(path, weights_only=True).values()])


def check_visits(path, restarts, batches):
    """The visits that count, those since the last start before or at their step: each epoch's examples once."""
    since = [max(start for first, start in zip(restarts["first_step"], restarts["time"]) if first <= step)
             for step in range(STEPS)]
    visited = Counter()
    for row in map(json.loads, path.read_text().splitlines()):
        if row["time"] >= since[row["step"]]:
            visited.update(zip(row["epochs"], row["indices"]))
    stream = Stream(toy.TRAIN, batches, seed=0)
    visits = [stream.visits(step, 0, stream.size(step)) for step in range(STEPS)]
    expected = Counter((epoch, index) for v in visits for epoch, index in zip(v.epochs.tolist(), v.indices.tolist()))
    assert visited == expected
    whole_epochs = stream.examples_before(STEPS) // toy.TRAIN
    assert all(visited[epoch, index] == 1 for epoch in range(whole_epochs) for index in range(toy.TRAIN))


GROWING = BatchSchedule((7, 24, 30), (0, 10, 28))
GROWS = ["--set", "batch_schedule_examples=[[0, 7], [70, 24], [500, 30]]", "--set", "lr_rule=sqrt"]


@pytest.mark.parametrize("np_, rank, batch, same", [
    (2, 0, GROWS, GROWING), pytest.param(3, 0, GROWS, GROWING, marks=pytest.mark.slow),
    *(pytest.param(3, rank, ["--local-batch", "8"], None, marks=pytest.mark.slow) for rank in (0, 2))])
def test_losing_and_gaining_a_worker_gives_the_updates_of_one(elastic, check_same, np_, rank, batch, same):
    code, output = elastic(np_, *batch, "--log-file", "e.h5", "--save-model", "e.pt", hosts={2: TWO, 3: THREE}[np_],
                           HAPPENS=f"kill:{rank}:10,hosts:0:20", SLOW=str(np_))
    assert code == 0, output
    restarts = check_same("--set", "lr_rule=sqrt", batches=same) if same else check_same()
    assert restarts["workers"][0] == np_ and 1 <= restarts["workers"][1] < np_, restarts
    assert restarts["workers"][1] < restarts["workers"][2] <= 3
    assert restarts["first_step"][0] == 0 and restarts["first_step"][1] <= 10 and 20 < restarts["first_step"][2]
    assert restarts["previous_end"][0] == "" and restarts["previous_end"][2] == "hosts were added or removed"
    assert len(restarts["workers"]) == 3
    assert "hosts were added or removed: resumes after step" in output
    assert re.search(rf"Note: rank \d of {np_}: a worker was lost", output)         # slurm/elastic.sbatch reads it


@pytest.mark.slow
@pytest.mark.parametrize("np_, given, workers", [
    *((2, dict(hosts=TWO, HAPPENS=event), [2, 1]) for event in (
        "stop:1:10", "hang:1:10", "raise:0:10", "kill-evaluating:0:16", "kill-evaluating:1:0", "kill:0:0",
        "kill:1:39")),
    (2, dict(hosts=TWO, HAPPENS="kill-loading:0:0"), [1]), (2, dict(hosts=TWO, NEVER="127.0.0.1"), [1]),
    (1, dict(hosts="localhost:1\n", then=TWO, HAPPENS="hosts:0:6", NEVER="127.0.0.1", SLOW="2"), [1, 1])])
def test_whatever_ends_a_worker_the_others_go_on(elastic, check_same, np_, given, workers):
    code, output = elastic(np_, "--global-batch", BATCH, "--log-file", "e.h5", "--save-model", "e.pt", **given)
    assert code == 0, output
    assert check_same()["workers"] == workers


@pytest.mark.slow
def test_a_worker_is_taken_out_and_another_is_lost(elastic, check_same):
    code, output = elastic(3, "--local-batch", "8", "--set", "commit_every=3", "--log-file", "e.h5", "--save-model",
                           "e.pt", "--ghost-batch", "12", then=TWO,
                           HAPPENS="hosts:0:6,kill:1:35", SLOW="2")
    assert code == 0, output
    restarts = check_same("--ghost-batch", "12")
    assert restarts["workers"] == [3, 2, 1]
    assert restarts["first_step"][2] == 33
    assert "is no longer part of the job" in output


@pytest.mark.slow
def test_a_job_left_with_too_few_workers_ends_and_is_resumed(elastic, check_same, run, tmp_path):
    code, output = elastic(2, "--global-batch", BATCH, "--log-file", "e.h5", "--checkpoint", "kept",
                           "--set", "checkpoint_every=8", hosts=TWO, at_least=2,
                           more=("--elastic-timeout", 5), HAPPENS="kill:1:20")
    assert code != 0 and "Timed out waiting" in output
    outcome = json.loads((tmp_path / "kept" / "outcome").read_text())
    assert (outcome["status"], outcome["exit_code"]) == ("INCOMPLETE", 1) and "a worker was lost" in outcome["reason"]
    run(sys.executable, "-m", "tests.parallel.elastic_command", *JOB, "--global-batch", BATCH, "--log", "e.h5",
        "--checkpoint", "kept", "--resume", "auto", "--save-model", "e.pt")
    assert check_same()["workers"] == [2, 1]


@pytest.mark.slow
def test_the_elastic_command_for_a_cluster_runs(tmp_path):
    launcher_command("gloo", 1)
    (tmp_path / "hosts").write_text("#!/bin/sh\necho localhost:2\necho 127.0.0.1:2\n")
    (tmp_path / "hosts").chmod(0o755)
    (command,) = (command for command in readme.commands() if "--max-np" in command)
    readme.bash(f"{command} --log-file e.h5", tmp_path)
    with read_log(tmp_path / "e.h5") as log:
        assert Status(log.trials["status"][0]) == Status.COMPLETE and log.restarts["workers"].tolist() == [4]
