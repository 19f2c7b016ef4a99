"""Searches over metaparameters: the best by batch, rules of the learning rate, budgets."""
