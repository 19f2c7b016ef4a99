"""How far an unmodified training script scales: its updates timed at several worker counts."""
