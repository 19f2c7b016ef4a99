"""Metaparameter sweeps: one study per global batch and optimizer, with its search space, trials and results."""
