"""Translation is the same problem at any worker count: its updates, with dropout, and BLEU over the whole split."""
import numpy as np
import pytest

from hvdscale.workers.group import SingleWorker
from tests.conftest import whole_threads
from tests.factories.translations import folder_of
from tests.parallel.ranks import trained

pytest.importorskip("sacrebleu")
KEYS = dict(steps=8, global_batch=10, ghost_batch=4, base_batch=10, lr=0.01, warmup_steps=0, eval_batch=5, eval_every=8,
            data_args=dict(vocabulary="word", longest=5),
            model_args=dict(layers=1, width=16, hidden=16, heads=2, dropout=0.3))


def translating(workers, given):
    """The parameters and the last evaluation of a small model that learns to translate made sentences."""
    return trained(workers, "multi30k/transformer", **KEYS, **given)[:2]


@pytest.mark.slow
@pytest.mark.parametrize("np_", [2, 3])
def test_any_worker_count_trains_and_measures_the_same(launch, tmp_path, np_):
    given = dict(data_dir=str(folder_of(tmp_path)), cache_dir=str(tmp_path / "cache"))
    with whole_threads():
        wanted, measured = translating(SingleWorker(), given)
        passes, _ = translating(SingleWorker(), {**given, "accumulate": 4})
    ranks = launch(translating, np_, given)
    assert all(str(rank) == str(ranks[0]) for rank in ranks)            # to the last bit, and NaN for NaN
    for parameters in (passes, ranks[0][0]):
        assert np.linalg.norm(np.subtract(parameters, wanted)) <= 1e-10 * np.linalg.norm(wanted)
    assert ranks[0][1] == pytest.approx(measured, rel=1e-9, nan_ok=True)
    assert {"val/bleu", "val/perplexity", "test/bleu", "train/cross_entropy"} <= measured.keys()
    assert np.isfinite(measured["val/bleu"])
