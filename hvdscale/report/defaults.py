"""What the commands write and how often they look, unless they are asked otherwise."""
from __future__ import annotations

FORMATS = ("html", "json", "csv", "svg", "png")
