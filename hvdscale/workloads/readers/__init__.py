"""Readers of data set files, checked on opening."""
