"""The worker group and what starts it."""
