"""Jobs of users' own are the same problem at any worker count: any batch, any mean, augmentation, loader workers."""
import numpy as np
import pytest
import torch

from hvdscale.errors import WorkloadError
from hvdscale.plan.shards import Visits
from hvdscale.training.prepare import prepare
from hvdscale.workers.group import SingleWorker
from tests.conftest import whole_threads
from tests.parallel import ranks

JOBS = "tests.factories.jobs"

PLAIN = dict(optimizer="sgd", lr_rule="none", warmup="none")
GIVEN = [dict(name="TOKENS"), dict(name="TOKENS", loader_workers=0), dict(name="TWO_TERMS", accumulate=2),
         dict(name="TOKENS", **PLAIN, steps=1), dict(name="TWO_TERMS", optimizer=f"{JOBS}:Halved", lr_rule="none"),
         dict(name="TOKENS", last_batch="short", global_batch=9), dict(name="DROPPED", global_batch=32)]


def trained(workers, name, **keys):
    return ranks.trained(workers, f"{JOBS}:{name}", **keys)


def trained_jobs(workers, given):
    return [trained(workers, **job) for job in given]


@pytest.fixture(scope="module")
def alone():
    """What one process without a launcher makes of the jobs."""
    with whole_threads():
        return trained_jobs(SingleWorker(), [{**given, "accumulate": 1} for given in GIVEN])


@pytest.mark.parametrize("np_", [*(pytest.param(w, marks=pytest.mark.slow) for w in (1, 2)), 3])
def test_any_worker_count_trains_and_measures_the_same(launch, alone, np_):
    """Dicts of padded sentences with a mean over words, examples augmented by drawing, two outputs and two terms; and a
    padded job with no ghost batch, of whose 32 examples any number of workers makes the updates that one makes."""
    GIVEN[1]["loader_workers"] = 3 - np_                                # 2, 1 and 0: they are slow to start
    first, *others = launch(trained_jobs, np_, GIVEN)
    assert all(rank == first for rank in others)                        # to the last bit
    for given, (parameters, measured), (wanted, wanted_measured) in zip(GIVEN, first, alone):
        assert np.linalg.norm(np.subtract(parameters, wanted)) <= 1e-10 * np.linalg.norm(wanted), given
        assert measured == pytest.approx(wanted_measured, rel=1e-9, nan_ok=True), given
    assert first[0] == first[1]                                         # whoever reads the examples


@pytest.mark.slow
def test_a_padded_job_of_two_workers_is_one_ghost_group_of_both(launch, alone):
    wanted = alone[-1][0]
    for rank in launch(trained_jobs, 2, [dict(name="DROPPED")]):
        assert np.linalg.norm(np.subtract(rank[0][0], wanted)) <= 1e-10 * np.linalg.norm(wanted)


def test_the_gradient_is_that_of_the_mean_over_all_words_of_the_batch(alone):
    """Not the mean of each sentence's, worker's or pass's own mean: all losses by all words, in plain torch."""
    job = prepare(f"{JOBS}:TOKENS", [{**PLAIN, "precision": "fp64", "threads": 1}], SingleWorker())
    indices = job.plan.stream.visits(0, 0, 12).indices
    batch = job.data.train.take(Visits(indices, np.zeros_like(indices), job.plan.seed))
    words = batch["words"].tolist()
    assert len({sum(flags) for flags in batch["is_word"].tolist()}) > 2 and any(0 in row[:1] for row in words)
    losses = [torch.nn.functional.cross_entropy(job.model(torch.tensor([word])), tag[None])
              for row, tags, flags in zip(words, batch["tags"], batch["is_word"]) for word, tag, is_word in
              zip(row, tags, flags) if is_word]
    (sum(losses) / len(losses)).backward()
    after = torch.cat([(p - job.plan.peak_lr * p.grad).detach().flatten() for p in job.model.parameters()])
    np.testing.assert_allclose(alone[3][0], after.numpy(), rtol=0, atol=1e-14)


def test_an_optimizer_of_ones_own_takes_the_steps(alone):
    """Half of twice the rate."""
    with whole_threads():
        reference, _ = trained(SingleWorker(), "TWO_TERMS", optimizer="sgd", lr_rule="none", lr=0.025)
    np.testing.assert_allclose(alone[4][0], reference, rtol=1e-12)


def test_a_batch_without_a_count_has_no_mean_and_a_pass_adds_nothing(worded):
    """As where padding alone is left of a worker's share."""
    with worded.error(WorkloadError):
        trained(SingleWorker(), "NONE", steps=1)
    for noise_every in (0, 1):
        half, _ = trained(SingleWorker(), "HALF", **PLAIN, steps=3, accumulate=12, noise_every=noise_every)
        whole, _ = trained(SingleWorker(), "HALF", **PLAIN, steps=3, noise_every=noise_every)
        assert np.linalg.norm(np.subtract(half, whole)) <= 1e-12 * np.linalg.norm(whole)
