"""One run, from its settings to its outcome, and how it resumes."""
