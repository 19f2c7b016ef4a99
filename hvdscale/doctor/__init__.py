"""Checks whether the user's own job is the same problem on any number of workers; each check returns a finding."""
