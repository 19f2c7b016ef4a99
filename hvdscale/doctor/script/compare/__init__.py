"""From the records of two runs to findings."""
