"""Reading tables: the rows of one trial."""
import pytest

from hvdscale.log.reader import read_log
from hvdscale.log.schema import SMALLER
from hvdscale.log.writer import LogWriter


@pytest.mark.parametrize("trials", [[0, 0, 1, 1, 1, 4], [4, 0, 1, 0, 1, 1], []])
def test_a_trials_rows_are_those_of_its_number_in_their_order(tmp_path, trials):
    path = str(tmp_path / "log.h5")
    writer = LogWriter(path, metrics={"val/error": SMALLER})
    for number, trial in enumerate(trials):
        writer.append("evaluations", trial=trial, step=number, examples=number, train_seconds=0.0,
                      **{"val/error": number / 2})
    writer.finish()
    with read_log(path) as log:
        for trial in (0, 1, 2, 4, 9):
            own = [number for number, other in enumerate(trials) if other == trial]
            assert log.evaluations.of_trial("step", trial).tolist() == own
            assert log.evaluations.of_trial("val/error", trial).tolist() == [number / 2 for number in own]
