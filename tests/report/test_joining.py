"""What a report says of imported workloads that may be one job under several names."""
import pytest

from hvdscale.analysis.trials import JobKey
from hvdscale.report.pages import describe_joining

IMPORTED = [{"imported": {"kind": "rcp"}}]


def workload(**changes):
    return JobKey(**{"dataset": "bert", "model": "reference", "model_args": "", "optimizer": "lamb",
                     "train_examples": 0, **changes})


@pytest.mark.parametrize("changes, said", [
    ({"model": "bert_large"}, "--model"), ({"optimizer": "adam"}, "--optimizer"), ({"train_examples": 7}, "--set-size"),
    ({"version": "a1b2c3"}, None), ({"dataset": "resnet"}, None)])
def test_workloads_that_differ_in_what_an_import_names_are_told_how_to_join(changes, said):
    found = list(describe_joining([workload(), workload(**changes)], IMPORTED))
    assert len(found) == (said is not None) and all(said in one for one in found)
    assert not list(describe_joining([workload(), workload(**changes)], [{}]))
