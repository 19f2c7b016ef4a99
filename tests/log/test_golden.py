"""The log that is kept of each schema version reads as it was written."""
import json
from pathlib import Path

import numpy as np

from hvdscale.log.check import check
from hvdscale.log.schema import Status
from tests.golden import make_v1

V1 = Path(make_v1.__file__).with_name("v1.h5")


def test_version_1_reads_with_the_values_it_was_written_with():
    log = check(V1)
    assert (log.attributes["version"], log.attributes["id"]) == (1, "golden-v1")
    assert log.attributes["versions"]["horovod"] == "0.28.1"
    assert [table.rows for table in log.tables] == [7, 8, 69, 1240]
    assert log.trials["global_batch"].tolist() == [16, 16, 32, 32, 64, 64, 64]
    assert log.trials["status"].tolist() == [Status.COMPLETE] * 6 + [Status.INFEASIBLE]
    assert log.trials["stop_reason"].tolist() == [
        *(f"target val/error<0.05 met at step {step}" for step in (240, 260, 140, 160, 100)),
        "budget of 300 steps reached", "the loss is nan at step 40"]
    assert [json.loads(text) for text in log.trials["plan"]] == [
        make_v1.plan_of(workers, seed) for workers, seed, _ in make_v1.TRIALS.values()]
    assert log.trials["metaparameters/learning_rate"].tolist() == [0.02, 0.02, 0.04, 0.04, 0.08, 0.08, 0.08]
    assert np.isnan(log.trials["metaparameters/decay_steps"]).all()
    assert log.restarts["host"].tolist() == ["node1", "node1", "node2"] + 5 * ["node1"]
    assert log.restarts["first_step"].tolist() == [0, 0, 100, 0, 0, 0, 0, 0]


def test_what_is_written_today_equals_the_kept_log_but_for_library_versions(tmp_path):
    make_v1.main(tmp_path / "today.h5")
    kept, today = check(V1), check(tmp_path / "today.h5")
    assert kept.attributes == today.attributes
    for old, new in zip(kept.tables, today.tables):
        assert old.specs == new.specs
        for name in old:
            np.testing.assert_array_equal(old[name], new[name])
