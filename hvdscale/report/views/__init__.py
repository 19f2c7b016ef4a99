"""What a report may show: a file a subject, each of which can be deleted with its entry in report/pages.py."""
