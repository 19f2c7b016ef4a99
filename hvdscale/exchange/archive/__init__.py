"""The published archive's layout (Shallue et al. 2019), in and out."""
