"""What pdctl knows about engines and routers, release by release, as data."""
