"""Reports and plans: from logs to what is printed and written."""

FORMATS = ("html", "json", "csv", "svg", "png")       # of the files that are written unless others are asked for
