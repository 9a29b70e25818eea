"""A prefill rank: its scheduler half (queues, chunks) and its KV half (sessions, senders, the bootstrap server)."""
