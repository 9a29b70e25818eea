"""From plain logs alone: one room's life across router, prefill and decode, all rooms, and what broke a deployment."""
