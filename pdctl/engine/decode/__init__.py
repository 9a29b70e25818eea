"""A decode rank: its scheduler half (queues, running batch) and its KV half (directory of prefills, receivers)."""
