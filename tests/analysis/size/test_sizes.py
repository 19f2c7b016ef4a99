"""Sizes of workloads: from their names, their logs and columns, as numbers."""
import pytest

from hvdscale.analysis.size.sizes import cells_of, parse_size, sizes_of
from hvdscale.analysis.studies import studies_of
from hvdscale.errors import UsageError
from tests.factories.logs import log, trial
from tests.factories.size_grids import runs_to_target

PATTERN = "parameters=gpt_([0-9.]+[MB])"


@pytest.mark.parametrize("text, value", [("151M", 151e6), ("1.2B", 1.2e9), ("7e9", 7e9), ("1,000", 1000), ("2T", 2e12)])
def test_sizes_are_numbers(text, value):
    assert parse_size(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "M", "-3", "0", "1e999", "12X", "nan"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(UsageError, match="size"):
        parse_size(text)


def test_cells_sort_as_numbers():
    cells = cells_of(studies_of(runs_to_target()), sizes_of([PATTERN]))
    assert [one.sizes for one in cells] == [(1e7,), (2e7,), (4e7,), (1.2e9,)]


def test_a_size_comes_from_the_log():
    made = log(trial(1, model_args={"units": 64}), trial(2, model_args={"units": 256}))
    assert [one.sizes for one in cells_of(studies_of([made]), sizes_of(["units", "examples"]))] == [
        (64.0, 1000.0), (256.0, 1000.0)]


def test_parameters_and_the_tokens_of_budgets_come_from_the_log():
    """Budgets of 3,200 and 6,400 examples of 50 tokens, in whole steps of three batches."""
    made = log(*[trial(10 * at + budget, batch=batch, budget=-(-3200 * budget // batch), train_tokens=50_000,
                       job={"model": {"count": 4810}}) for at, batch in enumerate((32, 96, 1000)) for budget in (1, 2)])
    cells = cells_of(studies_of([made]), sizes_of(["parameters", "tokens"]))
    assert [one.sizes for one in cells] == [(4810.0, 160_000.0), (4810.0, 320_000.0)]
    assert [[int(study.searched.sum()) for study in one.studies] for one in cells] == [[1, 1, 1]] * 2


def test_a_metaparameter_divides_the_studies_of_one_workload():
    made = log(*[trial(at + 1, peak_lr=rate) for at, rate in enumerate((0.1, 0.1, 0.2))])
    cells = cells_of(studies_of([made]), sizes_of(["learning_rate"]))
    assert [(one.sizes, int(one.studies[0].searched.sum())) for one in cells] == [((0.1,), 2), ((0.2,), 1)]


@pytest.mark.parametrize("texts, match", [(["tokens"], "does not have it; it has"),
                                          (["x=("], "not a regular expression"),
                                          (["x=abc"], "0 groups"), (["2x"], "starts with a name"),
                                          (["a=(b)", "a"], "twice"), (["a=(q)"], "not in the name")])
def test_sizes_that_cannot_be_had(texts, match):
    with pytest.raises(UsageError, match=match):
        cells_of(studies_of(runs_to_target(models={"gpt_10M": 1e7}, seeds=1)), sizes_of(texts))
