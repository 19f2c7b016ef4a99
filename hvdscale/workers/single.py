"""A worker without others."""
from __future__ import annotations

from .group import Workers


class SingleWorker(Workers):
    """One worker without a launcher: the same operations, with nothing to do."""
