"""A running fleet under scaling policies: what is observed of it, and what each policy would do (docs/autoscale.md)."""
