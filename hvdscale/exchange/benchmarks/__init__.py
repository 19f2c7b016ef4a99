"""MLPerf's benchmarks: what is known of each, its training logs in and out, and its reference points in."""
