"""A model that does not go with its data or loss: one line names the user's line, the layer, and what would go."""
import re

import pytest

from hvdscale.errors import HvdscaleError, WorkloadError
from hvdscale.training.prepare import prepare
from hvdscale.workers.group import SingleWorker
from tests.factories import mistaken_models

HERE = re.escape(mistaken_models.__file__)
BUILT = rf"; made/net builds the model at {HERE}:\d+"
BOTH = r"\(a tensor of shape \(8, 3\), a tensor of shape \(8, 12\)\)"
LINEAR = r"layer 1, Linear\(in_features=7, out_features=3, bias=True\), was given a tensor of shape \(8, 12\)"
META = rf"made/net: build returned a model whose weight is on the meta device, .*; build it on the CPU.*{BUILT}"


@pytest.mark.parametrize("workload, said", [
    ("OWN_tuple", rf"TypeError: .*must be Tensor, not tuple \({HERE}:\d+\); the model returned {BOTH}"),
    ("OWN_width", rf"RuntimeError: .*\(8x12 and 7x3\) \({HERE}:\d+\); {LINEAR}"),
    ("CLASSES_width", rf"RuntimeError: .*\(8x12 and 7x3\) .*; {LINEAR}{BUILT}"),
    ("OWN_shape", rf"RuntimeError: .* \({HERE}:\d+\); the model returned a tensor of shape \(8, 1, 3\)"),
    ("CLASSES_tuple", rf"TwoOutputs returned {BOTH}; it must return logits, a tensor of shape \(8, 3\){BUILT}"),
    ("CLASSES_shape", rf"Flat returned a tensor of shape \(8, 1, 3\); it must return logits, .* shape \(8, 3\){BUILT}"),
    ("OWN_meta", META), ("CLASSES_meta", META)])
def test_a_model_that_does_not_fit_is_one_line_with_what_it_was_given(capsys, workload, said):
    with pytest.raises(HvdscaleError, match=said) as raised:
        prepare(f"tests.factories.mistaken_models:{workload}", [{}], SingleWorker())
    assert "\n" not in str(raised.value) and capsys.readouterr().err == ""


@pytest.mark.parametrize("batch, kind", [({"x": 1, "y": 2}, "dict"), ([(1, 2)] * 3, "list"), ([1, 2], "list")])
def test_a_batch_of_a_classification_that_is_no_pair_of_tensors_is_named(batch, kind):
    with pytest.raises(WorkloadError, match=f"^made/net: a batch is a {kind}; it must be inputs and labels"):
        mistaken_models.classifying(None).loss(None, batch)


def test_the_line_that_is_named_is_the_one_at_fault():
    with pytest.raises(HvdscaleError) as raised:
        prepare("tests.factories.mistaken_models:OWN_tuple", [{}], SingleWorker())
    line = int(re.search(rf"{HERE}:(\d+)", str(raised.value))[1])
    with open(mistaken_models.__file__) as file:
        assert "the line that is named" in file.readlines()[line - 1]
