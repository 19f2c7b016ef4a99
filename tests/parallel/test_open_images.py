"""Average precision over real workers: the same to the last bit at any worker count."""
import pytest
import torch

from hvdscale.workers.group import SingleWorker
from tests.parallel.open_images_measures import measures
from tests.factories import open_images as made_open_images


@pytest.mark.slow
@pytest.mark.parametrize("np_", [2, 3])
def test_average_precision_is_one_workers_to_the_last_bit(tmp_path, launch, np_):
    folder = tmp_path / "data"
    folder.mkdir()
    made_open_images.write(folder)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = measures(SingleWorker(), str(folder))
    torch.set_num_threads(threads)
    for measured in launch("open_images_measures", np_, str(folder)):
        assert measured == alone
    for measured in alone:
        precisions = [float.fromhex(measured[f"{split}/average_precision"]) for split in ("train", "val", "test")]
        assert all(0 < value <= 1 for value in precisions) and precisions[0] < 1
