"""The embedded PD engine: its own processes, started as `python -m pdctl.engine`."""
