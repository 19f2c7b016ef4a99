"""Plans for tests: a workload of a name only, a thousand training examples, and the keys that a test is about."""
from types import SimpleNamespace

from hvdscale.plan.settings import Settings
from hvdscale.plan.settle import Place, settle

WORKLOAD = SimpleNamespace(name="made/net", dataset="made", model="net",
                           metrics={"cross_entropy": "min", "error": "min"})
DEFAULTS = dict(local_batch=10, lr=0.1, base_batch=10, steps=100)
TRAIN, VAL = 1000, 200


def settled(workers=1, train=TRAIN, val=VAL, place=None, defaults=DEFAULTS, **typed):
    """The plan of a workload with these defaults under what a user typed."""
    return settle(Settings.build(defaults, typed), WORKLOAD, train, val, place or Place(workers, workers, workers))
