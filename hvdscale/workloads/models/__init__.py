"""Models, one file a family."""
