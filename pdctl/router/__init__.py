"""The PD router: its own process, started as `python -m pdctl.router`."""
