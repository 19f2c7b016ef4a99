"""How far data parallelism takes a training job: workers, global batch, learning rate, time and money."""

__version__ = "0.1.0"
