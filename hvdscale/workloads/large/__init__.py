"""Workloads on data that few people have, or that take preparation: photographs, corpora of text, translations."""
