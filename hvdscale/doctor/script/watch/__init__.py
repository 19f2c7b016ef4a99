"""Watchers of torch inside the script's process: they record, and change nothing that the script computes."""
