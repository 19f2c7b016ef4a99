"""Average precision over real workers: the same to the last bit at any worker count."""
import pytest
import torch

from hvdscale.training.evaluate import Evaluator
from hvdscale.workers.group import SingleWorker
from hvdscale.workload import load_data
from hvdscale.workloads.large import open_images
from tests.conftest import whole_threads
from tests.factories import open_images as made_open_images

CHUNKS, SIDE = (1, 3, 256), 32


def measures(workers, folder):
    """For each chunk size, each measure of the three splits as a hexadecimal float, by a small ResNet-26."""
    workload = open_images.workload("open_images_v4", "resnet_50")
    data = load_data(workload, folder, {"side": SIDE})
    torch.manual_seed(0)
    model = workload.build(**data.model_args, depth=26, width=0.125, readout_std=1.0)
    splits = data.evaluated(len(data.train))
    return [{name: value.hex() for name, value in
             Evaluator(workload, splits, chunk, workers, torch.device("cpu"))(model, tuple(splits)).items()}
            for chunk in CHUNKS]


@pytest.mark.slow
@pytest.mark.parametrize("np_", [2, 3])
def test_average_precision_is_one_workers_to_the_last_bit(tmp_path, launch, np_):
    folder = tmp_path / "data"
    folder.mkdir()
    made_open_images.write(folder)
    with whole_threads():
        torch.set_num_threads(1)
        alone = measures(SingleWorker(), str(folder))
    for measured in launch(measures, np_, str(folder)):
        assert measured == alone
    for measured in alone:
        precisions = [float.fromhex(measured[f"{split}/average_precision"]) for split in ("train", "val", "test")]
        assert all(0 < value <= 1 for value in precisions) and precisions[0] < 1
