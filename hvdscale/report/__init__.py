"""Reports and plans: from logs to what is printed and written."""
from __future__ import annotations

FORMATS = ("html", "json", "csv", "svg", "png")       # of the files that are written unless others are asked for
