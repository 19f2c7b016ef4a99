"""Callbacks that record the runs of other training libraries. Each imports its library, when it is asked for."""
