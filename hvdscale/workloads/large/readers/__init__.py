"""Readers of pictures and texts, checked on opening."""
