"""A long run of a real deployment under kills and aborts; `python -m tests.soak --help`."""
