"""A report beside published curves, and as the figures of a paper."""
