"""What is asked of the machine: whole files, locks, usable cores, checksums, importing, versions."""
