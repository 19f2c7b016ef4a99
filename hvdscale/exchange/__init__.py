"""Other people's formats, in and out: the published archive, CSV tables, MLPerf's reference files."""
