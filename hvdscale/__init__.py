"""How far data parallelism takes a training job: workers, global batch, learning rate, time."""

__version__ = "0.3.0"
