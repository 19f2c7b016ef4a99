"""Which worker count and batch to take, how sure that is, and which runs would make it surer."""
