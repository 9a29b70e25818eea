"""Reconstruct one room's life across router, prefill and decode from plain logs."""
