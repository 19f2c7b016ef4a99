"""Arrays in, records out: steps to target, regimes, critical batch, step time, plans."""
