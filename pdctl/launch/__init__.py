"""Start a plan, watch it, and end it without leaving anything behind."""
