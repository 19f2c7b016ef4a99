"""Runs of other programs: what they logged, by format, and how that is read as trials.

    formats.read_runs(["tb"])           a reader a format -> runs: path, parameters, rows of tags
    guessing.guess(runs)                which tag is the step, which a metric; where batch and seed come from
    into_log.settle(runs, mapping)      trials, which into_log.write writes to a log
"""
