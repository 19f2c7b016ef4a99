"""The log: one HDF5 schema, its writer and its readers."""
