"""Turn facts into findings: prove before a rollout that every prefill can feed every decode."""
