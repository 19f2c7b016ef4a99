"""Import and export: the published archive, CSV tables, MLPerf's reference files."""
