"""The table of benchmarks."""
import pytest

from hvdscale.exchange.benchmarks import table


@pytest.mark.parametrize("name", table._TABLE["benchmarks"])
def test_every_entry_of_the_table_can_be_used(name):
    found = table.find_benchmark(name, largest=table.SHORT_EPOCHS)
    assert found.name == name and found.known and found.unit in table.UNITS and found.optimizer.islower()
    assert found.goals and {*found.better.values()} <= {"smaller", "larger"}
    assert found.examples is None or found.source
    assert found.unit != "epochs" or found.examples or name in ("gnmt", "transformer")      # each made its own set


@pytest.mark.parametrize("largest, sizes, name", [
    (50, (), "ssd"), (4, (), "retinanet"), (4, (117_266,), "ssd"), (4, (118_287, 118_287 * 1024), "ssd"),
    (50, (4572, 4572 * 256), "retinanet"), (8, (464, 464 * 2528), "retinanet")])
def test_the_two_benchmarks_called_ssd_differ_in_epochs_and_size(largest, sizes, name):
    assert table.find_benchmark("ssd", largest, sizes).name == name


@pytest.mark.parametrize("benchmark, key, setting", [
    ("resnet", "lars_opt_weight_decay", True), ("bert", "num_warmup_steps", True),
    ("rnnt", "data_train_num_buckets", True), ("bert", "data_train_num_buckets", False),
    ("resnet", "opt_name", False), ("deepcam", "opt_step", False),
    ("deepcam", "learning_rate", False), ("llama2_70b_lora", "train_loss", False), ("new", "opt_eps", True)])
def test_settings_are_those_that_the_table_lists(benchmark, key, setting):
    assert table.find_benchmark(benchmark).is_setting(key) == setting


def test_what_a_user_says_takes_the_place_of_the_table():
    found = table.find_benchmark("dlrm", unit="steps", examples=7)
    assert (found.examples_at(3, 256), found.examples) == (768, 7)
    assert table.find_benchmark("dlrm", examples=100).examples_at(1.5, 256) == 50
    assert table.find_benchmark("resnet", unit="epochs", examples=2).examples_at(30_000, 1) == 60_000
