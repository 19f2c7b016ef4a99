"""hvdscale-train --list: parameters and operations against closed forms, and a table that can be read."""
import re
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

import pytest
import torch

from hvdscale.plan import presets
from hvdscale.workload import Batch, Card, Classification, Data, Split, build_model
from hvdscale.workloads import find, names
from hvdscale.workloads.models.plain import WIDTHS
from tests.conftest import ROOT

LOADER = SourceFileLoader("listing", str(ROOT / "tools/list_workloads"))
listing = module_from_spec(spec_from_loader("listing", LOADER))
LOADER.exec_module(listing)
counts, example = listing.counts, listing.example


def dense(*sizes):
    """Parameters and operations of linear layers with biases, from size to size."""
    pairs = list(zip(sizes, sizes[1:]))
    return sum(a * b + b for a, b in pairs), sum(2 * a * b for a, b in pairs)


@pytest.mark.parametrize("name, sizes", [
    ("mnist/fc_1024_1024", (784, 1024, 1024, 10)), ("fashion_mnist/fc_7", (784, 7, 10)), ("digits/fc", (64, 64, 10))])
def test_a_fully_connected_network_takes_two_operations_a_weight(name, sizes):
    assert counts(find(name)) == dense(*sizes)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_convolution_takes_two_operations_a_weight_and_pixel(width):
    first, second, hidden = WIDTHS[width]
    workload = find(f"mnist/simple_cnn_{width}")
    of_dense = dense(49 * second, hidden, 10)
    assert counts(workload) == (26 * first + (25 * first + 1) * second + of_dense[0],
                                2 * 25 * (28**2 * first + 14**2 * first * second) + of_dense[1])


def test_operations_are_of_one_example_of_the_card():
    def of(examples):
        batch = Batch(torch.empty(examples, 5, device="meta"), torch.empty(examples, dtype=torch.int64, device="meta"))
        return Classification("d", "m", 3, lambda data_dir: Data(Split(torch.ones(1, 5), torch.zeros(1)), None),
                              lambda: torch.nn.Linear(5, 3), card=Card(10, 2, lambda: batch))
    assert (counts(of(1)), counts(of(4))) == ((18, 30), (18, 120))


def build_on_meta(workload):
    """The workload's model; one of a text that nothing is published of, with a vocabulary of 1,000."""
    with torch.device("meta"):
        return build_model(workload, workload.card.model_args if workload.card else {"vocabulary": 1000})


@pytest.mark.parametrize("name", names())
def test_a_name_that_is_listed_is_found_and_builds_its_model(name):
    workload = find(example(name))
    assert workload.name == example(name)
    assert all(parameter.is_meta for parameter in build_on_meta(workload).parameters())


@pytest.fixture(scope="module")
def lines():
    return listing.listing().splitlines()


def test_the_command_prints_the_table_as_it_is_now(lines):
    shipped = (ROOT / "hvdscale/cli/workloads.txt").read_text().splitlines()
    assert shipped == lines, "tools/list_workloads > hvdscale/cli/workloads.txt"
    listed = subprocess.run([sys.executable, "-X", "importtime", "-m", "hvdscale.cli.train", "--list"], cwd=ROOT,
                            capture_output=True, text=True)
    assert listed.stdout.splitlines() == lines and not re.search(r"\| +torch$", listed.stderr, re.MULTILINE)


def test_the_table_fits_100_columns_and_has_each_workload_and_preset_once(lines):
    assert lines[0].split("  ")[0] == listing.HEADINGS[0] and max(map(len, lines)) <= 100
    first = [line.split()[0] for line in lines if line]
    for name in (*names(), *presets.names()):
        assert first.count(name) == 1, name
    assert "\n".join(lines).isascii() and all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize("value, text", [
    (0, "0"), (9.47e-6, "0.000009"), (0.000632, "0.000632"), (0.0277632, "0.0278"), (7.64, "7.64"), (15.2, "15.2"),
    (123.4, "123"), (1234567.0, "1,234,567")])
def test_operations_have_three_figures_and_no_exponent(value, text):
    assert listing.format_rounded(value) == text


@pytest.mark.parametrize("number, text", [(0, "0"), (55000, "55,000"), (25.8e9, "25.8 billion")])
def test_examples_are_counted_to_the_last_up_to_a_billion(number, text):
    assert listing.format_count(int(number)) == text
