"""Metaparameter sweeps: a study at each global batch and optimizer, its space, its trials and what came of them."""
