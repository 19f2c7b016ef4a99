"""Whether a job is the same problem on any number of workers: checks of the user's own job, each with a finding."""
