"""Repeats of one setting by worker count and global batch."""
