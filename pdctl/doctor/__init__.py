"""Facts in, findings out: proves before rollout that every prefill can feed every decode."""
