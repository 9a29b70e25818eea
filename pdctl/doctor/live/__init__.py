"""Checks of what is running: engines, bootstrap servers, the router and this host."""
