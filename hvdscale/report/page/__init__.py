"""The report as one HTML page, with a slider over the target."""
