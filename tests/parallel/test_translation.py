"""Translation is the same problem at any worker count: its updates, with dropout, and BLEU over the whole split."""
import numpy as np
import pytest
import torch

from hvdscale.workers.group import SingleWorker
from tests.parallel.translations import trained
from tests.factories.translations import folder_of

pytest.importorskip("sacrebleu")


@pytest.mark.slow
@pytest.mark.parametrize("np_", [2, 3])
def test_any_worker_count_trains_and_measures_the_same(launch, tmp_path, np_):
    given = dict(data_dir=str(folder_of(tmp_path)), cache_dir=str(tmp_path / "cache"))
    threads = torch.get_num_threads()
    wanted, measured = trained(SingleWorker(), **given)
    passes, _ = trained(SingleWorker(), **given, accumulate=4)
    torch.set_num_threads(threads)
    ranks = launch("translations", np_, given)
    assert all(str(rank) == str(ranks[0]) for rank in ranks)            # to the last bit, and NaN for NaN
    for parameters in (passes, ranks[0][0]):
        assert np.linalg.norm(np.subtract(parameters, wanted)) <= 1e-10 * np.linalg.norm(wanted)
    assert ranks[0][1] == pytest.approx(measured, rel=1e-9, nan_ok=True)
    assert {"val/bleu", "val/perplexity", "test/bleu", "train/cross_entropy"} <= measured.keys()
    assert np.isfinite(measured["val/bleu"])
