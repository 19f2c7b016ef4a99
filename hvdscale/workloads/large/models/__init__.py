"""Language and translation models, one file a family."""
