"""The log of a timed run: batches of an update that a script accumulates, and what was not seen."""
import pytest

from hvdscale.analysis.timings import timings_of
from hvdscale.analysis.trials import read_trials
from hvdscale.log.check import check
from hvdscale.scaling.runs import unseen_passes, write_log
from hvdscale.workers.launch import last_words
from tests.factories.kept_reports import record_of_rank


def counted(rank, **counts):
    made = record_of_rank(rank, 2, {})
    made["updates"].update({name: [count] * 10 for name, count in counts.items()})
    return made


def test_batches_that_an_update_accumulates_are_passes_of_a_local_batch(tmp_path):
    path = str(tmp_path / "w2-r1.h5")
    write_log(path, "train.py", [counted(rank, examples=24, batches=3, passes=3) for rank in range(2)], None,
              {"local_workers": 2}, {}, ())
    with check(path) as log:
        row = {name: log.trials[name][0] for name in ("global_batch", "local_batch", "accumulation")}
        [timing] = timings_of(read_trials(log)).found
    assert row == {"global_batch": 48, "local_batch": 8, "accumulation": 3}
    assert (timing.place.passes, timing.place.examples) == (3, 8)


@pytest.mark.parametrize("counts, said", [({"batches": 0, "passes": 4}, True), ({"batches": 4, "passes": 4}, False),
                                          ({"batches": 0, "passes": 1}, False)])
def test_passes_whose_examples_are_not_seen_are_named(counts, said):
    remarks = unseen_passes([counted(0, **counts)])
    assert bool(remarks) == said and all("4 backward passes" in one and "4 times the batch" in one for one in remarks)


@pytest.mark.parametrize("said", [
    "mine\n\nE1129 01:53:53.687000 2482 torch/distributed/elastic/api.py:1002] failed\nTraceback\n",
    f"mine\n{'-' * 74}\nPrimary job terminated normally, but 1 process returned\n",
    "[0]<stderr>:mine\nProcess 0 exit with status code 2.\nTraceback\n", "mine"])
def test_the_last_words_of_a_script_are_before_those_of_its_launcher(said):
    assert last_words(said) == "mine" and last_words("") == ""
