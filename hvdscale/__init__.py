"""How far data parallelism takes a training job: workers, global batch, learning rate, time.

    runs = hvdscale.read("runs/*.h5")           logs, for notebooks; see hvdscale/report/runs.py
    run = hvdscale.record("runs/w8.h5", ...)    a log of a training loop of your own; see hvdscale/log/record.py

What is listed in ``__all__`` is imported when it is first asked for, so that ``import hvdscale`` costs nothing.
"""
from importlib import import_module as _import_module

__version__ = "0.7.0"
_PLACES = {"read": "report.runs", "record": "log.record", "HvdscaleError": "errors"}
__all__ = ["HvdscaleError", "read", "record"]


def __getattr__(name):
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_import_module(f"{__name__}.{_PLACES[name]}"), name)


def __dir__():
    return [*globals(), *__all__]
